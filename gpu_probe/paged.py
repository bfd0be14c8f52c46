"""Attention over block tables as one Triton kernel: every live KV block is read once.

A program takes one KV head and a tile of one row's queries, packed with the heads that share it,
and walks that row's blocks with a running softmax; decodes and prompts alike. Lengths and tables
are read on the device, so that a captured CUDA graph replays with new ones. TRITON_INTERPRET=1 runs
it on a CPU, slowly.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from .batch import Batch


@triton.jit
def kernel(
    q, keys, values, seen, table, length, first, tile_row, tile_at, scale, width, q_row, seen_row,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """q, seen: rows of q_row and seen_row numbers. TILE: queries times group, at least 16; SPAN:
    keys that are taken at a time."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(tile_row + tl.program_id(0))
    at = tl.load(tile_at + tl.program_id(0))
    kv_head = tl.program_id(1)
    begin = tl.load(first + row)
    tokens = tl.load(first + row + 1) - begin
    kv = tl.load(length + row)

    lane, d = tl.arange(0, TILE), tl.arange(0, HEAD)
    query = at + lane // GROUP
    live = ((query < tokens) & (lane < TILE // GROUP * GROUP))[:, None]
    place = (kv_head * GROUP + lane % GROUP)[:, None] * HEAD + d[None]
    x = tl.load(q + (begin + query)[:, None] * q_row + place, mask=live, other=0.0)
    position = kv - tokens + query  # a query sees the keys up to its own place

    top = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, HEAD], tl.float32)
    end = tl.minimum(kv, kv - tokens + at + TILE // GROUP)
    for start in range(0, end, SPAN):
        key = start + tl.arange(0, SPAN)
        there = key < kv
        block = tl.load(table + row * width + key // BLOCK, mask=there, other=0)
        where = ((block * BLOCK + key % BLOCK) * KV_HEADS + kv_head)[:, None] * HEAD + d[None]
        k = tl.load(keys + where, mask=there[:, None], other=0.0)
        v = tl.load(values + where, mask=there[:, None], other=0.0)
        score = tl.dot(x, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(key[None] <= position[:, None], score, -1e30)
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(score - new_top[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    out = (acc / total[:, None]).to(seen.dtype.element_ty)
    tl.store(seen + (begin + query)[:, None] * seen_row + place, out, mask=live)


DECODE_TILE, PROMPT_TILE, SPAN = 16, 64, 64


def queries(heads: int, kv_heads: int) -> int:
    """Of a prompt, in one tile."""
    return max(1, PROMPT_TILE // (heads // kv_heads))


def paged(q: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
    """As attention.padded."""
    (tokens, heads, head), (_, block_size, kv_heads, _) = q.shape, keys.shape
    # Of a view with gaps the kernel would read what stands between.
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert q.stride()[1:] == (head, 1)
    assert heads // kv_heads <= DECODE_TILE
    assert all(t.is_contiguous() for t in (batch.table, batch.length, batch.first))
    seen = torch.empty((tokens, heads, head), dtype=q.dtype, device=q.device)
    launches = [(DECODE_TILE, batch.first[: batch.decodes], torch.zeros_like(batch.first))]
    launches.append((PROMPT_TILE, batch.tiles[0], batch.tiles[1]))
    for tile, row, at in launches:
        if len(row):
            kernel[(len(row), kv_heads)](
                q, keys, values, seen, batch.table, batch.length, batch.first, row, at,
                head**-0.5, batch.table.shape[1], q.stride(0), seen.stride(0),
                heads, kv_heads, head, block_size, tile, SPAN,
            )  # fmt: skip
    return seen
