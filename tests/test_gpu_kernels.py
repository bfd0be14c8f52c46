"""What only a GPU runs, as far as a CPU can tell: our kernels in Triton's interpreter, graphs by a
tape in CUDA's place."""

import os
import warnings

import numpy as np
import pytest
import torch
from pretend_card import tapes
from test_device_loop import AMPLE, TIGHT, decoder, some_requests
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_probe import attention
from gpu_probe.batch import BlockTable, Plan, make_batch
from gpu_probe.device import Device
from gpu_probe.loop import Server

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if WHERE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported


# Kernels

interpreted = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def ragged(decodes, chunks, block: int, group: int):
    """A batch of decodes with so many tokens of KV, and of prompts (there, new), in any blocks."""
    start = np.array([n - 1 for n in decodes] + [there for there, _ in chunks])
    tokens = np.array([1] * len(decodes) + [new for _, new in chunks])
    rows, held = np.arange(len(start)), -(-(start + tokens) // block)
    named = np.zeros(0, int), np.zeros(len(rows) + 1, int)
    table = BlockTable(len(rows), int(held.sum()), block, int((start + tokens).max()), named)
    np.random.default_rng(0).shuffle(table.free)
    plan = Plan(rows, start, tokens, len(decodes), rows >= 0, held, 0)
    table.follow(plan, lambda: named[0])
    return make_batch(plan, table, WHERE, group), int(held.sum())


def attended(kernels, decodes, chunks, heads: tuple[int, int, int], block: int, later: int = 0):
    """(gathered pages', the kernel's), whose lengths are `later` too large."""
    count, kv_heads, head = heads
    batch, blocks = ragged(decodes, chunks, block, count // kv_heads)
    q = torch.randn(len(batch.owner), count + kv_heads, head, device=WHERE)[:, :count]
    keys, values = torch.randn(2, blocks, block, kv_heads, head, device=WHERE)
    other = batch._replace(length=batch.length + later)
    with sdpa_kernel(SDPBackend.MATH):  # in float32 throughout, on a GPU too
        want = attention.attend(q, keys, values, batch)
    return want, kernels.attend(q, keys, values, other)


@pytest.fixture(scope="module")
def kernels():
    """gpu_probe.paged, interpreted where there is no GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from gpu_probe import paged

    try:
        with warnings.catch_warnings(action="ignore"):  # of numpy 2.3, which 2.4 made an error
            attended(paged, [3], [], (4, 2, 16), 16)
    except Exception as error:
        if "0-dimensional" not in str(error):
            raise
        pytest.skip("this Triton's interpreter does not know this numpy: 3.6 wants 2.3")
    return paged


EDGES = [1, 15, 16, 17, 63, 64, 65]


@interpreted
@pytest.mark.parametrize("programs", [1, 512], ids=["whole", "split"])
@pytest.mark.parametrize(
    ("decodes", "chunks", "heads", "block"),
    [
        (EDGES, [], (4, 2, 16), 16),
        ([300], [], (4, 2, 16), 16),
        ([3], [(0, 1), (0, 17), (5, 30), (16, 32), (63, 2)], (4, 2, 16), 16),
        ([20] * 3, [(3, 5)], (2, 2, 16), 16),  # no group
        ([130, 3], [(10, 20)], (7, 1, 32), 4),  # a group that is no power of two, small blocks
        ([33], [(0, 70)], (8, 2, 64), 32),
    ],
)
def test_the_kernel_gives_what_gathered_pages_give(
    kernels, monkeypatch, programs, decodes, chunks, heads, block
):
    """programs: until so many run, the keys of few decodes are split among several."""
    monkeypatch.setattr(kernels, "PROGRAMS", programs)
    want, got = attended(kernels, decodes, chunks, heads, block)
    worst = (got - want).abs().amax((1, 2)) / want.abs().amax((1, 2))
    assert float(worst.max()) < 1e-5


@interpreted
def test_a_kernel_whose_lengths_are_off_by_one_would_be_seen(kernels):
    want, got = attended(kernels, EDGES[1:], [(5, 30)], (4, 2, 16), 16, later=-1)
    assert float((got - want).norm() / want.norm()) > 1e-2


@interpreted
@pytest.mark.parametrize("heads", [(4, 2), (7, 1), (3, 3)])
def test_the_kernel_turns_and_keeps_as_torch_does(kernels, heads):
    count, kv_heads = heads
    qkv = torch.randn(5, count + 2 * kv_heads, 16, device=WHERE)
    cos, sin = torch.randn(2, 5, 1, 16, device=WHERE)
    slot = torch.tensor([9, 3, 0, 17, 5, 8], device=WHERE)[1:]  # as from a buffer: not aligned
    pages = torch.randn(2, 6, 4, kv_heads, 16, device=WHERE)
    want, got = pages.clone(), pages.clone()
    q = [set.keep(qkv, cos, sin, *to, slot) for set, to in ((attention, want), (kernels, got))]
    torch.testing.assert_close(q[1], q[0])
    torch.testing.assert_close(got, want)
    assert (got != pages).any((2, 3, 4)).sum() > 0


@interpreted
def test_the_kernel_gates_as_torch_does(kernels):
    x = 3 * torch.randn(3, 2 * 1_030, device=WHERE)  # more than a block, and not a whole one
    torch.testing.assert_close(kernels.gate(x), attention.gate(x))


# Graphs


@pytest.mark.parametrize("limits", [AMPLE, TIGHT], ids=["ample", "tight"])
def test_replayed_tapes_give_a_plain_forwards_logits(monkeypatch, limits):
    captured = tapes(monkeypatch)
    server = Server(some_requests(), "vllm_v1", limits)
    device = Device(decoder(torch.float64), server, graphs=True, keep_logits=True)
    assert device.graphs
    assert [g.rows for g in device.graphs.graphs.values()] == [8, 4, 2, 1]  # the largest first
    replays = []
    for g in device.graphs.graphs.values():
        g.compute = lambda: pytest.fail("a step was computed anew")
        g.replay = lambda g=g, replay=g.replay: (replays.append(g.rows), replay())
    for _ in server.steps(device.forward, lambda: 0.0):
        pass
    assert device.worst_error(server) < 1e-12
    pools = [pool for _, pool in captured]
    assert pools == [None] + 3 * [pools[1]]
    assert pools[1]
    assert {1, 2, 4} <= set(replays)
    assert (server.state.requests["preemptions"].sum() > 0) == (limits is TIGHT)
