"""The simulator: what a scheduler does with a stream of requests. No page, no device."""

__version__ = "0.1.0"
