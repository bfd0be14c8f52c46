"""Trace files: samples of each format with their traps, real slices, and what can't be read."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import bring, files, traces
from sim.parameter import ScenarioError
from sim.scenario import Slo
from sim.traffic import LONGEST, Lengths, Traffic
from sim.workload import Workload, draw, spread

FILES = Path(__file__).parents[2] / "shared" / "cases" / "files"
shared = pytest.mark.skipif(not FILES.is_dir(), reason="the real slices are not here")

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival_ms,prompt_len,output_len\n"

AZURE_2023 = AZURE + (
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:03.9799601,3180,8\n"
    "2023-11-16 18:17:04.0319600,110,27\n"
)
AZURE_2024 = AZURE + (
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:00.017335+00:00,2399,6\n"
    "2024-05-10 00:00:01+00:00,76,15\n"
)


def read(text: str) -> Workload:
    return traces.read(text.encode(), "f.csv")[1]


def rows(w: Workload) -> list[tuple]:
    return list(zip(w.arrival.tolist(), w.prompt.tolist(), w.output.tolist(), strict=True))


def test_azure_2023_has_fractions_of_seven_digits_and_keeps_them():
    form, w = traces.read(AZURE_2023.encode())
    assert form.name == "azure"
    assert rows(w) == [(0.0, 4808, 10), (0.0001, 3180, 8), (52.0, 110, 27)]
    assert w.limit.tolist() == w.output.tolist()


def test_azure_2024_has_offsets_and_fractions_that_come_and_go():
    assert rows(read(AZURE_2024)) == [(0.0, 2162, 5), (7.405, 2399, 6), (990.07, 76, 15)]


def test_offsets_from_utc_count():
    w = read(AZURE + "2024-05-10 02:00:01.5+02:00,5,6\n2024-05-10 00:00:00Z,7,8\n")
    assert rows(w) == [(0.0, 7, 8), (1500.0, 5, 6)]


def test_the_plain_form_counts_from_its_first_arrival():
    w = read(PLAIN + "1000.25,5,6\n1000.5,7,8\n")
    assert rows(w) == [(0.0, 5, 6), (0.25, 7, 8)]


def test_rows_out_of_order_are_sorted_and_ties_stay_as_they_stand():
    table = [(float(k * 7 % 5), k + 1, 1) for k in range(200)]
    w = read(PLAIN + "".join(f"{at},{prompt},{output}\n" for at, prompt, output in table))
    assert rows(w) == sorted(table, key=lambda row: row[0])


@pytest.mark.parametrize("sample", [AZURE_2023, AZURE_2024, PLAIN + "0,5,6\n0.5,7,8\n"])
@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n").rstrip("\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text + "\n\n",
        lambda text: text.replace("\n", "\n\n"),
    ],
    ids=["CRLF", "no final newline", "both", "byte order mark", "blank end", "blank lines"],
)
def test_line_ends_and_byte_order_marks_change_nothing(sample, written):
    assert rows(read(written(sample))) == rows(read(sample))


@shared
@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("azure_2023/AzureLLMInferenceTrace_code.csv", 8_819, (4808, 10), (549, 173)),
        ("azure_2023/AzureLLMInferenceTrace_conv.csv", 19_366, (374, 44), (197, 183)),
        ("azure_2024/code_1week_head5.csv", 5, (2162, 5), (7670, 8)),
    ],
)
def test_the_real_slices_are_read_whole(name, count, first, last):
    form, w = traces.read((FILES / name).read_bytes(), name)
    assert form.name == "azure"
    assert len(w) == count
    assert (w.prompt[0], w.output[0]) == first
    assert (w.prompt[-1], w.output[-1]) == last
    assert w.arrival[0] == 0
    assert np.all(np.diff(w.arrival) >= 0)
    assert len(draw(Traffic(arrivals="trace", trace="x", first=100), w)) == min(100, count)


@shared
def test_the_last_rows_of_the_conversation_trace_are_those_of_the_whole():
    whole, tail = (
        traces.read((FILES / "azure_2023" / name).read_bytes())[1]
        for name in ("AzureLLMInferenceTrace_conv.csv", "conv_last40_no_final_newline.csv")
    )
    assert tail.prompt.tolist() == whole.prompt[-40:].tolist()
    assert tail.output.tolist() == whole.output[-40:].tolist()
    assert tail.arrival == pytest.approx(whole.arrival[-40:] - whole.arrival[-40])


def refusal(content: str | bytes, filename: str = "f.csv") -> str:
    """The sentence that a file gets; it names the file, and stands on one line."""
    content = content.encode() if isinstance(content, str) else content
    with pytest.raises(ScenarioError) as caught:
        traces.read(content, filename)
    sentence = str(caught.value)
    assert sentence.startswith(filename)
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


@pytest.mark.parametrize("content", ["", " \r\n\n"])
def test_an_empty_file_is_named(content):
    assert "is empty" in refusal(content)


@pytest.mark.parametrize("content", [PLAIN, PLAIN.strip(), AZURE, PLAIN + "\n\n"])
def test_a_header_without_requests_is_named(content):
    assert "no request" in refusal(content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"PK\x03\x04" + b"\0" * 200,
        bytes(range(256)) * 20,
    ],
    ids=["png", "zip", "every byte"],
)
def test_binary_content_is_told_what_a_trace_looks_like(content):
    assert "arrival_ms,prompt_len,output_len" in refusal(content)


@pytest.mark.parametrize("mark", ["utf-16", "utf-16-be", "utf-32"])
def test_another_encoding_is_named_or_at_least_not_read(mark):
    sentence = refusal((PLAIN + "0,1,2\n").encode(mark))
    assert "UTF-16" in sentence or "another encoding" in sentence


@pytest.mark.parametrize("header", ["arrival_ms,prompt\n", "a,b,c\n"])
def test_a_header_that_lacks_columns_is_told_the_plain_ones(header):
    assert PLAIN.strip() in refusal(header + "1,2,3\n")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("TIMESTAMP,ContextTokens,Generated", "Azure LLM inference .* lacks the column Generated"),
        ("arrival_ms;prompt_len;output_len", "between semicolons: save it with commas"),
        ('{"timestamp": 1, "input_length": 1, "hash_ids": []}', "lacks the key output_length"),
    ],
)
def test_a_header_that_is_almost_right_says_what_is_wrong(header, said):
    with pytest.raises(ScenarioError, match=f"^f, line 1: .*{said}"):
        traces.reading(f"{header}\n1,2,3\n".encode(), "f")


def test_cells_in_quotes_are_read_like_others():
    text = '"TIMESTAMP","ContextTokens","GeneratedTokens"\n"2024-05-10 00:00:01+00:00","5","7"\n'
    assert traces.read(text.encode())[1].output.tolist() == [7]


def test_the_report_says_when_the_first_arrives_and_in_what_the_file_counts():
    plain = b"arrival_ms,prompt_len,output_len\n5000,1,2\n6000,1,2\n"
    assert "the file has times in ms, the first at 5,000 ms" in said_of(plain)
    dates = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,4,5\n"
    assert "dates, the first at 2023-11-16 18:15:46.680" in said_of(dates)


def said_of(content: bytes) -> str:
    return bring.as_text(bring.report(bring.bring(content, "f"), Slo()))


def test_rates_of_columns_in_another_order_are_refused_before_they_are_drawn():
    with pytest.raises(ScenarioError, match="start_s is no multiple of 600"):
        traces.reading(b"1.3,600,8,Weibull,0.4,0.4\n0.2,1200,6,Gamma,0.4,3\n", "f")
    with pytest.raises(ScenarioError, match="ask for 60,000,000 requests, over 20,000,000"):
        traces.reading(b"600,100000,8,Weibull,0.4,0.4\n", "f")


def test_columns_are_taken_by_name_in_whatever_order_and_among_others():
    swapped = "GeneratedTokens,NumImages,TIMESTAMP,ContextTokens\n"
    w = read(swapped + "10,1,2023-11-16 18:17:03.9799600,4808\n")
    assert rows(w) == [(0.0, 4808, 10)]


def bad(text: str | bytes) -> list[tuple[int, str]]:
    """The rows that are listed as bad; all others are read."""
    content = text.encode() if isinstance(text, str) else text
    found = traces.reading(content, "f.csv")
    assert len(found.workload) == found.rows - found.bad_rows
    assert len(found.bad) == found.bad_rows
    return list(found.bad)


GOOD = PLAIN + "0,1,2\n"
MORE = "6,1,2\n7,1,2\n"


@pytest.mark.parametrize("row", ["5,6", "5", "5,6,7,8", '5,"6'])
def test_a_truncated_or_overlong_row_is_listed_by_line(row):
    ((line, reason),) = bad(GOOD + row + "\n" + MORE)
    assert line == 3
    assert "where the header has 3" in reason


@pytest.mark.parametrize("row", [b"\xff\xfe,1,2", b"5,1,\xe4"])
def test_bytes_that_are_no_text_make_their_row_a_bad_one(row):
    ((line, _),) = bad(GOOD.encode() + row + b"\n" + MORE.encode())
    assert line == 3


def test_a_file_of_which_more_than_half_is_bad_is_refused_and_names_the_first():
    sentence = refusal(GOOD + "5,0,1\n6,-1,1\n")
    assert "line 3" in sentence
    assert "2 of 3 rows" in sentence


def test_only_the_first_bad_rows_are_listed_and_all_are_counted():
    text = PLAIN + "".join(f"{k},1,{k % 2}\n" for k in range(400))
    found = traces.reading(text.encode())
    assert found.bad_rows == 200
    assert [b.line for b in found.bad] == [2 + 2 * k for k in range(traces.LISTED)]


def test_bad_rows_of_a_later_piece_have_their_lines(monkeypatch):
    monkeypatch.setattr(files, "PIECE", 64)
    monkeypatch.setattr(files.lines, "__defaults__", (64,))
    text = PLAIN + "".join(f"{k},{0 if k in (3, 77) else 5},6\n" for k in range(100))
    found = traces.reading(text.encode())
    assert [b.line for b in found.bad] == [5, 79]
    assert rows(found.workload) == [(float(k), 5, 6) for k in range(100) if k not in (3, 77)]


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("5,0,7", "prompt_len", "0"),
        ("5,3,-7", "output_len", "-7"),
        ("5,NaN,7", "prompt_len", ""),
        ("5,,7", "prompt_len", ""),
        ("nan,3,7", "arrival_ms", ""),
        ("inf,3,7", "arrival_ms", "inf"),
        ("5,inf,7", "prompt_len", "inf"),
        ("5,1.5,7", "prompt_len", "1.5"),
        ("5,3,abc", "output_len", "abc"),
        ("5,3," + "9" * 5_000, "output_len", "9999"),
        (f"5,{LONGEST + 1},7", "prompt_len", f"{LONGEST + 1}"),
        ("2023-11-16 18:17:03,3,7", "arrival_ms", "2023-11-16"),
    ],
)
def test_a_cell_that_is_no_number_of_its_kind_is_named_with_line_and_value(row, column, value):
    ((line, reason),) = bad(GOOD + row + "\n" + MORE)
    assert line == 3
    assert column in reason
    assert value[:40] in reason


@pytest.mark.parametrize(
    "when",
    ["4808", "16/11/2023 18:17", "2023-02-31 18:17:03", "yesterday", "", "nan"],
)
def test_a_cell_that_is_no_date_is_named_with_line_and_value(when):
    ((line, reason),) = bad(AZURE_2023 + when + ",7,8\n")
    assert line == 5
    assert "TIMESTAMP" in reason
    assert when in reason


@pytest.mark.parametrize("when", ["9999-12-31 00:00:00", "1500-01-01 00:00:00"])
def test_a_date_too_far_to_count_in_nanoseconds_is_listed_and_does_not_wrap_around(when):
    ((line, reason),) = bad(AZURE + "2023-11-16 18:17:03,5,6\n" + when + ",7,8\n")
    assert line == 3
    assert when in reason


def test_columns_swapped_under_the_right_header_are_named():
    sentence = refusal(AZURE + "4808,2023-11-16 18:17:03.9799600,10\n")
    assert "line 2" in sentence
    assert "2023-11-16 18:17:03" in sentence or "4808" in sentence


def test_a_line_is_counted_as_an_editor_counts_it():
    assert bad(GOOD + "\n\n1,0,2\n" + MORE)[0][0] == 5


def test_a_file_over_the_limit_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(files, "MAX_UPLOAD_MB", 1)
    sentence = refusal(b"\xff" * 1_000_001)
    assert "1 MB" in sentence
    assert "SLOTSCOPE_MAX_UPLOAD_MB" in sentence
    big_enough = PLAIN + "0,1,2\n" * 160_000
    assert len(big_enough) < 1_000_000
    assert len(read(big_enough)) == 160_000


def test_a_link_names_a_file_by_its_content():
    one, two = PLAIN.encode(), (PLAIN + "0,1,2\n").encode()
    assert traces.name_of(one) == traces.name_of(bytes(one)) != traces.name_of(two)
    assert traces.name_of(one).isalnum()


def test_a_packed_file_that_unpacks_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(files, "MAX_UPLOAD_MB", 1)
    packed = gzip.compress((PLAIN + "0,1,2\n" * 400_000).encode())
    assert len(packed) < 1_000_000
    assert "unpacks to more than 1 MB" in refusal(packed)


def test_a_file_by_path_has_no_limit_and_is_unpacked(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "MAX_UPLOAD_MB", 0)
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE_2024.encode()))
    assert len(traces.read(path)[1]) == 3


def test_a_packed_file_that_is_cut_is_named():
    assert "can't be unpacked" in refusal(gzip.compress(AZURE_2024.encode())[:-12])


# A sample of every other format, written here in its shape, and what it holds.

MOONCAKE = "".join(
    json.dumps(row) + "\n"
    for row in (
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 0, "input_length": 1300, "output_length": 6, "hash_ids": [0, 1, 2]},
        {"output_length": 1, "timestamp": 3000, "input_length": 513, "hash_ids": [0, 3]},
    )
)
SAMPLES = {
    "azure": (AZURE_2023, [(0.0, 4808, 10), (0.0001, 3180, 8), (52.0, 110, 27)]),
    "plain": (PLAIN + "7,5,6\n", [(0.0, 5, 6)]),
    "burstgpt": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log"
        " Type\n19440110.0,a,4,GPT-4,90,44,134,API log\n19440111.5,,2,GPT-4,30,0,30,API log\n"
        "19440112.0,,2,GPT-4,31,7,38,API log\n",
        [(0.0, 90, 44), (2000.0, 31, 7)],
    ),
    "mooncake": (MOONCAKE, [(0.0, 1000, 5), (0.0, 1300, 6), (3000.0, 513, 1)]),
    "qwen_bailian": (
        '{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20,'
        ' "output_length": 3, "type": "text", "turn": 1, "hash_ids": [0, 1]}\n',
        [(0.0, 20, 3)],
    ),
    "splitwise": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.5,396,9\n",
        [(0.0, 374, 44), (4500.0, 396, 9)],
    ),
    "splitwise_sim": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
        "\n0,2,0,1,1,4096,32\n1,2,0,3,1,2048,8\n",
        [(0.0, 4096, 32), (2000.0, 2048, 8)],
    ),
    "vllm_workload": (
        '{"input_toks": 9, "output_toks": 5, "arrival_time_ns": 1000000}\n'
        '{"input_toks": 8, "output_toks": 4, "arrival_time_ns": 3500000}\n',
        [(0.0, 9, 5), (2.5, 8, 4)],
    ),
    "aibrix": (
        '{"timestamp": 21, "requests": [{"Prompt Length": 9, "Output Length": 2, "prompt": ""},'
        ' {"Prompt Length": 7, "Output Length": 3, "prompt": ""}]}\n'
        '{"timestamp": 26, "requests": [{"Prompt Length": 5, "Output Length": 4, "prompt": ""}]}\n',
        [(0.0, 9, 2), (0.0, 7, 3), (5.0, 5, 4)],
    ),
}
OTHERS = {
    "lengths_only": "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n9,3,12,3\n",
    "servegen": "0,1.5,2.0,Gamma,0.5,1.3\n600,0,0,,0,0\n1200,0.5,2.0,Weibull,0.6,1.0\n",
}


def test_there_is_a_sample_of_every_format():
    assert SAMPLES.keys() | OTHERS.keys() == traces.TRACES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_recognised_and_read(name):
    text, expected = SAMPLES[name]
    found = traces.reading(text.encode())
    assert found.form.name == name
    assert rows(found.workload) == expected
    assert found.bad_rows == 0


def test_failures_of_burstgpt_are_left_out_and_counted():
    found = traces.reading(SAMPLES["burstgpt"][0].encode())
    assert found.left_out == {"failed: no response tokens": 1}


def test_lengths_alone_ask_for_a_rate_and_are_drawn_from():
    w = read(OTHERS["lengths_only"])
    with pytest.raises(ScenarioError, match="choose arrivals poisson and a rate"):
        draw(Traffic(arrivals="trace", trace="x"), w)
    lengths = Lengths("trace")
    traffic = Traffic(arrivals="poisson", rate=5, duration=4, prompt=lengths, output=lengths)
    drawn = draw(traffic, w)
    assert set(drawn.prompt.tolist()) == {9}
    assert set(drawn.output.tolist()) == {3}


def test_rates_by_window_become_arrivals_at_about_that_rate_with_drawn_lengths():
    w = read(OTHERS["servegen"])
    for low, high, rate in ((0, 600, 1.5), (600, 1200, 0.0), (1200, 1800, 0.5)):
        within = ((w.arrival >= 1e3 * low) & (w.arrival < 1e3 * high)).sum()
        assert within == pytest.approx(600 * rate, rel=0.35)
    with pytest.raises(ScenarioError, match="choose arrivals timed"):
        draw(Traffic(arrivals="trace", trace="x"), w)
    drawn = draw(Traffic(arrivals="timed", trace="x", first=50, prompt=Lengths("fixed", (7,))), w)
    assert len(drawn) == 50
    assert set(drawn.prompt.tolist()) == {7}


def test_ticks_are_said_and_spread():
    found = traces.reading((MOONCAKE * 1).encode())
    assert any("share 2 arrival times, 3 s apart" in note for note in found.notes)
    spread = draw(Traffic(arrivals="trace", trace="x", spread=1), found.workload)
    assert spread.arrival.tolist() == [0.0, 1500.0, 3000.0]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_spread_arrivals_keep_their_order_and_their_tick(ticks):
    arrival = np.sort(np.array(ticks, float)) * 3000
    out = spread(arrival)
    assert np.all(np.diff(out) >= 0)
    times = np.unique(arrival)
    assert np.array_equal(times, np.unique(out[np.isin(out, times)]))
    nexts = np.append(times[1:], np.inf)
    assert np.all(out < nexts[np.searchsorted(times, arrival)])


def shared_blocks(w: Workload, size: int, a: int, b: int) -> int:
    """How many of the leading blocks of two requests are the same."""
    flat, offsets = w.blocks(size)
    one, two = (flat[offsets[k] : offsets[k + 1]] for k in (a, b))
    n = min(len(one), len(two))
    differ = np.flatnonzero(one[:n] != two[:n])
    return int(differ[0]) if len(differ) else n


@pytest.mark.parametrize("size", [16, 48, 512, 1024, 7])
def test_hashes_of_512_tokens_share_as_many_tokens_at_any_block_size(size):
    w = read(MOONCAKE)
    # The first two share ids 0 and 1: tokens 0 to 999, all that the first has; the third only id 0.
    assert shared_blocks(w, size, 0, 1) == 1000 // size
    assert shared_blocks(w, size, 0, 2) == 512 // size
    flat, offsets = w.blocks(size)
    assert np.array_equal(np.diff(offsets), (w.prompt + w.output) // size)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 39)),
        min_size=2,
        max_size=5,
    ),
)
def test_two_blocks_are_the_same_exactly_where_the_trace_says_that_their_tokens_are(
    tokens, size, prompts
):
    """Against tokens written out: a chain of choices names a block, as a prefix's hash does."""
    names, ids, texts = {}, [], []
    for choices, cut in prompts:
        chain = [names.setdefault(tuple(choices[: k + 1]), len(names)) for k in range(len(choices))]
        length = len(choices) * tokens - min(cut, tokens - 1)
        if length < len(choices) * tokens:  # a last block that is not full is its own
            chain[-1] = names.setdefault((*choices, "cut", length), len(names))
        ids.append(chain)
        texts.append([x for name in chain for x in [(name, k) for k in range(tokens)]][:length])
    prompt = np.array([len(text) for text in texts])
    one = np.ones(len(prompt), np.int64)
    flat = np.concatenate([np.array(chain) for chain in ids])
    begins = np.append(0, np.cumsum([len(chain) for chain in ids]))
    w = Workload(0.0 * one, prompt, one, one, hashes=(flat, begins, tokens))
    ours, offsets = w.blocks(size)
    prefixes = {}  # of tokens -> id
    for i, text in enumerate(texts):
        for k in range(len(text) // size):
            prefix = tuple(text[: (k + 1) * size])
            assert prefixes.setdefault(prefix, ours[offsets[i] + k]) == ours[offsets[i] + k]
    assert len(set(prefixes.values())) == len(prefixes)


def test_a_hash_list_of_another_block_size_is_bad():
    rows = [json.loads(line) for line in MOONCAKE.splitlines()]
    rows[1]["hash_ids"] = [0]
    ((line, reason),) = bad("".join(json.dumps(row) + "\n" for row in rows))
    assert line == 2
    assert "512" in reason


MOONCAKE_LINE = '{"timestamp": %s, "input_length": %s, "output_length": 5, "hash_ids": [9]}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"timestamp": 1, "input_length": 5', "no JSON object"),
        (
            '{"timestamp": "now", "input_length": 5, "output_length": 5, "hash_ids": [9]}',
            "timestamp",
        ),
        (
            '{"timestamp": 1, "input_length": null, "output_length": 5, "hash_ids": [9]}',
            "input_length",
        ),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": 9}', "hash_ids"),
        ("[1, 2]", "no JSON object"),
        ("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "no JSON object"),
    ],
)
def test_a_bad_line_of_json_is_listed_with_what_is_wrong(line, said):
    first, rest = MOONCAKE.split("\n", 1)
    ((number, reason),) = bad(f"{first}\n{line}\n{rest}")
    assert number == 2
    assert said in reason


def test_a_csv_of_no_known_format_is_read_by_columns_named_by_hand():
    text = 'when,user,in,out\n2024-01-01 00:00:01,"a, b",100,20\n2024-01-01 00:00:00,b,200,30\n'
    mapping = {"arrival_date": "when", "prompt_len": "in", "output_len": "out"}
    w = traces.reading(text.encode(), "f.csv", mapping).workload
    assert rows(w) == [(0.0, 200, 30), (1000.0, 100, 20)]
    seconds = "s,in,out\n5,1,2\n7.5,3,4\n"
    mapping = {"arrival_s": "s", "prompt_len": "in", "output_len": "out"}
    assert rows(traces.reading(seconds.encode(), "f.csv", mapping).workload) == [
        (0.0, 1, 2),
        (2500.0, 3, 4),
    ]
    with pytest.raises(ScenarioError, match="no column 'nope'"):
        traces.reading(seconds.encode(), "f.csv", mapping | {"prompt_len": "nope"})


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_done_to_a_file_it_is_read_or_refused_in_one_sentence(data):
    """Cut, doubled, bytes changed, columns swapped: nothing else may come out."""
    text = data.draw(st.sampled_from([t for t, _ in SAMPLES.values()] + list(OTHERS.values())))
    content = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        kind = data.draw(st.sampled_from(["cut", "insert", "swap", "lines"]))
        if kind == "cut":
            del content[at : at + data.draw(st.integers(1, 40))]
        elif kind == "insert":
            content[at:at] = data.draw(
                st.one_of(
                    st.binary(max_size=9),
                    st.sampled_from(
                        [b"=1+1", b",", b'"', b"\n", b"\0", b"1e999", b"-1", b"NaN", b"\xff\xfe"]
                    ),
                )
            )
        elif kind == "swap":
            content = bytearray(
                b"\n".join(
                    b",".join(reversed(line.split(b","))) for line in bytes(content).split(b"\n")
                )
            )
        else:
            content += content[at:]
    w = outcome(bytes(content))
    if isinstance(w, str):
        assert "\n" not in w
        assert w.startswith("f")
    else:
        assert len(w) > 0
        assert np.all(np.diff(w.arrival) >= 0) or np.isnan(w.arrival).all()
        assert w.prompt.min() >= 0


def outcome(content: bytes) -> Workload | str:
    """What a file holds, or why it is refused."""
    try:
        return traces.reading(content, "f").workload
    except ScenarioError as error:
        return str(error)


@shared
@pytest.mark.parametrize(
    ("name", "form", "count", "span_s"),
    [
        ("burstgpt/BurstGPT_1_rows1-21.csv", "burstgpt", 20, 1067),
        ("burstgpt/BurstGPT_3_rows1-2.csv", "burstgpt", 2, 51),
        ("mooncake/synthetic_lines1-400.jsonl", "mooncake", 400, 109.36),
        ("mooncake/conversation_trace.jsonl", "mooncake", 12_031, 3537),
        ("qwen_bailian/thinking_row1.jsonl", "qwen_bailian", 1, 0),
        ("splitwise/vidur_splitwise_conv_rows1-2000.csv", "splitwise", 2_000, 424.3),
        ("splitwise/splitwise-sim_test_trace.csv", "splitwise_sim", 3, 3),
        ("aibrix_workload/5s_prompts_blanked.jsonl", "aibrix", 203, 4.97),
        ("vllm_engine_requests/sharegpt_workload_lengths_300.jsonl", "vllm_workload", 300, 29.1),
        ("lengths_only/vidur_arxiv_summarization_rows1-2000.csv", "lengths_only", 2_000, np.nan),
        ("servegen/m-large_chunk-0-trace_lines1-800.csv", "servegen", None, 478_700),
    ],
)
def test_the_other_real_slices_are_read_whole(name, form, count, span_s):
    found = traces.reading(FILES / name, name)
    assert found.form.name == form
    assert found.bad_rows == 0
    assert count is None or len(found.workload) == count
    assert found.workload.arrival[-1] / 1e3 == pytest.approx(span_s, rel=2e-3, nan_ok=True)


@shared
def test_splitwise_has_the_rows_of_azures_conversations():
    ours, theirs = (
        traces.read(FILES / name)[1]
        for name in (
            "splitwise/vidur_splitwise_conv_rows1-2000.csv",
            "azure_2023/AzureLLMInferenceTrace_conv.csv",
        )
    )
    assert ours.prompt.tolist() == theirs.prompt[:2000].tolist()
    assert ours.arrival == pytest.approx(theirs.arrival[:2000], abs=1e-3)


@shared
def test_the_conversation_trace_repeats_its_prefixes_under_prefix_caching():
    w = traces.read(FILES / "mooncake" / "conversation_trace.jsonl")[1].rows(np.arange(200))
    flat, offsets = w.blocks(16)
    seen = 1 - len(np.unique(flat)) / len(flat)
    assert 0.05 < seen < 0.9
    assert len(np.diff(offsets)) == 200
