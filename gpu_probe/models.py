"""Models of random weights, made where they run: what they say is noise, what they cost is real."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, rms_norm

from sim.hardware import LLMS, Llm

from . import attention
from .batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder, and what a step of it must at least move and compute."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head: int  # width of one
    hidden: int  # of the SwiGLU
    vocab: int
    theta: float = 5e5  # base of the rotary angles

    @property
    def group(self) -> int:
        """Heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def block_weights(self) -> int:
        """Weights that every token passes through; embedding and head excluded."""
        attention = self.dim * self.head * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.dim * self.hidden)

    @property
    def head_weights(self) -> int:
        return self.dim * self.vocab

    def kv_bytes(self, itemsize: int) -> int:
        """Of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head * itemsize

    def read_bytes(self, context: int, itemsize: int) -> int:
        """That a decode step must read: the weights once, and the KV of `context` tokens."""
        return (self.block_weights + self.head_weights) * itemsize + context * self.kv_bytes(
            itemsize
        )

    def flops(self, tokens: int, emitted: int, pairs: int) -> int:
        """Of a step; `pairs` are those of a token and one that it attends to."""
        attention = 4 * self.layers * self.heads * self.head * pairs
        return 2 * tokens * self.block_weights + 2 * emitted * self.head_weights + attention


# Of the presets' models: inner size of the MLP and vocabulary, from the same config.json.
INNER = {
    "llama-3.1-8b": (14_336, 128_256),
    "llama-3.1-70b": (28_672, 128_256),
    "qwen3-8b": (12_288, 151_936),
    "qwen2.5-7b": (18_944, 152_064),
    "llama-2-7b": (11_008, 32_000),
    "mistral-7b": (14_336, 32_768),
}


def shape_of(llm: Llm, hidden: int, vocab: int) -> Shape:
    return Shape(
        layers=llm.layers,
        dim=llm.hidden,
        heads=llm.heads,
        kv_heads=llm.kv_heads,
        head=llm.head_size,
        hidden=hidden,
        vocab=vocab,
    )


SHAPES = {
    "tiny": Shape(layers=2, dim=64, heads=4, kv_heads=2, head=16, hidden=160, vocab=256),
    "small": Shape(layers=4, dim=256, heads=8, kv_heads=2, head=32, hidden=704, vocab=4096),
} | {name: shape_of(LLMS[name], *sizes) for name, sizes in INNER.items()}

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Decoder:
    """RMSNorm, rotary positions, grouped-query attention, SwiGLU; its KV stands in pages."""

    def __init__(
        self,
        shape: Shape,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        longest: int = 4096,
        seed: int = 0,
        kernels: ModuleType | SimpleNamespace = attention,
    ):
        """longest: tokens of a request at most; kernels: a module such as `attention`."""
        self.shape, self.device, self.dtype, self.kernels = (
            shape, torch.device(device), dtype, kernels
        )  # fmt: skip
        rng = torch.Generator(device).manual_seed(seed)

        def weight(out: int, into: int) -> Tensor:
            w = torch.empty(out, into, device=device, dtype=dtype)
            return w.normal_(0, into**-0.5, generator=rng)

        q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
        self.embed = weight(shape.vocab, shape.dim)
        self.layers = [
            (
                weight(q + 2 * kv, shape.dim),
                weight(shape.dim, q),
                weight(2 * shape.hidden, shape.dim),
                weight(shape.dim, shape.hidden),
            )
            for _ in range(shape.layers)
        ]
        self.lm_head = weight(shape.vocab, shape.dim)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        half = torch.arange(0, shape.head, 2, device=device, dtype=wide) / shape.head
        angle = torch.arange(longest, device=device, dtype=wide)[:, None] * shape.theta**-half
        sin = angle.sin()
        self.cos = torch.cat((angle.cos(), angle.cos()), -1)[:, None]  # (position, 1, head)
        self.sin = torch.cat((-sin, sin), -1)[:, None]

    @property
    def itemsize(self) -> int:
        return self.embed.element_size()

    def kv_cache(self, blocks: int, block_size: int) -> Tensor:
        """(layer, key or value, block, place in it, KV head, head), of noise: never time on 0."""
        size = (self.shape.layers, 2, blocks, block_size, self.shape.kv_heads, self.shape.head)
        cache = torch.empty(size, device=self.device, dtype=self.dtype)
        for layer in cache:
            layer.normal_()
        return cache

    def hidden(
        self, ids: Tensor, position: Tensor, attend: Attend, kernels: ModuleType | None = None
    ) -> Tensor:
        """(tokens, dim). attend(layer, qkv, cos, sin) turns, keeps k and v, and returns what the
        queries saw."""
        shape, gate = self.shape, (kernels or self.kernels).gate
        cos, sin = self.cos[position], self.sin[position]
        x = embedding(ids, self.embed)
        for layer, (qkv, out, gate_up, down) in enumerate(self.layers):
            y = linear(rms_norm(x, (shape.dim,)), qkv).view(len(ids), -1, shape.head)
            x.addmm_(attend(layer, y, cos, sin).flatten(1), out.t())
            x.addmm_(gate(linear(rms_norm(x, (shape.dim,)), gate_up)), down.t())
        return x

    def over_pages(self, cache: Tensor, batch: Batch) -> Attend:
        """For `hidden`. What stands behind the batch's tokens is padding and sees nothing."""
        live, kernels = len(batch.owner), self.kernels

        def attend(layer: int, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            keys, values = cache[layer]
            q = kernels.keep(qkv[:live], cos[:live], sin[:live], keys, values, batch.slot)
            seen = kernels.attend(q, keys, values, batch)
            if live == len(qkv):
                return seen
            return torch.cat((seen, seen.new_zeros(len(qkv) - live, *seen.shape[1:])))

        return attend

    def logits(self, x: Tensor) -> Tensor:
        return linear(rms_norm(x, (self.shape.dim,)), self.lm_head)

    def plain(self, ids: Tensor) -> Tensor:
        """Logits of a whole sequence at once, without a cache: the reference."""
        group = self.shape.group
        hidden = torch.ones(len(ids), len(ids), device=ids.device).triu(1).bool()

        def attend(_, qkv, cos, sin):
            q, k, v = attention.turned(qkv, cos, sin, self.shape.kv_heads)
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            score = torch.einsum("qhd,khd->hqk", q, k) * self.shape.head**-0.5
            weight = score.masked_fill(hidden, -torch.inf).softmax(-1)
            return torch.einsum("hqk,khd->qhd", weight, v)

        position = torch.arange(len(ids), device=ids.device)
        return self.logits(self.hidden(ids, position, attend, attention))


class TinyLM:
    """The course module's stand-in: an embedding, MLP blocks, a head; nothing remembers a token.

    So a call costs what its rows cost, and every row of it is a slot that was paid for.
    """

    VOCAB, DIM, BLOCKS = 4096, 256, 4

    def __init__(self, device: str = "cpu", seed: int = 0):
        rng = torch.Generator(device).manual_seed(seed)

        def weight(out: int, into: int) -> Tensor:
            return torch.randn(out, into, device=device, generator=rng) * into**-0.5

        d = self.DIM
        self.embed, self.lm_head = weight(self.VOCAB, d), weight(self.VOCAB, d)
        self.blocks = [
            (weight(4 * d, d), weight(d, 4 * d), weight(d, d)) for _ in range(self.BLOCKS)
        ]

    def __call__(self, ids: Tensor) -> Tensor:
        """(...,) tokens -> (..., vocabulary) logits."""
        x, size = embedding(ids, self.embed), (self.DIM,)
        for up, down, mix in self.blocks:
            x = x + linear(gelu(linear(layer_norm(x, size), up)), down)
            x = x + linear(layer_norm(x, size), mix)
        return linear(x, self.lm_head)
