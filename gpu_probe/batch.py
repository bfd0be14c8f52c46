"""One step's ragged batch: all new tokens end to end, and where the KV of each one lives."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sim.state import DECODE, State

TILE = 64  # that a kernel takes at a time of a prompt: queries times the heads of a KV head


class BlockTable:
    """Which blocks each request has. The scheduler counts blocks; a device needs to know which."""

    def __init__(self, requests: int, blocks: int, block_size: int, longest: int):
        self.block_size = block_size
        self.free = list(range(blocks - 1, -1, -1))
        self.ids = np.zeros((requests, -(-longest // block_size)), np.int64)
        self.held = np.zeros(requests, np.int64)

    def follow(self, wanted: np.ndarray) -> None:
        """Every request has as many as `wanted` (requests,) says: take back first, then give.

        What is reserved beyond the longest request is counted by the scheduler alone.
        """
        wanted = np.minimum(wanted, self.ids.shape[1])
        for i in np.flatnonzero(self.held > wanted):
            self.free.extend(self.ids[i, wanted[i] : self.held[i]].tolist())
        for i in np.flatnonzero(self.held < wanted):
            for k in range(self.held[i], wanted[i]):
                self.ids[i, k] = self.free.pop()
        self.held[:] = wanted

    def slots(self, owner: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Where the KV of each token stands, in tokens from the pool's front."""
        block = self.ids[owner, position // self.block_size]
        return block * self.block_size + position % self.block_size


class Plan(NamedTuple):
    """Who computes how much in the planned step: decodes first, by their KV, then prompts."""

    rows: np.ndarray  # request ids
    start: np.ndarray  # tokens of each whose KV is there
    tokens: np.ndarray  # new ones
    decodes: int  # rows that decode
    emits: np.ndarray  # whether the row's last token is followed by an output token
    blocks: np.ndarray  # (requests,) that each must have
    padding: int  # tokens that are computed and useful to nobody


def planned(s: State, block_size: int) -> Plan:
    """Read off the state, after `plan` and before `commit`."""
    n, r = s.n, s.requests
    decoding = np.sort(s.decoding[: n.decoding]) if n.decodes else np.zeros(0, np.int64)
    prompts = s.prefilling[: n.prefilling]
    prompts = prompts[r["grant"][prompts] > 0]
    seated = s.seats[s.seats >= 0]
    there = np.where(
        r["phase"][seated] == DECODE,
        r["prompt"][seated] + r["output"][seated] - (r["ends"][seated] - n.ticks) - 1,
        r["cached"][seated],
    )
    cached = np.zeros(len(r), np.int64)
    cached[seated] = there
    rows = np.concatenate([decoding[np.argsort(cached[decoding], kind="stable")], prompts])
    start, tokens = cached[rows], np.ones(len(rows), np.int64)
    tokens[len(decoding) :] = r["grant"][prompts]
    emits = start + tokens == r["prompt"][rows] + r["emitted"][rows]
    emits[: len(decoding)] = True
    cached[rows] += tokens
    blocks = np.zeros(len(r), np.int64)
    blocks[seated] = np.maximum(-(-cached[seated] // block_size), r["blocks"][seated])
    decodes_pages = (r["phase"][seated] == DECODE) & (n.block > 0)
    blocks[seated[decodes_pages]] = -(-cached[seated[decodes_pages]] // block_size)
    padding = int(n.pad_prefill + n.pad_decodes)
    return Plan(rows, start, tokens, len(decoding), emits, blocks, padding)


class Batch(NamedTuple):
    """On the device, int64. Rows are requests, decodes before prompts."""

    decodes: int
    chunks: list[tuple[int, int, int]]  # of each prompt: its row, new tokens, tokens with KV then
    owner: Tensor  # (tokens,) request of each new token
    position: Tensor  # (tokens,) in its request
    slot: Tensor  # (tokens,) where its KV goes
    last: Tensor  # (rows that emit,) place of their last new token
    table: Tensor  # (rows, blocks of the longest) block ids
    length: Tensor  # (rows,) tokens that have KV once the step is done
    first: Tensor  # (rows + 1,) place of each row's first new token
    tiles: Tensor  # (2, tiles) row and first query of each tile: one a decode, then the prompts'
    groups: list[tuple[int, int, int]]  # decodes of like length: from, to, blocks of the longest


def packed(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """The arrays on the device by a single copy."""
    flat = torch.from_numpy(np.concatenate([a.reshape(-1) for a in arrays]).astype(np.int64))
    parts = flat.to(device).split([a.size for a in arrays])
    return [part.view(a.shape) for part, a in zip(parts, arrays, strict=True)]


def alike(blocks: np.ndarray) -> list[tuple[int, int, int]]:
    """(from, to, largest) of rows in order of their blocks, none twice as many as another."""
    ends = np.append(np.flatnonzero(np.diff(np.log2(blocks).astype(int))) + 1, len(blocks))
    begins = [0, *ends[:-1].tolist()]
    return [(a, b, int(blocks[b - 1])) for a, b in zip(begins, ends.tolist(), strict=True) if b]


def make_batch(plan: Plan, table: BlockTable, device: torch.device, group: int = 4) -> Batch:
    """group: heads that share a KV head."""
    tile = max(1, TILE // group)
    rows, d = plan.rows, plan.decodes
    kv = plan.start + plan.tokens
    ends = plan.tokens.cumsum()
    first = ends - plan.tokens
    owner = np.repeat(rows, plan.tokens)
    position = np.arange(ends[-1]) - np.repeat(first - plan.start, plan.tokens)
    count = -(-plan.tokens // tile)
    tiles = np.stack(
        [
            np.repeat(np.arange(len(rows)), count),
            tile * (np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)),
        ]
    )
    owners, positions, slots, last, ids, length, begins, tiled = packed(
        device,
        owner,
        position,
        table.slots(owner, position),
        ends[plan.emits] - 1,
        table.ids[rows, : -(-int(kv.max()) // table.block_size)],
        kv,
        np.append(first, ends[-1]),
        tiles,
    )
    chunks = [(k, int(plan.tokens[k]), int(kv[k])) for k in range(d, len(rows))]
    groups = alike(-(-kv[:d] // table.block_size))
    return Batch(
        d, chunks, owners, positions, slots, last, ids, length, begins, tiled, groups
    )  # fmt: skip
