"""One step's ragged batch: all new tokens end to end, and where the KV of each one lives."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sim.memory import BLANK
from sim.state import DECODE, State

TILE = 64  # that a kernel takes at a time of a prompt: queries times the heads of a KV head

Identities = tuple[np.ndarray, np.ndarray]  # as Workload.blocks has them


class Plan(NamedTuple):
    """Who computes how much in the planned step: decodes first, by their KV, then prompts."""

    rows: np.ndarray  # request ids
    start: np.ndarray  # tokens of each whose KV is there
    tokens: np.ndarray  # new ones
    decodes: int  # rows that decode
    emits: np.ndarray  # whether the row's last token is followed by an output token
    blocks: np.ndarray  # (requests,) that each must have
    padding: int  # tokens that are computed and useful to nobody


def token_ids(prompt: np.ndarray, longest: int, vocab: int, block_size: int, named: Identities):
    """(requests and a spare one, tokens): noise, alike where identities are; -1: the model says it.

    What an answer has in common with another request is given too, as if it had been recorded.
    """
    identities, begins = named
    blocks = max(longest // block_size + 1, int(np.diff(begins).max(initial=0)))
    shape = len(prompt) + 1, blocks, block_size
    ids = np.random.default_rng(0).integers(0, vocab, shape)
    said = (np.arange(blocks * block_size) >= np.append(prompt, longest)[:, None]).reshape(shape)
    said[-1] = False
    row = np.repeat(np.arange(len(prompt)), np.diff(begins))
    k = np.arange(len(row)) - begins[row]
    _, first, which, count = np.unique(identities, True, True, True)
    ids[row, k] = ids[row, k][first[which]]
    said[row, k] &= (count[which] == 1)[:, None]
    return np.where(said, -1, ids).reshape(len(prompt) + 1, -1)


def say(ids: Tensor, owner: Tensor, position: Tensor, logits: Tensor) -> None:
    """Each row's token at that position is the likeliest, unless it is given."""
    given = ids[owner, position]
    ids[owner, position] = torch.where(given < 0, logits.argmax(-1), given)


def known_to(s: State, named: Identities) -> np.ndarray:
    """Identities of the blocks that the prefix cache knows, used or not."""
    tree = len(s.nodes) > 0
    rows = np.delete(s.nodes if tree else s.entries, s.unused[s.n.entries :])
    if not tree:
        return rows["identity"][rows["identity"] != BLANK]
    begins = named[1][rows["owner"]] + rows["depth"]
    ends = begins + rows["length"]
    return named[0][np.concatenate([np.arange(*ab) for ab in zip(begins, ends, strict=True)])]


class BlockTable:
    """Which blocks each request has. The scheduler counts blocks; a device needs to know which.

    A full block stands under the identity of its content, once it is computed. Whoever has that
    content too has that block, and it stays while nobody has it, until the prefix cache no longer
    knows it and its place is needed. So there are never more than the scheduler counts.

    What it knows though nobody computed it is read as it stands: by priority, somebody may lose
    seat and tokens in the very step that would have computed a block, known since it was planned.
    """

    def __init__(
        self, requests: int, blocks: int, block_size: int, longest: int, named: Identities
    ):
        self.block_size, self.named = block_size, named
        self.free = list(range(blocks - 1, -1, -1))
        self.users = np.zeros(blocks, np.int64)
        self.ids = np.zeros((requests, -(-longest // block_size)), np.int64)
        self.held = np.zeros(requests, np.int64)
        self.full = np.zeros(requests, np.int64)  # of these, that stand in `home`
        low, high = int(named[0].min(initial=0)), int(named[0].max(initial=-1))
        self.home = np.full(high + 1 - low, -1)  # block of each identity; from the end if below 0

    def follow(self, plan: Plan, known: Callable[[], np.ndarray]) -> None:
        """Every request has as many as the plan says: take back first, then give.

        known(): identities that the prefix cache knows. What is reserved beyond the longest request
        is counted by the scheduler alone.
        """
        all_identities, begins = self.named
        wanted, full = np.minimum(plan.blocks, self.ids.shape[1]), self.full.copy()
        full[plan.rows] = (plan.start + plan.tokens) // self.block_size
        full = np.minimum(full, np.minimum(wanted, np.diff(begins)))
        for i in np.flatnonzero(self.held > wanted):
            self.users[self.ids[i, wanted[i] : self.held[i]]] -= 1
            own = max(wanted[i], self.full[i])
            self.free.extend(self.ids[i, own : self.held[i]].tolist())
        self.held = np.minimum(self.held, wanted)
        more = np.flatnonzero((self.held < wanted) | (self.full < full))
        for i in sorted(more, key=lambda i: self.held[i] == 0):  # who comes may share with others
            at = self.full[i] if self.full[i] < full[i] else self.held[i]
            own = self.ids[i, at : self.held[i]][::-1]
            self.users[own] = 0
            self.free.extend(own.tolist())  # taken again at once, unless the same is there
            identities = all_identities[begins[i] + at : begins[i] + full[i]]
            blocks = np.full(wanted[i] - at, -1)
            blocks[: len(identities)] = self.home[identities]
            new = blocks < 0
            self.users[blocks[~new]] += 1
            blocks[new] = self.take(int(new.sum()), known)
            self.home[identities] = blocks[: len(identities)]
            self.ids[i, at : wanted[i]] = blocks
        self.held, self.full = wanted, full

    def take(self, count: int, known: Callable[[], np.ndarray]) -> list[int]:
        """So many blocks for one user; what is known no longer makes room."""
        if count > len(self.free):
            stays = np.zeros(len(self.home), bool)
            stays[known()] = True
            gone = np.flatnonzero((self.home >= 0) & ~stays)
            gone = gone[self.users[self.home[gone]] == 0]
            self.free[:0] = self.home[gone].tolist()
            self.home[gone] = -1
        taken = [self.free.pop() for _ in range(count)]
        self.users[taken] = 1
        return taken

    def slots(self, owner: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Where the KV of each token stands, in tokens from the pool's front."""
        block = self.ids[owner, position // self.block_size]
        return block * self.block_size + position % self.block_size


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
