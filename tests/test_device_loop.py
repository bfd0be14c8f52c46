"""What the device computes: the batching is real, whatever the scheduler does."""

import functools

import numpy as np
import pytest
import torch
from strategies import workload

import gpu_probe.attention as attention
from gpu_probe.batch import BlockTable, alike
from gpu_probe.device import Device, choose
from gpu_probe.loop import Server
from gpu_probe.models import SHAPES, Decoder
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.state import Limits

torch.set_num_threads(1)
AMPLE, TIGHT = Limits(8, 128, 24, 16, 400, 128), Limits(8, 130, 24, 4, 46, 128)


@functools.cache
def decoder(dtype: torch.dtype) -> Decoder:
    return Decoder(SHAPES["tiny"], dtype=dtype, longest=160)


def some_requests(seed: int = 0, count: int = 12):
    rng = np.random.default_rng(seed)
    return workload(
        [
            (float(g), int(p), int(o))
            for g, p, o in zip(
                rng.integers(0, 4, count),
                rng.integers(1, 90, count),
                rng.integers(1, 38, count),
                strict=True,
            )
        ]
    )


def served(policy, limits, dtype=torch.float64, seed=0, **options):
    """(device, server) when all requests are served; the pool is whole again."""
    if policy == "vllm_v0":
        limits = limits._replace(max_num_batched_tokens=256)
    server = Server(some_requests(seed), policy, limits)
    device = Device(decoder(dtype), server, keep_logits=True, **options)
    now = iter(range(10**9))
    for _ in server.steps(device.forward, lambda: float(next(now))):
        pass
    device.table.follow(np.zeros_like(device.table.held))
    assert sorted(device.table.free) == list(range(device.blocks))
    return device, server


def worst(*args, **options) -> float:
    device, server = served(*args, **options)
    return device.worst_error(server)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limits", [AMPLE, TIGHT], ids=["ample", "tight"])
def test_every_tokens_logits_are_those_of_a_plain_forward(policy, limits):
    device, server = served(policy, limits)
    assert device.worst_error(server) < 1e-12
    if limits is TIGHT and POLICIES[policy].paged and not policy.startswith("sglang"):
        assert server.state.requests["preemptions"].sum() > 0


def test_in_float32_too():
    assert worst("vllm_v1", TIGHT, torch.float32) < 1e-5


def off_by_one_chunk(chunk):
    def broken(q, keys, values, table, kv):
        return chunk(q, keys, values, table, max(kv - 1, 1))

    return broken


def off_by_one_decodes(decodes):
    def broken(q, keys, values, table, length):
        return decodes(q, keys, values, table, length - 1)

    return broken


@pytest.mark.parametrize(
    ("part", "breaks"), [("chunk", off_by_one_chunk), ("decodes", off_by_one_decodes)]
)
def test_a_mask_off_by_one_would_be_seen(part, breaks, monkeypatch):
    monkeypatch.setattr(attention, part, breaks(getattr(attention, part)))
    assert worst("chunked", AMPLE) > 1e-2


@pytest.mark.parametrize("limits", [AMPLE, TIGHT], ids=["ample", "tight"])
def test_decodes_over_static_buffers_give_the_same(limits):
    device, server = served("vllm_v1", limits, graphs=True)
    assert device.worst_error(server) < 1e-12
    assert device.graphs is not None
    assert device.graphs.buckets == [1, 2, 4, 8]


def test_rows_that_pad_a_bucket_write_to_the_spare_block_only():
    server = Server(some_requests(), "chunked", AMPLE)
    device = Device(decoder(torch.float64), server, graphs=True)
    assert device.graphs
    before, width = device.cache.clone(), device.table.ids.shape[1]
    nobody = np.zeros(0, np.int64)
    device.graphs.graphs[8].step(nobody, nobody, nobody, np.zeros((0, width), np.int64))
    changed = (device.cache != before).flatten(3).any(-1).any(0).any(0)
    assert changed.nonzero().tolist() == [[device.blocks]]


def test_only_rows_that_emit_pay_for_the_head(monkeypatch):
    rows = []
    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, x: rows.append(len(x)) or logits(self, x))
    _, server = served("chunked", AMPLE)
    assert sum(rows) == server.state.requests["output"].sum()


def test_padding_of_a_static_batch_is_computed_and_changes_nothing(monkeypatch):
    tokens = []
    hidden = Decoder.hidden
    monkeypatch.setattr(
        Decoder,
        "hidden",
        lambda self, ids, *rest: tokens.append(len(ids)) or hidden(self, ids, *rest),
    )
    _, server = served("static", AMPLE)
    steps = server.run("").steps
    charged = steps["prefill"] + steps["decodes"] + steps["pad_prefill"] + steps["pad_decodes"]
    assert tokens == charged.tolist()
    assert (steps["pad_prefill"] + steps["pad_decodes"]).sum() > 0


def test_bad_askings_are_answered_with_the_way_out(monkeypatch):
    with pytest.raises(ScenarioError, match="use cpu, cuda or auto"):
        choose("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ScenarioError, match="use --device cpu"):
        choose("cuda")
    assert choose("auto") == "cpu"
    cached = Server(some_requests(), "vllm_v1", AMPLE._replace(enable_prefix_caching=1))
    with pytest.raises(ScenarioError, match="enable_prefix_caching is 0 on the device"):
        Device(decoder(torch.float64), cached)
    long = Server(workload([(0.0, 900, 9)]), "chunked", AMPLE)
    with pytest.raises(ScenarioError, match="909 tokens is longer than the model's 160"):
        Device(decoder(torch.float64), long)


def test_what_a_device_dies_of_is_one_sentence(monkeypatch):
    server = Server(some_requests(), "chunked", AMPLE)
    device = Device(decoder(torch.float64), server)
    for error, said in (
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of device mem",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "out of memory",
        ),
        (RuntimeError("CUDA error: unspecified launch failure\nmore"), "the device was lost"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "install gcc"),
    ):
        monkeypatch.setattr(device, "eager", lambda plan, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(ScenarioError, match=said):
            next(Server.steps(server, device.forward, lambda: 0.0))
        server = Server(some_requests(), "chunked", AMPLE)


def test_decodes_of_like_length_stand_together_and_every_one_once():
    assert alike(np.zeros(0, int)) == []
    assert alike(np.array([1, 1, 2, 3, 4, 7, 8])) == [(0, 2, 1), (2, 4, 3), (4, 6, 7), (6, 7, 8)]


def test_a_table_gives_each_block_to_one_request_and_takes_it_back():
    table = BlockTable(3, 6, 4, 16)
    table.follow(np.array([2, 3, 0]))
    table.follow(np.array([1, 3, 2]))
    held = [table.ids[i, k] for i, count in enumerate(table.held) for k in range(count)]
    assert len(set(held)) == len(held) == 6
    assert table.free == []
