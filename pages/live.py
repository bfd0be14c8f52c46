"""The simulator in time: watch it go, drop a prompt in, change a limit, under every policy."""

from pages.ui import live

live.page()
