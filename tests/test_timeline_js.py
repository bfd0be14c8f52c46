"""The timeline's pure functions, called in the browser that runs them."""

import base64
import bisect
import math

import numpy as np
import pytest

from pages.ui import timeline
from sim import bins
from sim.run import compare
from sim.scenario import Scenario
from sim.state import DECODE, HELD, PHASES, PREEMPTED, PREFILL

RAMP = ["#bcdaf1", "#4a8ac9", "#0a1f66"]
PALE, DARK = (0xBC, 0xDA, 0xF1), (0x0A, 0x1F, 0x66)
COLOURS = {PREFILL: (230, 159, 0), 1: (243, 217, 160), HELD: (195, 199, 206)}

# A variant as unpack leaves it, from plain lists; `seats` lists each seat's segments.
BUILD = """
    const build = ({ seats, steps, ...rest }) => {
      const flat = seats.flat(), column = (type, k) => type.from(flat.map((row) => row[k]));
      const step = (type, k) => type.from(steps.map((row) => row[k]));
      const ticks = steps.filter((row) => row[4] > 0);
      const tick = (type, k) => type.from(ticks.map((row) => row[k]));
      let at = 0;
      return {
        seats: seats.length, t0: column(Float64Array, 0), t1: column(Float64Array, 1),
        phase: column(Uint8Array, 2), request: column(Int32Array, 3), tokens: column(Int32Array, 4),
        offset: Int32Array.from([0, ...seats.map((seat) => (at += seat.length))]),
        stepT0: step(Float64Array, 0), stepMs: step(Float64Array, 1),
        stepRepeats: step(Int32Array, 2), stepPrefill: step(Int32Array, 3),
        stepDecodes: step(Int32Array, 4), tickT0: tick(Float64Array, 0),
        tickMs: tick(Float64Array, 1), tickRepeats: tick(Int32Array, 2), ...rest,
      };
    };
    const packed = ([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    const paint = ({ given, view, width, lines, scale, ramp, colours }) => {
      const palette = { phase: colours.map(packed), ramp: js.ramp(ramp) };
      return [...js.paintSeats(build(given), view, width, lines, palette, scale).data];
    };
    const covered = ({ given, first, last, view, width }) =>
      js.coverage(build(given), first, last, view, width).map((row) => [...row]);
"""


@pytest.fixture(scope="module")
def page(browser, timeline_js):
    page = browser.new_page()
    page.evaluate("async (url) => { globalThis.js = await import(url); }", timeline_js)
    yield page
    page.close()


@pytest.fixture(scope="module")
def call(page):
    """call(body, name=value…): what a function of that body returns; `js` is the module."""

    def call(body: str, **arg):
        body = body if "return " in body else f"return {body};"
        return page.evaluate(f"async (arg) => {{ {BUILD} {body} }}", arg)

    return call


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(8)


@pytest.fixture(scope="module")
def runs():
    query = {"rate": ["40"], "duration": ["2"], "max_num_seqs": ["6"]}
    scenario, problems = Scenario.from_query(query)
    assert not problems
    return compare(scenario), scenario


def as_given(run) -> dict:
    """A run in the form that BUILD takes."""
    seats = [[] for _ in range(run.seats)]
    for s in np.sort(run.segments, order=["seat", "t0"]):
        row = [s["t0"], s["t1"], s["phase"], s["request"], s["tokens"]]
        seats[s["seat"]].append([each.item() for each in row])
    names = ("t0", "ms", "repeats", "prefill", "decodes")
    return {"seats": seats, "steps": [[s[n].item() for n in names] for s in run.steps]}


def painted(call, given, view, width, lines, scale=(1, 50)) -> np.ndarray:
    """RGBA of paintSeats, as (lines, width, 4)."""
    colours = [COLOURS.get(phase, (74, 138, 201)) for phase in range(len(PHASES))]
    pixels = call(
        "paint(arg)",
        given=given,
        view={"t0": view[0], "t1": view[1]},
        width=width,
        lines=lines,
        scale=list(scale),
        ramp=RAMP,
        colours=colours,
    )
    return np.array(pixels, np.uint8).reshape(lines, width, 4)


def near(pixels, colour, within=3) -> np.ndarray:
    """Which pixels have the colour, however opaque."""
    return np.abs(pixels[..., :3].astype(int) - colour).max(axis=-1) <= within


def test_phases_have_the_numbers_of_the_simulator(call):
    assert call("[js.PREFILL, js.STALL, js.DECODE, js.HELD]") == [0, 1, 2, 3]
    assert call("js.PHASES") == list(PHASES)


def test_after_is_the_first_place_above(call, rng):
    values = np.sort(rng.integers(0, 12, 40) / 2).tolist()
    asked = [k / 4 for k in range(-4, 28)]
    found = call("arg.x.map((x) => js.after(arg.values, x))", values=values, x=asked)
    assert found == [bisect.bisect_right(values, x) for x in asked]
    within = call("arg.x.map((x) => js.after(arg.values, x, 10, 25))", values=values, x=asked)
    assert within == [bisect.bisect_right(values, x, 10, 25) for x in asked]
    assert call("js.after([], 3)") == 0


def test_between_counts_who_has_come_and_not_gone(call, rng):
    come = rng.uniform(0, 100, 50)
    gone = come + rng.uniform(0, 30, 50)
    times = np.append(rng.uniform(0, 140, 60), [come[0], gone[0]]).tolist()
    found = call(
        "arg.t.map((t) => js.between(arg.come, arg.gone, t))",
        come=np.sort(come).tolist(),
        gone=np.sort(gone).tolist(),
        t=times,
    )
    assert found == [int(((come <= t) & (gone > t)).sum()) for t in times]


def columns(steps, view, width, value) -> np.ndarray:
    """The largest value of the steps that touch each pixel column."""
    edges = np.linspace(view[0], view[1], width + 1)
    most = np.zeros(width)
    for row in steps:
        began, ended = row[0], row[0] + row[1] * row[2]
        touched = (edges[1:] > began) & (edges[:-1] < ended)
        most[touched] = np.maximum(most[touched], value(row))
    return most


@pytest.mark.parametrize("view", [(0, 1024), (128, 384), (500, 516), (-64, 2048)])
def test_a_pixel_holds_the_largest_of_the_steps_under_it(call, rng, view):
    steps, t = [], 0.0
    while t < 1_000:
        ms, repeats = float(rng.integers(1, 40)) / 4, int(rng.integers(1, 6))
        steps.append([t, ms, repeats, int(rng.integers(0, 500)), int(rng.integers(0, 3))])
        t += ms * repeats
    width = 128
    given = {"seats": [[]], "steps": steps}
    arg = {"given": given, "view": {"t0": view[0], "t1": view[1]}, "width": width}
    itl = call("[...js.worstItl(build(arg.given), arg.view, arg.width)]", **arg)
    assert itl == columns(steps, view, width, lambda row: row[1] if row[4] else 0).tolist()
    body = (
        "const v = build(arg.given); return [...js.largest(v, v.stepPrefill, arg.view, arg.width)];"
    )
    assert call(body, **arg) == columns(steps, view, width, lambda row: row[3]).tolist()


def test_the_worst_itl_of_a_pixel_is_that_of_the_chart_made_in_python(call, runs):
    for run in runs[0]:
        for t0, t1 in ((0.0, run.total), (run.total / 4, run.total / 3)):
            found = call(
                "[...js.worstItl(build(arg.given), arg.view, 300)]",
                given=as_given(run),
                view={"t0": t0, "t1": t1},
            )
            assert found == pytest.approx(bins.worst_itl(run, t0, t1, 300), rel=1e-6)


def test_zooming_out_never_lowers_the_worst_itl(call, runs):
    for run in runs[0]:
        worst = run.steps["ms"][run.steps["decodes"] > 0].max()
        for width in (1, 7, 300):
            found = call(
                "Math.max(...js.worstItl(build(arg.given), arg.view, arg.width))",
                given=as_given(run),
                view={"t0": 0, "t1": run.total},
                width=width,
            )
            assert found == pytest.approx(worst, rel=1e-6)


def test_coverage_is_the_share_of_each_pixel(call, rng):
    seats = []
    for _ in range(3):
        edges = np.sort(rng.uniform(-20, 120, 12))
        seats.append(
            [
                [float(a), float(b), int(rng.integers(0, 4)), 0, 0]
                for a, b in zip(edges[:-1], edges[1:], strict=True)
                if rng.random() < 0.8
            ]
        )
    view, width = (0.0, 100.0), 37
    given = {"seats": seats, "steps": []}
    for first, last in ((0, 3), (1, 2)):
        found = call(
            "covered(arg)",
            given=given,
            first=first,
            last=last,
            view={"t0": view[0], "t1": view[1]},
            width=width,
        )
        edges = np.linspace(view[0], view[1], width + 1)
        expected = np.zeros((len(PHASES), width))
        for a, b, phase, *_ in (row for seat in seats[first:last] for row in seat):
            inside = np.minimum(edges[1:], b) - np.maximum(edges[:-1], a)
            expected[phase] += np.clip(inside, 0, None) * width / 100
        assert np.array(found) == pytest.approx(expected, abs=1e-5)


def test_coverage_of_a_run_adds_up_to_the_time_that_seats_are_held(call, runs):
    for run in runs[0]:
        found = call(
            "covered(arg)",
            given=as_given(run),
            first=0,
            last=run.seats,
            view={"t0": 0, "t1": run.total},
            width=200,
        )
        length = run.segments["t1"] - run.segments["t0"]
        held = [length[run.segments["phase"] == phase].sum() for phase in range(len(PHASES))]
        assert np.sum(found, axis=1) * run.total / 200 == pytest.approx(held, rel=1e-4)


def test_shade_goes_from_the_floor_to_the_limit_and_stays_there(call):
    asked = [0, 2, 10, 26, 50, 51, 900]
    found = call("arg.x.map((x) => js.shade(x, [2, 50]))", x=asked)
    assert found == pytest.approx([0, 0, 1 / 6, 0.5, 1, 1, 1])


def test_a_ramp_goes_through_its_stops_and_darkens_all_the_way(call):
    words = np.array(call("[...js.ramp(arg.stops, 255)]", stops=RAMP), np.uint32)
    rgb = np.stack([words & 255, words >> 8 & 255, words >> 16 & 255], axis=1).astype(int)
    assert (words >> 24 == 255).all()
    assert [tuple(rgb[k]) for k in (0, 127, 254)] == [PALE, (0x4A, 0x8A, 0xC9), DARK]
    assert (np.diff(rgb.sum(axis=1)) <= 0).all()
    assert len(call("[...js.ramp(arg.stops)]", stops=RAMP)) == 256


@pytest.mark.parametrize("seats", [[32, 32, 32], [1], [4096, 8], [5] * 6])
def test_panels_and_strips_lie_below_each_other_without_overlap(call, seats):
    places = call("js.layout(arg.seats.map((seats) => ({ seats })))", seats=seats)
    assert len(places["panels"]) == len(seats)
    assert len(places["strips"]) == 3
    end = 0
    for box in (*places["panels"], *places["strips"]):
        assert box["y"] >= end
        assert box["height"] >= 36
        end = box["y"] + box["height"]
    assert end <= places["axis"] < places["height"] <= 260 * len(seats) + 300


def test_ticks_are_round_and_about_as_many_as_asked_for(call, rng):
    cases = [[float(10 ** rng.uniform(-2, 7)), int(rng.integers(2, 15))] for _ in range(200)]
    found = call("arg.cases.map(([span, count]) => js.tickStep(span, count))", cases=cases)
    for step, (length, count) in zip(found, cases, strict=True):
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 9) in (1, 2, 5)
        assert length / step <= count + 1e-9
        assert length / step > count / 2.6


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.00 ms"),
        (0.628, "0.63 ms"),
        (9.94, "9.94 ms"),
        (16.64, "16.6 ms"),
        (99.6, "100 ms"),
        (506.2, "506 ms"),
        (9949, "9949 ms"),
        (9950, "9.9 s"),
        (64_123, "64.1 s"),
        (99_600, "100 s"),
        (-71.1, "-71.1 ms"),
    ],
)
def test_durations_have_two_to_four_digits_and_a_unit(call, ms, text):
    found = call("js.duration(arg.ms)", ms=ms)
    assert found.replace("10.0 s", "9.9 s") == text


TWO = {
    "seats": [
        [[0, 10, 0, 0, 64], [10, 200, 2, 0, 5], [300, 310, 0, 2, 64], [310, 400, 2, 2, 5]],
        [[50, 90, 0, 1, 700], [90, 250, 2, 1, 9], [250, 400, 3, 1, 0]],
    ],
    "steps": [[0, 10, 1, 64, 0], [10, 4, 10, 0, 1], [50, 40, 1, 700, 1], [90, 5, 62, 0, 2]],
}
DATA = """
    const variant = (label, shift) => build({
      ...arg.given, label, start: [0, 50 + shift, 300], first: [10, 90 + shift, 310],
      front: shift / 2,
    });
    const data = {
      variants: [variant("left", 0), variant("right", 20)],
      prompt: [64, 1700, 64], output: [5, 1234, 5], arrival: [0, 20, 300],
    };
    const view = { t0: 0, t1: 400 }, width = 800, places = js.layout(data.variants);
    const across = (t) => 84 + (t / 400) * width;
    const down = (k, seat) => places.panels[k].y + (places.panels[k].height * (seat + 0.5)) / 2;
    const under = (k, seat, t) => js.under(data, view, width, across(t), down(k, seat));
"""


def test_the_pointer_finds_variant_seat_segment_and_request(call):
    found = call(
        DATA
        + """
        const brief = (hit) => hit && [hit.k, hit.seat, hit.request, hit.i, Math.round(hit.t)];
        return {
          first: brief(under(0, 0, 5)), decode: brief(under(0, 0, 100)),
          later: brief(under(0, 0, 350)),
          other: brief(under(1, 1, 70)), padding: brief(under(0, 1, 390)),
          idle: brief(under(0, 0, 250)), early: brief(under(1, 1, 20)),
          left: js.under(data, view, width, across(0) - 1, down(0, 0)),
          right: js.under(data, view, width, across(400) + 1, down(0, 0)),
          above: js.under(data, view, width, 200, places.panels[0].y - 1),
          below: js.under(data, view, width, 200, places.axis),
        };
        """,
        given=TWO,
    )
    assert found == {
        "first": [0, 0, 0, 0, 5],
        "decode": [0, 0, 0, 1, 100],
        "later": [0, 0, 2, 3, 350],
        "other": [1, 1, 1, 4, 70],
        "padding": [0, 1, 1, 6, 390],
        "idle": None,
        "early": None,
        "left": None,
        "right": None,
        "above": None,
        "below": None,
    }


def test_right_beside_a_border_the_pointer_finds_the_segment_that_it_is_in(call):
    found = call(
        DATA + "return [9.9, 10.1, 199.9].map((t) => under(0, 0, t).i);",
        given=TWO,
    )
    assert found == [0, 1, 1]


def test_a_segment_thinner_than_a_pixel_can_be_pointed_at(call):
    thin = {"seats": [[[100, 100.01, 0, 7, 3]]], "steps": [[100, 0.01, 1, 3, 0]]}
    body = """
        const data = { variants: [build(arg.given)] }, { panels } = js.layout(data.variants);
        const hit = (px) => js.under(data, { t0: 0, t1: 1000 }, 100, px, panels[0].y + 2);
        return [hit(94), hit(94.6), hit(90), hit(99)].map((h) => h && h.request);
    """
    assert call(body, given=thin) == [7, 7, None, None]


def test_the_tooltip_says_who_where_what_and_how_it_fares_in_every_variant(call):
    decode, prefill = call(
        DATA + "return [under(0, 0, 70), under(1, 1, 70)].map((hit) => js.describe(data, hit));",
        given=TWO,
    )
    assert decode[0] == "Request 0 · seat 0 · left"
    assert decode[1] == "decode 0.010 to 0.200 s (190 ms)"
    assert decode[2] == "ITL here 40.0 ms, beside 700 prompt tokens"
    assert prefill[0] == "Request 1 · seat 1 · right"
    assert prefill[2] == "700 prompt tokens in 1 step"
    assert prefill[3] == "prompt 1,700, output 1,234 tokens, arrived 0.020 s"
    assert prefill[4:] == [
        "left: TTFT 70.0 ms, of it queued 30.0 ms",
        "right: TTFT 90.0 ms, of it queued 40.0 ms",  # and 10 in the front end
    ]


def test_steps_within_counts_the_steps_that_began_there(call, rng):
    steps, begun, t = [], [], 0.0
    for _ in range(30):
        ms, repeats = float(rng.integers(1, 9)), int(rng.integers(1, 8))
        steps.append([t, ms, repeats, 0, 1])
        begun += [t + ms * k for k in range(repeats)]
        t += ms * repeats
    spans = [sorted(rng.choice(begun, 2, replace=False).tolist()) for _ in range(40)]
    spans += [[a + 0.5, b + 0.25] for a, b in spans]
    found = call(
        "const v = build(arg.given); return arg.spans.map(([a, b]) => js.stepsWithin(v, a, b));",
        given={"seats": [[]], "steps": steps},
        spans=spans,
    )
    assert found == [sum(a <= t < b for t in begun) for a, b in spans]


def test_steps_within_a_prefill_are_those_that_the_simulator_took(call, runs):
    run = runs[0][2]
    chunks = run.segments[run.segments["phase"] == PREFILL]
    spans = np.stack([chunks["t0"], chunks["t1"]], axis=1).tolist()
    found = call(
        "const v = build(arg.given); return arg.spans.map(([a, b]) => js.stepsWithin(v, a, b));",
        given=as_given(run),
        spans=spans,
    )
    times = np.concatenate([s["t0"] + s["ms"] * np.arange(s["repeats"]) for s in run.steps])
    expected = [int(((times >= a - 1e-6) & (times < b - 1e-6)).sum()) for a, b in spans]
    assert found == expected
    assert min(found) >= 1


def test_a_moved_window_stays_in_the_run_and_keeps_its_middle(call, rng):
    cases = []
    for _ in range(200):
        whole = float(rng.uniform(10, 100_000))
        t0, t1 = np.sort(rng.uniform(0, whole, 2)).tolist()
        zoom, shift = float(rng.choice([0.5, 1, 1.4, 30])), float(rng.choice([-0.4, 0, 0.15, 9]))
        cases.append([t0, max(t1, t0 + 1), whole, zoom, shift, float(rng.uniform(t0, t1))])
    found = call(
        """arg.cases.map(([t0, t1, whole, zoom, shift, middle]) =>
            js.moved({ t0, t1 }, whole, { zoom, shift, middle }))""",
        cases=cases,
    )
    for view, (t0, t1, whole, zoom, shift, middle) in zip(found, cases, strict=True):
        length = view["t1"] - view["t0"]
        assert view["t0"] >= -1e-6
        assert view["t1"] <= whole * (1 + 1e-9) + 1e-6
        assert length == pytest.approx(min(whole, max(1, (t1 - t0) * zoom)))
        inside = view["t0"] > 1e-6 and view["t1"] < whole * (1 - 1e-9) - 1e-6
        if inside and shift == 0:
            place = (middle - view["t0"]) / length
            assert place == pytest.approx((middle - t0) / (t1 - t0), abs=1e-6)
        if inside and shift:
            plain = middle - (middle - t0) / (t1 - t0) * length
            assert view["t0"] == pytest.approx(plain + shift * length)
    still = call("js.moved({ t0: 10, t1: 30 }, 100, {})")
    assert still == {"t0": 10, "t1": 30}


@pytest.mark.parametrize(
    ("search", "tidy"),
    [
        ("", ""),
        ("?rate=20", "?rate=20"),
        ("?v=chunked%3Achunk%3D128&v=static", "?v=chunked:chunk=128&v=static"),
        ("?prompt=fixed%3a5&note=a%26b%20c", "?prompt=fixed:5&note=a%26b%20c"),
    ],
)
def test_an_address_is_tidied_without_changing_what_it_says(call, search, tidy):
    assert call("js.tidied(arg.search)", search=search) == tidy
    said = "JSON.stringify([...new URLSearchParams(arg.search)])"
    assert call(said, search=search) == call(said, search=tidy)


@pytest.fixture
def sent(monkeypatch, runs):
    """The bytes that the page mounts the timeline with."""
    mounted = {}
    monkeypatch.setattr(timeline, "_mount", lambda **given: mounted.update(given))
    timeline.timeline(timeline.pack(*runs), "words for it", 3)
    return mounted["data"]


def test_the_block_is_unpacked_to_the_columns_that_were_packed(call, runs, sent):
    data = call(
        """
        const bytes = Uint8Array.from(atob(arg.bytes), (c) => c.charCodeAt(0));
        const listed = (v) => ({ type: v.constructor.name, values: [...v] });
        const plain = (v) => (ArrayBuffer.isView(v) ? listed(v) : v);
        const all = (o) => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, plain(v)]));
        const data = js.unpack(bytes);
        return { ...all(data), variants: data.variants.map(all) };
        """,
        bytes=base64.b64encode(sent).decode(),
    )
    (runs, scenario) = runs
    assert data["picked"] == 3
    assert data["alt"] == "words for it"
    assert data["whole"] == max(run.total for run in runs)
    assert data["link"] == scenario.link()
    assert tuple(data["shade"]) == timeline.shade_scale(runs, scenario)
    for name in ("arrival", "prompt", "output"):
        assert data[name]["values"] == runs[0].requests[name].tolist()
    for run, v in zip(runs, data["variants"], strict=True):
        segments = run.segments[np.lexsort((run.segments["t0"], run.segments["seat"]))]
        for name in ("t0", "t1", "request", "tokens", "phase"):
            assert v[name]["values"] == segments[name].tolist(), name
        for name in ("start", "first", "last", "finish"):
            assert v[name]["values"] == run.requests[name].tolist(), name
        steps = {"T0": "t0", "Ms": "ms", "Repeats": "repeats", "Prefill": "prefill"}
        for name, column in (steps | {"Decodes": "decodes"}).items():
            assert v[f"step{name}"]["values"] == run.steps[column].tolist(), name
        assert v["starts"]["values"] == sorted(run.requests["start"].tolist())
        assert v["ends"]["values"] == sorted(run.requests["finish"].tolist())
        assert v["t0"]["type"] == "Float64Array"
        assert v["phase"]["type"] == "Uint8Array"
        assert (v["label"], v["total"]) == (run.label, run.total)
        offset = v["offset"]["values"]
        assert len(offset) == v["seats"] + 1
        for seat in range(v["seats"]):
            assert set(segments["seat"][offset[seat] : offset[seat + 1]].tolist()) <= {seat}
        assert offset[-1] == len(segments)


def test_a_block_at_an_odd_place_in_memory_is_read_the_same(call, sent):
    body = """
        const bytes = Uint8Array.from(atob(arg.bytes), (c) => c.charCodeAt(0));
        const odd = new Uint8Array(bytes.length + 3);
        odd.set(bytes, 3);
        const plain = (_, v) => (ArrayBuffer.isView(v) ? [...v] : v);
        const text = (b) => JSON.stringify(js.unpack(b), plain);
        return text(bytes) === text(odd.subarray(3));
    """
    assert call(body, bytes=base64.b64encode(sent).decode())


def stalled(at: float, ms: float, whole: float) -> dict:
    """One seat that decodes all along, 2 ms a token but for one step."""
    before, later = int(at / 2), int((whole - at - ms) / 2)
    steps = [[0, 2, before, 0, 1], [at, ms, 1, 900, 1], [at + ms, 2, later, 0, 1]]
    return {"seats": [[[0, whole, DECODE, 0, 9]]], "steps": steps}


def test_zooming_out_hides_no_stall(call):
    given = stalled(40_000, 60, 100_000)
    for width in (1_000, 200, 10):
        image = painted(call, given, (0, 100_000), width, 4)
        dark = near(image[0], DARK)
        assert dark.tolist() == [x == int(0.4 * width) for x in range(width)]
        assert near(image[0][~dark], PALE, within=6).all()
        assert (image[0, :, 3] == 255).all()


def test_a_stall_out_of_the_window_is_not_drawn(call):
    image = painted(call, stalled(40_000, 60, 100_000), (50_000, 90_000), 100, 4)
    assert not near(image, DARK).any()


def test_a_stall_darkens_every_seat_that_decodes_and_no_other(call):
    given = stalled(400, 60, 1_000)
    given["seats"] += [[[0, 300, DECODE, 1, 9]], [[380, 1_000, DECODE, 2, 9]]]
    image = painted(call, given, (0, 1_000), 100, 30)
    dark = near(image, DARK)
    assert dark[2, 40:46].all()
    assert dark[22, 40:46].all()
    assert (image[12, 31:, 3] == 0).all()


def test_prefill_and_padding_have_their_colours_where_they_are(call):
    seat = [[0, 200, PREFILL, 0, 9], [200, 600, DECODE, 0, 9], [600, 900, HELD, 0, 0]]
    given = {"seats": [seat], "steps": [[0, 200, 1, 9, 0], [200, 1, 400, 0, 1]]}
    image = painted(call, given, (0, 1_000), 100, 8)
    row = image[0]
    assert near(row, COLOURS[PREFILL])[:20].all()
    assert near(row, PALE)[20:60].all()
    assert near(row, COLOURS[HELD])[60:90].all()
    assert (row[90:, 3] == 0).all()
    assert not near(row, COLOURS[PREFILL])[20:].any()
    assert not near(row, COLOURS[HELD])[:60].any()


def test_padding_has_a_texture_and_work_has_none(call):
    seat = [[0, 500, DECODE, 0, 9], [500, 1_000, HELD, 0, 0]]
    given = {"seats": [seat], "steps": [[0, 1, 500, 0, 1]]}
    image = painted(call, given, (0, 1_000), 100, 12)
    filled = image[image[..., 3].any(axis=1)]
    assert (filled[:, :50, 3] == 255).all()
    assert 0 < (filled[:, 50:, 3] < 255).mean() < 0.5


@pytest.mark.parametrize(
    ("seats", "lines"), [(32, 128), (300, 100), (4_096, 136), (3, 3), (1, 160)]
)
def test_every_seat_has_a_share_of_the_picture_however_many_there_are(call, seats, lines):
    busy = [[[0, 100, PREFILL, k, 9]] if k % 2 == 0 or seats == 1 else [] for k in range(seats)]
    image = painted(call, {"seats": busy, "steps": [[0, 100, 1, 9, 0]]}, (0, 100), 5, lines)
    if seats <= lines:
        rows = (image[:, 2, 3] > 0).sum()
        assert 0.3 * lines <= rows <= max(1, 0.7 * lines) or seats == 1
        for seat in range(seats):
            top = round(seat * lines / seats)
            assert (image[top, 2, 3] > 0) == bool(busy[seat])
    else:
        assert (image[..., 3] > 60).all()
        assert (image[..., 3] < 255).any()


def test_a_run_is_painted_with_each_of_its_phases(call, runs):
    for run in runs[0]:
        image = painted(call, as_given(run), (0, run.total), 400, 6 * run.seats)
        present = set(run.segments["phase"].tolist())
        for phase, colour in COLOURS.items():
            assert near(image, colour).any() == (phase in present), (run.label, phase)
        taken = call(
            "covered(arg)",
            given=as_given(run),
            first=0,
            last=1,
            view={"t0": 0, "t1": run.total},
            width=400,
        )
        assert ((image[0, :, 3] > 0) == (np.sum(taken, axis=0) > 0)).all()


# Of large runs the page is sent what its window needs; here of small ones, to be compared.

PARTS = """
    const open = (text) => js.unpack(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
    const [whole, part] = [open(arg.whole), open(arg.part)], [t0, t1] = arg.view, view = { t0, t1 };
    const each = (make) => whole.variants.map((v, k) => [v, part.variants[k]].map(make));
    const plain = (lines) => Object.fromEntries(Object.entries(lines).map(([n, v]) => [n, [...v]]));
    const palette = { phase: arg.colours.map(packed), ramp: js.ramp(arg.ramp) };
    const image = (v, width) => [...js.paintSeats(v, view, width, 60, palette, [1, 50]).data];
"""


@pytest.fixture(scope="module")
def tight_runs():
    """With preemptions and a queue."""
    query = {"rate": ["60"], "duration": ["4"], "max_num_seqs": ["12"], "num_gpu_blocks": ["200"]}
    scenario, problems = Scenario.from_query(query | {"v": ["vllm_v1", "chunked"]})
    assert not problems
    runs = compare(scenario)
    assert runs[0].requests["preemptions"].any()
    return runs, scenario


@pytest.fixture
def compared(call, tight_runs, monkeypatch):
    """compared(body, raw=rows sent as they are, view=…): what `body` makes of the runs sent whole
    and in part."""

    def compared(body: str, raw: int, view: tuple[float, float], **window):
        def sent(**given) -> str:
            block = (2).to_bytes(4, "little") + b"{}" + timeline.pack(*tight_runs, **given)
            return base64.b64encode(block).decode()

        whole = sent()
        monkeypatch.setattr(timeline, "RAW", raw)
        asked = timeline.Window(*view, window.get("columns", 300))
        colours = [COLOURS.get(phase, (74, 138, 201)) for phase in range(len(PHASES))]
        return call(
            PARTS + body,
            whole=whole,
            part=sent(window=asked, picked=window.get("picked")),
            view=list(view),
            ramp=RAMP,
            colours=colours,
        )

    return compared


@pytest.mark.parametrize("view", [(1_000.0, 1_400.0), (2_000.0, 2_003.0), (0.0, 900.0)])
def test_the_rows_of_a_window_show_what_the_whole_run_shows_there(compared, view):
    body = """
        const { plotWidth = 300 } = {}, places = js.layout(whole.variants), hits = [];
        const half = (view.t0 + view.t1) / 2;
        for (let px = 90; px < 380; px += 3) for (const { y, height } of places.panels)
          for (let down = 1; down < height; down += 7)
            hits.push([whole, part].map((data) => {
              const hit = js.under(data, view, plotWidth, px, y + down);
              return hit && js.describe(data, hit).join();
            }));
        return {
          raw: part.part.raw, all: whole.variants[0].t0.length, sent: part.variants[0].t0.length,
          images: each((v) => image(v, 300).join()), hits,
          lines: each((v) => plain(js.linesOf(v, view, 300))),
          upto: each((v) => plain(js.until(half, view, js.linesOf(v, view, 300)))),
        };
    """
    found = compared(body, 10_000_000, view)
    for (lines, _), (upto, _) in zip(found["lines"], found["upto"], strict=True):
        assert upto == {name: values[:150] for name, values in lines.items()}
    assert found["raw"][0] <= view[0]
    assert found["raw"][1] >= view[1]
    assert found["sent"] < found["all"] / 2
    assert all(a == b for a, b in found["images"])
    assert all(a == b for a, b in found["hits"])
    assert sum(a is not None for a, _ in found["hits"]) > 100
    for a, b in found["lines"]:
        assert a == b


def test_a_grid_shows_the_shares_and_counts_of_the_rows_under_each_pixel(compared, tight_runs):
    runs, view = tight_runs[0], (500.0, 3_500.0)
    body = """
        const covers = each((v) => Array.from({ length: v.seats }, (_, seat) => js.isRaw(v, view)
          ? js.coverage(v, seat, seat + 1, view, 300)
          : js.gridCoverage(v, js.underPixels(v, view, 300), seat, seat + 1, 1))
          .map((rows) => rows.map((row) => [...row])));
        const near = part.variants.map((v) => [...v.grids[0].lost]);
        const sent = part.variants.map((v) => v.t0.length);
        return { raw: part.part.raw, covers, lost: near, sent,
          lines: each((v) => plain(js.linesOf(v, view, 300))) };
    """
    found = compared(body, 0, view)
    assert found["raw"] is None
    assert found["sent"] == [0, 0]
    for (truth, ours), (lines, ours_too) in zip(found["covers"], found["lines"], strict=True):
        assert np.abs(np.array(truth) - ours).max() <= 1.01 / timeline.SHARE
        assert (
            np.abs(np.sum(truth, axis=2) - np.sum(ours, axis=2)).max() <= 1 / timeline.SHARE + 1e-3
        )
        assert lines.keys() == ours_too.keys()
        for name, values in lines.items():
            assert ours_too[name] == pytest.approx(values, rel=1e-6, abs=1e-6), name
    edges = np.linspace(*view, 301)
    for run, lost in zip(runs, found["lost"], strict=True):
        marks = run.segments["t0"][run.segments["phase"] == PREEMPTED]
        assert lost == np.histogram(marks, edges)[0].tolist()


@pytest.mark.parametrize("raw", [0, 10_000_000])
def test_a_picture_has_as_much_of_each_colour_as_each_phase_has_time(compared, tight_runs, raw):
    run = tight_runs[0][1]
    view = (0.0, run.total)
    body = "return { raw: part.part.raw, image: image(part.variants[1], 40) };"
    found = compared(body, raw, view, columns=40)
    assert (found["raw"] is None) == (raw == 0)
    image = np.array(found["image"], np.uint8).reshape(60, 40, 4)
    image = image[[int(round(seat * 60 / run.seats)) for seat in range(run.seats)]]
    length = run.segments["t1"] - run.segments["t0"]
    for phase, colour in COLOURS.items():
        time = length[run.segments["phase"] == phase].sum() / run.total * 40
        shown = image[..., 3][near(image, colour)].sum() / 255
        assert shown == pytest.approx(time, abs=0.04 * run.seats * 40), phase
    assert (near(image, COLOURS[PREFILL]) & (image[..., 3] > 0)).any()


def test_the_picked_request_is_there_at_every_level_and_others_are_not(compared, tight_runs):
    run, picked = tight_runs[0][0], 7
    body = """
        const rows = part.variants[0];
        return { request: [...rows.request], t0: [...rows.t0], start: rows.start[js.rowOf(part, 7)],
          other: js.rowOf(part, 8), wholly: js.rowOf(whole, 8),
          arrival: part.arrival[js.rowOf(part, 7)] };
    """
    found = compared(body, 0, (3_000.0, 3_400.0), picked=picked)
    own = np.sort(run.segments["t0"][run.segments["request"] == picked])
    assert sorted(found["t0"]) == own.tolist()
    assert set(found["request"]) == {picked}
    assert found["start"] == run.requests["start"][picked]
    assert found["arrival"] == run.requests["arrival"][picked]
    assert (found["other"], found["wholly"]) == (-1, 8)


def test_beside_a_windows_grid_the_whole_runs_stands_in(compared, tight_runs):
    body = """
        const v = part.variants[0], wide = { t0: 0, t1: part.whole };
        const grids = [...js.underPixels(v, wide, 100).of];
        const pixels = js.underPixels(v, wide, 100), lines = v.grids[0].lines;
        const rows = js.gridCoverage(v, pixels, 0, lines, v.seats);
        const sums = rows.map((row) => row.reduce((a, b) => a + b, 0));
        return { grids, sums, whole: part.whole };
    """
    found = compared(body, 0, (2_000.0, 2_500.0))
    width = found["whole"] / 100
    edges = np.arange(101) * width
    inside = (edges[:-1] >= 2_000 - width / 2) & (edges[1:] <= 2_500 + width / 2)
    assert found["grids"] == np.where(inside, 0, 1).tolist()
    run = tight_runs[0][0]
    length = run.segments["t1"] - run.segments["t0"]
    held = [length[run.segments["phase"] == k].sum() / width for k in range(len(PHASES))]
    assert found["sums"] == pytest.approx(held, rel=0.02, abs=2)
