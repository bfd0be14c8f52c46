"""What a decoder does with pages, by Triton kernels of our own: as `attention`, for a GPU.

`attend` reads every live KV block once. A program takes one KV head and a tile of one row's
queries, packed with the heads that share it, and walks that row's blocks with a running softmax;
decodes and prompts alike. Few decodes would leave most of the card idle, so their keys are split
among programs and the parts merged. Lengths and tables are read on the device, so that a captured
CUDA graph replays with new ones. `keep` and `gate` save launches: a decode step waits for weights,
and whatever else runs meanwhile is added. TRITON_INTERPRET=1 runs all on a CPU, slowly.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from .batch import TILE as PROMPT_TILE
from .batch import Batch

DECODE_TILE, SPAN, GATE = 16, 64, 1024
# Decodes are split until so many programs run, into so many at most. Four programs fit on a
# multiprocessor of Hopper: these are on an H200's 132 at once, and none waits for a second turn.
PROGRAMS, SPLITS = 512, 16


# What changes from step to step must not compile anew: neither the table's width, nor where in its
# buffer an integer array begins.
@triton.jit(
    do_not_specialize=["width"],
    do_not_specialize_on_alignment=["table", "length", "first", "tile_row", "tile_at"],
)
def walk(
    q, keys, values, seen, tops, totals, table, length, first, tile_row, tile_at, scale, width,
    q_row, seen_row, seen_split,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPAN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """q, seen: rows of q_row and seen_row numbers. TILE: queries times group, at least 16; SPAN:
    keys that are taken at a time. With SPLITS above 1, seen is of float32 and each split's own,
    seen_split numbers apart, as are tops and totals (split, token, head): see `merge`."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(tile_row + tl.program_id(0))
    at = tl.load(tile_at + tl.program_id(0))
    kv_head, split = tl.program_id(1), tl.program_id(2)
    begin = tl.load(first + row)
    tokens = tl.load(first + row + 1) - begin
    kv = tl.load(length + row)

    lane, d = tl.arange(0, TILE), tl.arange(0, HEAD)
    query = at + lane // GROUP
    inside = (query < tokens) & (lane < TILE // GROUP * GROUP)
    live, head = inside[:, None], kv_head * GROUP + lane % GROUP
    place = head[:, None] * HEAD + d[None]
    x = tl.load(q + (begin + query)[:, None] * q_row + place, mask=live, other=0.0)
    position = kv - tokens + query  # a query sees the keys up to its own place

    top = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    acc = tl.zeros([TILE, HEAD], tl.float32)
    end = tl.minimum(kv, kv - tokens + at + TILE // GROUP)
    share = tl.cdiv(tl.cdiv(end, SPAN), SPLITS) * SPAN
    for start in range(split * share, tl.minimum(end, (split + 1) * share), SPAN):
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
    if SPLITS == 1:
        acc = acc / total[:, None]
    else:
        part = split * (seen_split // HEAD) + (begin + query) * HEADS + head
        tl.store(tops + part, top, mask=inside)
        tl.store(totals + part, total, mask=inside)
    out = seen + split * seen_split + (begin + query)[:, None] * seen_row + place
    tl.store(out, acc.to(seen.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
def merge(
    parts, tops, totals, seen, rows,
    HEADS: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The splits of one token and head: their running softmaxes, put on one maximum."""
    place = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    split, d = tl.arange(0, SPLITS), tl.arange(0, HEAD)
    part = split * (rows * HEADS) + place
    top = tl.load(tops + part)
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(totals + part), 0)
    acc = tl.load(parts + part[:, None] * HEAD + d[None])
    out = tl.sum(weight[:, None] * acc, 0) / total
    tl.store(seen + place * HEAD + d, out.to(seen.dtype.element_ty))


@triton.jit(do_not_specialize_on_alignment=["slot"])
def turn(
    qkv, cos, sin, q, keys, values, slot,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One token's KV head with the heads that share it. LANES: a power of two that holds these
    and the key."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane, d = tl.arange(0, LANES)[:, None], tl.arange(0, HEAD)[None]
    head = tl.where(lane < GROUP, kv_head * GROUP + lane, HEADS + kv_head)
    x = qkv + row * (HEADS + 2 * KV_HEADS) * HEAD
    near = tl.load(x + head * HEAD + d)
    far = tl.load(x + head * HEAD + (d + HEAD // 2) % HEAD)
    turned = near * tl.load(cos + row * HEAD + d) + far * tl.load(sin + row * HEAD + d)
    turned = turned.to(q.dtype.element_ty)
    tl.store(q + (row * HEADS + head) * HEAD + d, turned, mask=lane < GROUP)
    place = (tl.load(slot + row) * KV_HEADS + kv_head) * HEAD + d
    tl.store(keys + place + lane * 0, turned, mask=lane == GROUP)
    tl.store(values + place, tl.load(x + (HEADS + KV_HEADS + kv_head) * HEAD + d))


@triton.jit
def swiglu(x, out, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK numbers of one token."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < HIDDEN
    a = tl.load(x + row * 2 * HIDDEN + at, mask=there).to(tl.float32)
    b = tl.load(x + row * 2 * HIDDEN + HIDDEN + at, mask=there).to(tl.float32)
    tl.store(out + row * HIDDEN + at, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=there)


def splits(programs: int) -> int:
    """A power of two; few values, since each is compiled."""
    return min(SPLITS, 1 << max(1, PROGRAMS // programs).bit_length() - 1)


def attend(q: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
    """As attention.attend."""
    (tokens, heads, head), (_, block_size, kv_heads, _) = q.shape, keys.shape
    # Of a view with gaps the kernel would read what stands between.
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert q.stride()[1:] == (head, 1)
    assert heads // kv_heads <= DECODE_TILE
    assert all(t.is_contiguous() for t in (batch.table, batch.length, batch.first, *batch.tiles))
    seen = torch.empty((tokens, heads, head), dtype=q.dtype, device=q.device)
    d = batch.decodes

    def launch(tile: int, tiles: Tensor, parts: int, out: Tensor, sums):
        walk[(tiles.shape[1], kv_heads, parts)](
            q, keys, values, out, *sums, batch.table, batch.length, batch.first, *tiles,
            head**-0.5, batch.table.shape[1], q.stride(0), heads * head, d * heads * head,
            heads, kv_heads, head, block_size, tile, SPAN, parts,
        )  # fmt: skip

    parts = splits(max(1, d) * kv_heads)
    if d and parts == 1:
        launch(DECODE_TILE, batch.tiles[:, :d], 1, seen, (seen, seen))
    elif d:
        out = q.new_empty((parts, d, heads, head), dtype=torch.float32)
        sums = q.new_empty((2, parts, d, heads), dtype=torch.float32)
        launch(DECODE_TILE, batch.tiles[:, :d], parts, out, sums)
        merge[(d, heads)](out, *sums, seen, d, heads, head, parts)
    if batch.chunks:
        launch(PROMPT_TILE, batch.tiles[:, d:], 1, seen, (seen, seen))
    return seen


def keep(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slot: Tensor
) -> Tensor:
    """As attention.keep."""
    (tokens, _, head), kv_heads = qkv.shape, keys.shape[2]
    heads = qkv.shape[1] - 2 * kv_heads
    assert all(t.is_contiguous() for t in (qkv, cos, sin, keys, values, slot))
    q = torch.empty((tokens, heads, head), dtype=qkv.dtype, device=qkv.device)
    lanes = triton.next_power_of_2(heads // kv_heads + 1)
    turn[(tokens, kv_heads)](
        qkv, cos, sin, q, keys, values, slot, heads, kv_heads, head, lanes, num_warps=1
    )  # fmt: skip
    return q


def gate(x: Tensor) -> Tensor:
    """As attention.gate."""
    tokens, hidden = len(x), x.shape[1] // 2
    assert x.is_contiguous()
    out = torch.empty((tokens, hidden), dtype=x.dtype, device=x.device)
    swiglu[(tokens, triton.cdiv(hidden, GATE))](x, out, hidden, GATE)
    return out
