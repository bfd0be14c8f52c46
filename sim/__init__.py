"""The simulator: what a scheduler does with a stream of requests, in numbers. No page, no device."""

__version__ = "0.1.0"
