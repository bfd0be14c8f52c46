"""Trace files: samples of each format with their traps, real slices, and what can't be read."""

from pathlib import Path

import numpy as np
import pytest

from sim import traces
from sim.parameter import ScenarioError
from sim.traffic import LONGEST, Traffic
from sim.workload import Workload, draw

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
        (PLAIN + "0,1,2\n").encode() + b"\xff\xfe,1,2\n",
        (PLAIN + "0,1,2\n").encode() + b"\0" * 100,
        (PLAIN + "0,1,2\n").encode("utf-16"),
    ],
    ids=["png", "zip", "every byte", "bad byte at the end", "zeros at the end", "utf-16"],
)
def test_binary_content_is_told_what_a_trace_looks_like(content):
    assert "arrival_ms,prompt_len,output_len" in refusal(content)


@pytest.mark.parametrize(
    "header",
    [
        "ContextTokens,TIMESTAMP,GeneratedTokens\n",
        "TIMESTAMP,GeneratedTokens,ContextTokens\n",
        "arrival_ms,prompt_len\n",
        "a,b,c\n",
    ],
)
def test_a_header_with_swapped_missing_or_other_columns_is_told_the_right_ones(header):
    sentence = refusal(header + "1,2,3\n")
    for form in traces.TRACES.values():
        assert ",".join(form.columns) in sentence


@pytest.mark.parametrize("last", ["5,6", "5", "5,6,7,8", '5,"6\n7,8'])
def test_a_truncated_or_overlong_row_is_named_by_line(last):
    assert any(f"{word}3" in refusal(PLAIN + "0,1,2\n" + last) for word in ("line ", "Row #"))


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
    sentence = refusal(PLAIN + "0,1,2\n" + row + "\n6,1,2\n")
    assert "line 3" in sentence
    assert column in sentence
    assert value in sentence


@pytest.mark.parametrize(
    "when",
    ["4808", "16/11/2023 18:17", "2023-02-31 18:17:03", "yesterday", "", "nan"],
)
def test_a_cell_that_is_no_date_is_named_with_line_and_value(when):
    sentence = refusal(AZURE_2023 + when + ",7,8\n")
    assert "line 5" in sentence
    assert "TIMESTAMP" in sentence
    assert when in sentence


@pytest.mark.parametrize("when", ["9999-12-31 00:00:00", "1500-01-01 00:00:00"])
def test_a_date_too_far_to_count_in_nanoseconds_is_refused_and_does_not_wrap_around(when):
    assert when in refusal(AZURE + "2023-11-16 18:17:03,5,6\n" + when + ",7,8\n")


def test_columns_swapped_under_the_right_header_are_named():
    sentence = refusal(AZURE + "4808,2023-11-16 18:17:03.9799600,10\n")
    assert "line 2" in sentence
    assert "2023-11-16 18:17:03" in sentence or "4808" in sentence


def test_a_line_is_counted_as_an_editor_counts_it():
    assert "line 5" in refusal(PLAIN + "0,1,2\n\n\n1,0,2\n")


def test_a_file_over_the_limit_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(traces, "MAX_UPLOAD_MB", 1)
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


@pytest.mark.parametrize("form", traces.TRACES.values(), ids=lambda form: form.name)
def test_every_format_is_told_apart_by_its_header(form):
    others = [t for t in traces.TRACES.values() if t is not form]
    assert form.columns not in [t.columns for t in others]
    assert form.label
