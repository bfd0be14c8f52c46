"""What a decoder does with pages, from what torch has on every device: the reference, and a CPU's.

A set of kernels is a module with these names: `keep`, `attend`, `gate`. `paged` is the other one.
q: (tokens, heads, head); keys, values: (blocks, block_size, KV heads, head). The queries that share
a KV head stand side by side on the query axis of one attention per KV head, so that no key is
repeated.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from .batch import Batch


def turned(qkv: Tensor, cos: Tensor, sin: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of (tokens, heads of all three, head): queries and keys turned by the angles
    (tokens, 1, head) of their tokens."""
    heads = qkv.shape[1] - 2 * kv_heads
    qk, v = qkv.split([heads + kv_heads, kv_heads], 1)
    qk = (qk * cos + qk.roll(qk.shape[-1] // 2, -1) * sin).to(qk.dtype)
    return qk[:, :heads], qk[:, heads:], v


def keep(
    qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slot: Tensor
) -> Tensor:
    """The turned queries; keys and values go to the `slot` (tokens,) of each."""
    q, k, v = turned(qkv, cos, sin, keys.shape[2])
    keys.view(-1, *k.shape[1:])[slot] = k
    values.view(-1, *v.shape[1:])[slot] = v
    return q


def gate(x: Tensor) -> Tensor:
    """(tokens, gate and up) -> (tokens, hidden): SwiGLU."""
    a, b = x.chunk(2, -1)
    return silu(a) * b


def attend(q: Tensor, keys: Tensor, values: Tensor, batch: Batch) -> Tensor:
    """Pages gathered: decodes of like length together, padded to the longest of them, so that a
    step costs what its KV costs; each prompt by itself. This step's KV is there already."""
    seen = torch.empty_like(q)
    for a, b, blocks in batch.groups:
        table = batch.table[a:b, :blocks]
        seen[a:b] = decodes(q[a:b], keys, values, table, batch.length[a:b])
    at = batch.decodes
    for row, tokens, kv in batch.chunks:
        table = batch.table[row, : -(-kv // keys.shape[1])]
        seen[at : at + tokens] = chunk(q[at : at + tokens], keys, values, table, kv)
        at += tokens
    return seen


def decodes(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, length: Tensor) -> Tensor:
    """A query a row; `length` keys of each count."""
    rows, heads, head = q.shape
    kv_heads = keys.shape[2]
    k = keys[table].view(rows, -1, kv_heads, head).transpose(1, 2)
    v = values[table].view(rows, -1, kv_heads, head).transpose(1, 2)
    counts = torch.arange(k.shape[2], device=q.device) < length[:, None]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, head)
    seen = scaled_dot_product_attention(grouped, k, v, attn_mask=counts[:, None, None])
    return seen.reshape(rows, heads, head)


def chunk(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, kv: int) -> Tensor:
    """The last queries of one request; the last of them sees all of its `kv` keys."""
    tokens, heads, head = q.shape
    kv_heads, group = keys.shape[2], heads // keys.shape[2]
    k = keys[table].view(-1, kv_heads, head)[:kv].transpose(0, 1)
    v = values[table].view(-1, kv_heads, head)[:kv].transpose(0, 1)
    counts = torch.ones(tokens, kv, dtype=torch.bool, device=q.device).tril(kv - tokens)
    grouped = q.view(tokens, kv_heads, group, head).permute(1, 2, 0, 3)
    seen = scaled_dot_product_attention(
        grouped.reshape(1, kv_heads, group * tokens, head),
        k[None],
        v[None],
        attn_mask=counts.repeat(group, 1),
    )
    seen = seen.view(kv_heads, group, tokens, head)
    return seen.permute(2, 0, 1, 3).reshape(tokens, heads, head)
