"""Published measurements beside our predictions: medians, saturation, what a file may hold."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim import fidelity
from sim.load import at_once, band, capacity, offered, throughput
from sim.parameter import ScenarioError
from sim.roofline import ERRORS, PRESETS
from sim.scenario import Scenario, Variant
from sim.traffic import Traffic
from sim.workload import draw

SHARED = Path(__file__).parents[2] / "shared" / "cases" / "published" / "measurements.json"
KNOBS = PRESETS["h100-sxm"]


@pytest.fixture(scope="module")
def records() -> dict[str, fidelity.Record]:
    records, problems = fidelity.read(fidelity.PUBLISHED.read_text())
    assert problems == []
    return {r.id: r for r in records}


@pytest.fixture(scope="module")
def scored(records) -> list[fidelity.Scored]:
    return fidelity.score(list(records.values()))


def test_the_medians_of_the_published_records(scored):
    rows = fidelity.medians(scored).to_dict("records")
    medians = {(r["group"], r["figure"]): r["median"] for r in rows}
    assert medians["H100 SXM", "TPOT"] <= 5
    assert medians["H100 SXM", "Throughput"] <= 3
    assert medians["H100 SXM", "TTFT, saturated"] <= 5
    assert medians["H100 SXM", "TTFT"] <= 15


def test_the_known_error_of_the_preset_is_what_its_records_say(scored):
    rows = fidelity.medians(scored).to_dict("records")
    found = next(r for r in rows if (r["group"], r["figure"]) == ("H100 SXM", "TPOT"))
    assert round(found["median"], 1) == ERRORS["h100-sxm"]


def test_what_a_front_end_took_is_said_of_each_record_at_low_load(scored):
    said = fidelity.front_ends(scored)
    calm = [r for r in scored if r.rho <= fidelity.NEAR and not r.record.doubts]
    assert len(calm) == 3
    for r in calm:
        assert (
            f"{r.record.measured['ttft'] - r.predicted['ttft'] + r.knobs.front_ms:.1f} ms" in said
        )


def test_a_front_end_is_not_fitted_to_a_version_that_is_not_stated(records):
    blis = records["blis-llama-2-7b-tp1-codegen-stage0"]
    assert not blis.version_stated
    assert fidelity.fit([blis], rounds=1).front_ms == 0
    assert fidelity.fit([replace(blis, version_stated=True)], rounds=1).front_ms > 5


def test_each_record_that_was_fitted_on_is_scored_by_a_fit_without_it(scored):
    for row in scored:
        inside = row.record.id in fidelity.FITTED_ON
        assert row.fitted_on == ("the five others" if inside else "preset")
        assert (row.knobs != KNOBS) == inside


def test_the_preset_is_what_the_fit_finds(records):
    found = fidelity.fit([records[name] for name in fidelity.FITTED_ON])
    for name in (*fidelity.FITTED, "front_ms"):
        assert getattr(found, name) == pytest.approx(getattr(KNOBS, name), rel=0.02)


def test_throughput_below_saturation_and_records_of_unknown_flags_are_not_scored(scored):
    for row in scored:
        assert row.counts("throughput") <= (row.rho > fidelity.SATURATED)
        assert not (row.record.doubts and row.counts("tpot"))


@pytest.mark.skipif(not SHARED.is_file(), reason="the shared records are not here")
def test_the_shared_records_are_the_ones_that_come_along(records):
    theirs, problems = fidelity.read(SHARED.read_text())
    assert problems == []
    for r in theirs:
        ours = records[r.id]
        assert ours.measured == r.measured
        assert (ours.limits, ours.device, ours.policy) == (r.limits, r.device, r.policy)
        assert ours.workload.prompt.tolist() == r.workload.prompt.tolist()


# D10, vllm#17598 and the KubeCon set: 440 clients, one seat count after the other, in saturation.


@pytest.fixture(scope="module")
def saturated(records) -> dict[int, dict[str, float]]:
    base = records["kubecon25-base-stage5"]
    found = {}
    for seats in (128, 192):
        limits = base.limits._replace(max_num_seqs=seats)
        run = replace(base, limits=limits).run(KNOBS)
        r = run.requests
        middle = r[(r["arrival"] > 20e3) & (r["arrival"] < 60e3)]
        found[seats] = {
            "ttft": (middle["first"] - middle["arrival"]).mean() / 1e3,
            "tpot": ((middle["last"] - middle["first"]) / 63).mean(),
            "x": throughput(run),
        }
    return found


@pytest.mark.parametrize("seats", [128, 192])
def test_in_saturation_ttft_and_tpot_follow_from_seats_and_throughput(saturated, seats):
    figure = saturated[seats]
    assert figure["ttft"] == pytest.approx((440 - seats) / figure["x"], rel=0.05)
    assert figure["tpot"] == pytest.approx(1e3 * seats / (63 * figure["x"]), rel=0.05)


# Measured: req/s, TTFT in s, TPOT in ms.
D10 = {128: (105.6, 2.94, 19.4), 192: (117.7, 2.11, 25.9)}
CHANGES = {"x": +11, "tpot": +33, "ttft": -28}  # %, from 128 seats to 192


def test_the_report_says_what_its_figures_say():
    (x, ttft, tpot), (more, sooner, slower) = D10[128], D10[192]
    assert int(100 * (more / x - 1)) == CHANGES["x"]
    assert int(100 * (slower / tpot - 1)) == CHANGES["tpot"]
    assert int(100 * (sooner / ttft - 1)) == CHANGES["ttft"]
    assert [round((440 - s) / D10[s][0], 2) for s in D10] == [2.95, 2.11]
    assert [round(1e3 * s / (63 * D10[s][0]), 1) for s in D10] == [19.2, 25.9]


@pytest.mark.parametrize("name", CHANGES)
def test_more_seats_trade_time_per_token_for_time_in_the_queue(saturated, name):
    change = 100 * (saturated[192][name] / saturated[128][name] - 1)
    assert change == pytest.approx(CHANGES[name], abs=2)


@pytest.mark.parametrize("seats", D10)
def test_the_report_is_simulated_within_a_tenth(saturated, seats):
    found = [saturated[seats][name] for name in ("x", "ttft", "tpot")]
    assert found == pytest.approx(D10[seats], rel=0.1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("vLLM 0.11.0", "0.17.1"),
        ("vLLM 0.33.1", "0.33.0"),
        ("vLLM 0.8.4", "0.8.5"),
        ("vLLM 0.6.3", "0.6.6"),
        ("vLLM, version not stated (Feb 2026, V1)", "0.17.1"),
        ("vLLM, version not stated (March 2025)", "0.8.5"),
        ("TGI 3.0", None),
    ],
)
def test_an_engine_is_scheduled_by_the_version_in_force(text, version):
    assert fidelity.version_of(text) == version


def changed(**fields) -> str:
    first = json.loads(fidelity.PUBLISHED.read_text())[0]
    return json.dumps([first | fields])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[]", "no list"),
        ('{"id": 1}', "no list"),
    ],
)
def test_a_file_that_holds_no_records_is_refused(text, said):
    with pytest.raises(ScenarioError, match=said):
        fidelity.read(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu": "TPU v5e"}, "'TPU v5e'"),
        ({"model": "gpt-oss"}, "'gpt-oss'"),
        ({"engine": "TGI 3"}, "'TGI 3'"),
        ({"measured": {}}, "tpot_ms"),
        ({"workload": {"requests": "many"}}, "many"),
    ],
)
def test_a_record_that_cannot_be_simulated_is_named_and_the_others_go_on(fields, said):
    records, problems = fidelity.read(changed(**fields))
    assert records == []
    assert said in problems[0]


def test_load_is_what_is_offered_over_what_is_served_when_somebody_always_waits():
    scenario = Scenario(traffic=Traffic(arrivals="constant", rate=10, duration=20))
    work = draw(scenario.traffic)
    assert offered(work) == pytest.approx(10)
    most = capacity(scenario, Variant("continuous"), work)
    assert 30 < most < 60
    assert len(at_once(work, 500)) == 500
    assert np.isnan(offered(draw(Traffic(arrivals="closed", requests=5))))


def test_a_band_holds_the_figure_and_widens_near_saturation():
    def spread(rate):
        scenario = Scenario(traffic=Traffic(rate=rate, duration=8))
        found = band(
            scenario,
            Variant("continuous"),
            lambda run: float(np.quantile(run.requests["first"] - run.requests["arrival"], 0.95)),
            error=0.1,
            seeds=6,
        )
        assert found.seeds[0] <= found.value <= found.seeds[1]
        return found.step_time[1] / found.step_time[0]

    assert spread(42) > spread(8) > 1
