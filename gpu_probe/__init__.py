"""The scheduler's loop on a device: a real model, a real clock, real memory."""

import time

BEGAN = time.monotonic()  # before anything is compiled or loaded, which can take a minute
