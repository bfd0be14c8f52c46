"""The scheduler's loop on a device: a real model, a real clock, real memory."""
