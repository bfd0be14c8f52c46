"""The scheduler's loop on a device: a real model, a real clock, real memory."""

import time

BEGAN = time.monotonic()  # before anything is compiled or loaded, which can take a minute

# Of models.SHAPES, for those who don't wait for torch.
MODELS = (
    "tiny",
    "small",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "qwen3-8b",
    "qwen2.5-7b",
    "llama-2-7b",
    "mistral-7b",
)
