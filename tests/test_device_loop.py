"""What the device computes: the batching is real, whatever the scheduler does."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from strategies import workload

import gpu_probe.attention as attention
from gpu_probe.batch import BlockTable, Plan, alike, known_to, token_ids
from gpu_probe.device import Device, choose
from gpu_probe.loop import Server
from gpu_probe.models import SHAPES, Decoder
from sim.parameter import ScenarioError
from sim.policies import POLICIES
from sim.state import Limits, State
from sim.workload import Workload

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


def served(policy, limits, dtype=torch.float64, work=None, look=lambda *both: None, **options):
    """(device, server) when all are served. look(device, state) sees each step when computed."""
    if policy == "vllm_v0":
        limits = limits._replace(max_num_batched_tokens=256)
    server = Server(some_requests() if work is None else work, policy, limits)
    device = Device(decoder(dtype), server, keep_logits=True, **options)
    now = iter(range(10**9))

    def forward(s) -> None:
        device.forward(s)
        look(device, s)

    for _ in server.steps(forward, lambda: float(next(now))):
        pass
    device.forward(server.state)
    return device, server


def is_whole(device: Device) -> bool:
    """Whether each block of the pool can be had again, and none twice."""
    everything = device.table.take(device.blocks, lambda: np.zeros(0, np.int64))
    return device.held == len(everything) == len(set(everything))


def worst(*args, **options) -> float:
    device, server = served(*args, **options)
    return device.worst_error(server)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limits", [AMPLE, TIGHT], ids=["ample", "tight"])
def test_every_tokens_logits_are_those_of_a_plain_forward(policy, limits):
    device, server = served(policy, limits)
    assert device.worst_error(server) < 1e-12
    assert is_whole(device)
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
    nobody = np.zeros(0, np.int64)
    table = BlockTable(3, 6, 4, 16, (nobody, np.zeros(4, np.int64)))
    for blocks in ([2, 3, 0], [1, 3, 2]):
        plan = Plan(nobody, nobody, nobody, 0, nobody, np.array(blocks), 0)
        table.follow(plan, lambda: nobody)
    held = [table.ids[i, k] for i, count in enumerate(table.held) for k in range(count)]
    assert len(set(held)) == len(held) == 6
    assert table.free == []


# Prefix caching

CACHING = [name for name, p in POLICIES.items() if "enable_prefix_caching" in p.keeps]
SHARES = Limits(8, 32, 24, 4, 400, 160)._replace(
    enable_prefix_caching=1, chunked_prefill_size=32, schedule_conservativeness=0.0
)


def named(texts: list[list], prompts: list[int], block_size: int, arrival=None) -> Workload:
    """Requests of these tokens, of which so many are the prompt."""
    seen: dict[tuple, int] = {}
    flat, total = [], np.array([len(text) for text in texts])
    for text in texts:
        ends = range(block_size, len(text) + 1, block_size)
        flat += [seen.setdefault(tuple(text[:end]), len(seen)) for end in ends]
    begins = np.append(0, (total // block_size).cumsum())
    arrival = np.zeros(len(texts)) if arrival is None else arrival
    output = total - np.array(prompts)
    known = np.array(flat, np.int64), begins
    return Workload(arrival, np.array(prompts), output, output, identities=known)


def conversations(seed: int, block_size: int, count: int = 12) -> Workload:
    """Some go on from where another was, or from what it answered, and one may answer the same."""
    rng, texts, prompts, token = np.random.default_rng(seed), [], [], iter(range(10**9))
    for i in range(count):
        before = texts[rng.integers(i)] if i and rng.random() < 0.7 else []
        prompt = before[: rng.choice([int(rng.integers(len(before) + 1)), len(before)])][:80]
        prompt = prompt + [next(token) for _ in range(rng.integers(not prompt, 30))]
        same = (
            before[len(prompt) :] if before[: len(prompt)] == prompt and rng.random() < 0.5 else []
        )
        answer = [next(token) for _ in range(rng.integers(1, 30))]
        texts.append(prompt + same[: len(answer)] + answer[len(same) :])
        prompts.append(len(prompt))
    return named(texts, prompts, block_size, np.sort(rng.integers(0, 12, count)).astype(float))


def no_more_than_counted(device: Device, s: State) -> None:
    """The blocks in use and those that are known are at most what the scheduler has of either."""
    table = device.table
    kept = table.home[known_to(s, table.named)]
    there = np.union1d(np.flatnonzero(table.users), kept[kept >= 0])
    assert len(there) <= device.blocks - s.n.blank


def shared(policy: str, seed: int, **options):
    """(device, server, requests) of conversations that fill the pool more than once."""
    block_size = 1 if policy.startswith("sglang_0_4_0") else 4
    work = conversations(seed, block_size)
    longest = -(-int((work.prompt + work.output).max()) // block_size)
    limits = SHARES._replace(
        block_size=block_size, num_gpu_blocks=2 * longest + seed * longest // 2
    )
    return *served(policy, limits, work=work, **options), work


@pytest.mark.parametrize("policy", CACHING)
@pytest.mark.parametrize("seed", [1, 2])
def test_with_blocks_shared_the_logits_are_those_of_a_plain_forward(policy, seed):
    device, server, work = shared(policy, seed, look=no_more_than_counted, graphs=seed == 1)
    assert device.worst_error(server) < 1e-12
    assert is_whole(device)
    s = server.state
    computed = s.steps["prefill"][: s.n.steps].sum()
    assert computed < work.prompt.sum() + s.requests["recomputed"].sum()
    assert len(np.unique(device.table.named[0])) > device.blocks  # some were forgotten
    if policy.startswith("vllm"):
        assert s.requests["preemptions"].sum() > 0


def wrong_block(table, plan, known, follow=BlockTable.follow):
    table.home[:] = np.roll(table.home, 1)
    follow(table, plan, known)


def forgotten_too_early(table, plan, known, follow=BlockTable.follow):
    follow(table, plan, lambda: np.zeros(0, np.int64))


def other_tokens(prompt, longest, vocab, block_size, named):
    identities, begins = named
    return token_ids(prompt, longest, vocab, block_size, (identities[:0], 0 * begins))


@pytest.mark.parametrize("breaks", [wrong_block, forgotten_too_early, other_tokens])
def test_a_wrong_block_would_be_seen(breaks, monkeypatch):
    if breaks is other_tokens:
        monkeypatch.setattr("gpu_probe.device.token_ids", breaks)
    else:
        monkeypatch.setattr(BlockTable, "follow", breaks)
    device, server, _ = shared("vllm_v1", 1, blocks=999 if breaks is wrong_block else None)
    assert device.worst_error(server) > 1e-2


def test_who_begins_alike_reads_the_same_full_blocks_computed_in_the_same_step():
    alike, found = list(range(10)), []
    work = named([alike + [20, 21, 22, 23], alike + [30, 31, 32, 33]], [12, 13], 4)
    device, server = served(
        "vllm_v1", SHARES, work=work, look=lambda d, s: found.append(d.table.ids[:, :3].copy())
    )
    assert device.worst_error(server) < 1e-12
    one, other = found[0]
    assert one[:2].tolist() == other[:2].tolist()
    assert one[2] != other[2]
    assert server.state.steps["prefill"][0] == 12 + 13 - 8


def test_a_known_block_stays_where_it_is_until_it_is_forgotten():
    long, found = list(range(10)), {}
    texts = [[*long, 20], [*long, 30], [*range(100, 140)], [*long, 40]]
    work = named(texts, [10, 8, 38, 10], 4, np.array([0.0, 50.0, 100.0, 150.0]))

    def look(device, s):
        seated = s.seats[s.seats >= 0]
        found.update((int(i), (device.table.ids[i, :2].tolist(), device.held)) for i in seated)

    device, server = served("vllm_v1", SHARES._replace(num_gpu_blocks=11), work=work, look=look)
    assert device.worst_error(server) < 1e-12
    assert found[0] == found[1] == (found[0][0], 3)
    # The second one's prompt is full blocks alone: its last one is computed, and was there already.
    prompts = server.state.steps["prefill"][: server.state.n.steps]
    assert prompts[prompts > 0].tolist() == [10, 4, 32, 6, 10]


def test_a_block_that_another_fills_in_the_same_step_is_shared_whoever_is_the_older():
    text = list(range(12))  # of the second: a prompt of 6, and block 1 is full in the third step
    work = named([[*text[:8], 30, 31, 32], text, [40, 41, 42]], [10, 6, 1], 4)
    work = replace(work, priority=np.array([1.0, 0.0, 0.0]))
    limits = SHARES._replace(max_num_seqs=2)  # the third leaves after the second step
    device, server = served("vllm_v1_priority", limits, work=work)
    assert server.state.steps["prefill"][:3].tolist() == [7, 0, 2]
    assert device.worst_error(server) < 1e-12
