"""A scenario and its link say the same; whatever can't be had is named."""

import json
import time
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim import run, scenario
from sim.parameter import Parameter, ScenarioError
from sim.policies import POLICIES
from sim.scenario import (
    CHANGEABLE,
    COSTING,
    HOST,
    LIMITS,
    MAX_VARIANTS,
    OPENING,
    PARAMETERS,
    SLO,
    TRAFFIC,
    Scenario,
    Slo,
    Variant,
)
from sim.state import Limits
from sim.traffic import ARRIVALS, USES, Lengths, Traffic
from sim.workload import Workload

laws = settings(max_examples=60, deadline=None)
TIGHT = {"rate": 50.0, "duration": 600.0, "requests": 20_000, "first": 20_000}  # below the caps


def value_of(p: Parameter) -> st.SearchStrategy:
    """Anything that the parameter may be."""
    high = TIGHT.get(p.name, p.high)
    if isinstance(p.default, int):
        return st.integers(int(p.low), int(high))
    return st.floats(p.low, high)


def some_of(names) -> st.SearchStrategy[dict]:
    """Values for any of these parameters, or for none."""
    optional = {name: value_of(PARAMETERS[name]) for name in names if name in PARAMETERS}
    return st.fixed_dictionaries({}, optional=optional)


tokens = st.integers(1, 1_000_000)
ends = st.lists(tokens, min_size=2, max_size=2).map(sorted)
lognormal = st.builds(
    lambda median, sigma, ends: Lengths("lognormal", (median, sigma, *ends)),
    st.floats(1, 1e6),
    st.floats(0, 10),
    ends,
)
others = st.one_of(
    ends.map(lambda ends: Lengths("uniform", tuple(ends))),
    tokens.map(lambda n: Lengths("fixed", (n,))),
    st.just(Lengths("trace")),
)
variants = st.builds(
    lambda policy, changes: Variant(policy, tuple(changes.items())),
    st.sampled_from(list(POLICIES)),
    some_of(CHANGEABLE),
)


@st.composite
def traffics(draw) -> Traffic:
    """Any traffic, with values of its own only in the fields that play a part."""
    arrivals = draw(st.sampled_from(list(ARRIVALS)))
    fields = draw(some_of(USES[arrivals]))
    for name in {"prompt", "output"} & set(USES[arrivals]):
        fields[name] = draw(lognormal if arrivals == "module" else st.one_of(lognormal, others))
    traffic = Traffic(arrivals=arrivals, **fields)
    if "trace" in traffic.uses:
        traffic = replace(traffic, trace=draw(st.text("0123456789abcdef", max_size=16)))
    return traffic


def round_trip(s: Scenario):
    assume(not s.problem)
    assert Scenario.from_query(s.to_query()) == (s, [])
    assert Scenario.from_url("https://host" + s.link()) == (s, [])
    assert Scenario.from_query(Scenario.query_of(s.to_json())) == (s, [])


def sentence(query: dict | str) -> str:
    """The one thing that is said about a query."""
    is_url = isinstance(query, str)
    s, problems = Scenario.from_url(query) if is_url else Scenario.from_query(query)
    assert len(problems) == 1, problems
    assert not s.problem
    assert "\n" not in problems[0]
    return problems[0]


@given(traffic=traffics())
@laws
def test_a_link_says_all_of_the_traffic(traffic):
    round_trip(Scenario(traffic=traffic))


@given(lengths=lognormal)
@laws
def test_a_link_says_all_of_a_length_distribution(lengths):
    assert Lengths.parse("prompt", str(lengths)) == lengths


@given(variants=st.lists(variants, min_size=1, max_size=MAX_VARIANTS, unique=True), data=st.data())
@laws
def test_a_link_says_all_of_the_variants(variants, data):
    baseline = data.draw(st.integers(0, len(variants) - 1))
    round_trip(Scenario(variants=tuple(variants), baseline=baseline))


@given(limits=some_of(LIMITS), cost=some_of(COSTING), slo=some_of(SLO))
@laws
def test_a_link_says_all_of_the_server(limits, cost, slo):
    usual = {name: p.default for name, p in COSTING.items()}
    costs = tuple((usual | cost).values())
    round_trip(Scenario(limits=Limits(**limits), cost=costs, slo=Slo(**slo)))


@pytest.mark.parametrize("name", PARAMETERS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_parameter_is_read_from_its_own_name(name, data):
    value = data.draw(value_of(PARAMETERS[name]))
    user = next((a for a in ARRIVALS if name in USES[a]), "module")
    s, problems = Scenario.from_query({"arrivals": [user], name: [repr(value)]})
    assume(not problems)
    assert s.value(name) == value


def test_the_opening_scenario_has_an_empty_link():
    assert Scenario().to_query() == {}
    assert Scenario().link() == "/"
    assert Scenario.from_url("http://localhost:8501/") == (Scenario(), [])


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_default_that_is_spelled_out_is_left_out_again(name):
    s, problems = Scenario.from_query({name: [str(PARAMETERS[name].default)]})
    assert (s, problems) == (Scenario(), [])
    assert s.to_query() == {}


def test_what_plays_no_part_is_left_out():
    traffic = Traffic(arrivals="burst", rate=99, clients=3, burstiness=4)
    assert Scenario(traffic=traffic).to_query() == {"arrivals": ["burst"]}


def test_a_link_reads_as_people_write_it():
    s = Scenario(
        traffic=Traffic(rate=16, prompt=Lengths("lognormal", (700, 0.5, 64, 4096))),
        variants=(Variant("static"), Variant("chunked", (("chunk", 8),))),
        baseline=0,
    )
    assert (
        s.link()
        == "/?v=static&v=chunked:chunk=8&baseline=0&prompt=lognormal:700:0.5:64:4096&rate=16"
    )


def test_the_last_of_several_values_counts():
    s, problems = Scenario.from_url("/?rate=5&rate=7")
    assert (s.traffic.rate, problems) == (7, [])


@pytest.mark.parametrize("name", ["colour", "Rate", "max-num-seqs", "x" * 500, "", "<b>"])
def test_an_unknown_name_is_named_and_left_out(name):
    said = sentence({name: ["5"], "rate": ["7"]})
    assert repr(name[:40]) in said
    assert len(said) < 150


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "1e999", "many", "", "1,5", "0x10", "9" * 900]
)
def test_a_text_that_is_no_number_in_range_is_named_with_what_would_be(name, text):
    said = sentence({name: [text]})
    assert said.startswith(f"{name} ")
    assert PARAMETERS[name].span in said
    assert len(said) < 200


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_value_out_of_range_is_named_with_the_range(name):
    p = PARAMETERS[name]
    for value in (p.low - 1, p.high * 2):
        said = sentence({name: [f"{value:.15g}"]})
        assert said.startswith(f"{name} ")
        assert "out of range" in said
        assert p.span in said


@pytest.mark.parametrize("name", [n for n, p in PARAMETERS.items() if isinstance(p.default, int)])
def test_a_fraction_of_what_is_counted_whole_is_named(name):
    assert sentence({name: ["0.5"]}).startswith(f"{name} 0.5 is not whole")


def test_the_rest_of_a_link_holds_where_one_value_cannot():
    s, problems = Scenario.from_url("/?rate=nan&seed=7&v=static&v=nobody")
    assert s == Scenario(traffic=Traffic(seed=7), variants=(Variant("static"),), baseline=0)
    assert [p.split()[0] for p in problems] == ["rate", "v"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fcfs", "'fcfs' is no policy"),
        ("", "'' is no policy"),
        ("chunked:rate=3", "'rate'"),
        ("chunked:chunk", "chunk ''"),
        ("chunked:chunk=0", "chunk 0 is out of range"),
        ("chunked:chunk=x", "chunk 'x'"),
        ("chunked:chunk=1.5", "chunk 1.5"),
        ("chunked:", "''"),
        ("static:overhead_ms=-1", "overhead_ms -1"),
    ],
)
def test_a_variant_that_cannot_be_had_is_named(text, named):
    assert named in sentence({"v": [text]})
    with pytest.raises(ScenarioError):
        Variant.parse(text)


@pytest.mark.parametrize(
    ("text", "variant", "label"),
    [
        ("static", Variant("static"), "static"),
        ("chunked:chunk=128", Variant("chunked", (("chunk", 128),)), "chunked 128"),
        (
            "continuous:max_num_batched_tokens=2048",
            Variant("continuous", (("max_num_batched_tokens", 2048),)),
            "continuous batched_tokens 2048",
        ),
        (
            "chunked:chunk=8:max_num_seqs=4",
            Variant("chunked", (("chunk", 8), ("max_num_seqs", 4))),
            "chunked 8 seqs 4",
        ),
    ],
)
def test_a_variant_is_read_and_said(text, variant, label):
    assert Variant.parse(text) == variant
    assert str(variant) == text
    assert variant.label == label


@given(pair=st.lists(variants, min_size=2, max_size=2, unique=True))
@laws
def test_variants_that_differ_have_labels_that_differ(pair):
    one, two = pair
    assert one.label != two.label


def test_long_numbers_keep_variants_apart():
    one, two = (Variant("chunked", (("max_num_batched_tokens", n),)) for n in (1234567, 1234568))
    assert one.label != two.label
    assert Variant.parse(str(one)) == one


def test_a_variant_has_its_own_limits_and_cost_and_the_scenarios_for_the_rest():
    s = Scenario(limits=Limits(max_num_seqs=5), cost=(1.0, 2.0, 3.0, 4.0))
    variant = Variant.parse("chunked:chunk=8:decode_base_ms=9")
    assert s.limits_of(variant) == Limits(max_num_seqs=5, chunk=8)
    assert s.cost_of(variant).coefficients == (1.0, 2.0, 9.0, 4.0)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"v": ["static", "static"]}, "'static' is given twice"),
        ({"v": ["static", "continuous"], "baseline": ["2"]}, "baseline 2"),
        (
            {"v": [f"chunked:chunk={n}" for n in range(1, MAX_VARIANTS + 2)]},
            f"{MAX_VARIANTS + 1} variants",
        ),
        ({"arrivals": ["carrier pigeon"]}, "'carrier pigeon'"),
        ({"prompt": ["fixed:10"]}, "module draws lognormal lengths only"),
        (
            {"arrivals": ["trace"], "since": ["5"], "until": ["3"]},
            "until 3 s is not after since 5 s",
        ),
        ({name: ["0"] for name in COSTING}, "let prompts take no time"),
    ],
    ids=["twice", "baseline", "too many", "arrivals", "lengths", "window", "no cost"],
)
def test_parts_that_do_not_go_together_are_named_once(query, named):
    assert named in sentence(query)


def test_variants_that_do_not_go_together_leave_the_traffic_alone():
    s, _ = Scenario.from_url("/?rate=5&v=static&v=static")
    assert s.traffic.rate == 5
    assert s.variants == OPENING


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("zipf:1:2", "zipf"),
        ("fixed", "fixed"),
        ("fixed:nan", "nan"),
        ("fixed:0", "out of range"),
        ("fixed:1e9", "out of range"),
        ("uniform:9:3", "low above its high"),
        ("lognormal:700:-1:64:4096", "sigma"),
        ("lognormal:700:0.9:64", "lognormal:median:sigma:low:high"),
        ("fixed:1.5", "fixed:1.5"),
        ("uniform:1.5:3.5", "uniform:1.5:3.5"),
        ("x" * 2_000, "xxx"),
    ],
)
def test_lengths_that_cannot_be_had_are_named(text, named):
    said = sentence({"arrivals": ["burst"], "prompt": [text]})
    assert said.startswith("prompt ")
    assert named in said
    assert len(said) < 250


def test_a_link_of_50_kb_is_refused_with_its_size_and_at_once():
    began = time.monotonic()
    said = sentence("http://localhost:8501/?rate=" + "1" * 50_000)
    assert time.monotonic() - began < 1
    assert "50,004 characters" in said
    assert Scenario.from_url("/?v=" + "static&v=" * 6_000)[0] == Scenario()


def test_a_url_that_is_none_is_refused_by_name():
    assert "http://[" in sentence("http://[/?rate=5")


@pytest.mark.parametrize(
    "text", ["", "not json", "[1, 2]", "5", "null", '{"rate": ', "[" * 100_000, '"rate"']
)
def test_a_file_that_is_no_scenario_is_told_what_one_looks_like(text):
    with pytest.raises(ScenarioError, match="no JSON object such as"):
        Scenario.query_of(text)


def test_a_scenario_file_may_hold_plain_numbers_and_names():
    query = Scenario.query_of(json.dumps({"rate": 5, "v": "static", "seed": [7]}))
    s, problems = Scenario.from_query(query)
    assert problems == []
    assert (s.traffic.rate, s.traffic.seed, s.variants) == (5, 7, (Variant("static"),))


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(rate=10, duration=11),
        Traffic(arrivals="burst", requests=101),
        Traffic(arrivals="closed", requests=101),
        Traffic(arrivals="trace", first=101),
    ],
    ids=lambda t: t.arrivals,
)
def test_a_scenario_over_the_cap_is_refused_before_anything_is_drawn(monkeypatch, traffic):
    monkeypatch.setattr(scenario, "MAX_REQUESTS", 100)
    monkeypatch.setattr(run, "draw", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ScenarioError, match=r"over the cap of 100: .*SLOTSCOPE_MAX_REQUESTS"):
        run.compare(Scenario(traffic=traffic))


def test_a_scenario_over_the_memory_cap_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr(scenario, "MAX_MEMORY_MB", 1)
    monkeypatch.setattr(run, "draw", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ScenarioError, match=r"1,000 requests .* SLOTSCOPE_MAX_MEMORY_MB"):
        run.compare(Scenario(traffic=Traffic(arrivals="burst")))


def test_a_trace_over_the_cap_is_refused_before_anything_is_served(monkeypatch):
    monkeypatch.setattr(scenario, "MAX_REQUESTS", 100)
    monkeypatch.setattr(run, "serve", lambda *_, **__: pytest.fail("served"))
    fives = np.full(101, 5)
    trace = Workload(np.arange(101.0), fives, fives, fives)
    with pytest.raises(ScenarioError, match="101 requests are over the cap"):
        run.compare(Scenario(traffic=Traffic(arrivals="trace", trace="x")), trace)


def test_the_largest_rate_for_the_longest_time_is_refused_at_once():
    began = time.monotonic()
    assert "over the cap" in sentence("/?rate=10000&duration=86400")
    assert time.monotonic() - began < 1


def test_everything_that_a_link_may_name_has_a_home():
    assert PARAMETERS == TRAFFIC | LIMITS | COSTING | HOST | SLO
    assert all(Scenario().value(name) == p.default for name, p in PARAMETERS.items())
    assert parse_qs(urlsplit(Scenario(baseline=0).link()).query) == {"baseline": ["0"]}
