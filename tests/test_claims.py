"""Each figure of the module's claims, from named inputs to the printed precision; the verdicts."""

import math
from urllib.parse import parse_qs, urlsplit

import pytest

from sim import claims as c
from sim import defaults
from sim.anatomy import LINES, MODULE, Step, full_tpot, lone_ttft, parts, step_ms
from sim.parameter import ScenarioError
from sim.pricing import StepCost
from sim.run import compare
from sim.scenario import Scenario

BY_NUMBER = {claim.number: claim for claim in c.every()}

FIGURES = {
    "1": [4.776],
    "2": [128],
    "3": [512, 4],
    "4": [6.06],
    "5": [512, 1.463],
    "6": [5282, 209, 25.2],
    "7": [989],
    "8": [14.69],
    "9": [5.10, 10.2, 230.5, 1569.7, 6.8],
    "11": [16, 53.7],
    "12": [29.77, 74.4],
    "13": [4.49],
    "14": [295, 118, 148],
    "15": [35, 72.8, 17.4],
    "16": [87],
    "17": [18, 75.2],
    "18": [4.8],
    "24": [429, 1051, 129],
    "25": [1.305, 108],
    "27": [1.40, 1.24],
}
VERDICTS = {
    "4": "unit slip",
    "7": "contradicts",
    "10": "holds only when one batch is waited for",
    "12": "holds only when attention is left out",
    "13": "unit slip",
    "16": "holds only when nobody decodes",
    "17": "contradicts: off by one",
    "19": "unchecked",
    "20": "holds only when started as API server on H100, H200, or as LLM class on A100-40,"
    " A100-80, L40S, L4, RTX4090",
    "21": "holds only when started on A100-40, A100-80, L40S, L4, RTX4090",
    "24": "contradicts",
    "25": "contradicts",
    "26": "contradicts",
    "27": "contradicts",
}


@pytest.mark.parametrize("number", FIGURES)
def test_a_claims_figures_are_computed_to_the_printed_precision(number):
    values = [value for _, value in BY_NUMBER[number].pairs]
    for value, printed in zip(values, FIGURES[number], strict=True):
        digits = len(f"{printed}".partition(".")[2])
        assert value == pytest.approx(printed, abs=0.5001 * 10**-digits)


def test_each_figure_of_a_claim_stands_beside_its_unit():
    assert BY_NUMBER["6"].computed == "5,282 tok/s; 209.4 tok/s; 25.23 times"
    assert BY_NUMBER["14"].computed == "295.3; 118.1; 147.7 FLOP/B"


@pytest.mark.parametrize("number", BY_NUMBER)
def test_a_claims_verdict(number):
    assert BY_NUMBER[number].verdict == VERDICTS.get(number, "holds")


def test_a_verdict_follows_the_value():
    right = c.Claim("0", "", "", ((4.78, 4.776),), "ms")
    assert right.verdict == "holds"
    assert c.Claim("0", "", "", ((4.78, 4.9),), "ms").verdict == "contradicts"
    slipped = c.Claim("0", "", "", ((4.78, 4.9),), "ms", (("unit slip", (4.78,)),))
    assert slipped.verdict == "unit slip"


@pytest.mark.parametrize("number", sorted(BY_NUMBER.keys() - {"19"}))
def test_a_claim_has_a_link_that_opens_as_it_is_asked(number):
    link = BY_NUMBER[number].link
    if link.startswith("/step_cost"):
        asked = {name: values[-1] for name, values in parse_qs(urlsplit(link).query).items()}
        assert StepCost.parse(asked["cost"]).kind == "roofline"
        assert str(Step.parse(asked["step"])) == asked["step"]
        return
    scenario, problems = Scenario.from_url(link)
    assert not problems
    scenario.check()


def test_the_scenario_of_claim_27_counts_calls():
    scenario, _ = Scenario.from_url(BY_NUMBER["27"].link)
    assert [round(run.total) for run in compare(scenario)] == [928, 721, 2_387, 1_652]


def test_a_default_is_one_cell_of_a_table():
    shown = defaults.table("max_num_seqs").set_index(["version", "started as"])
    assert shown.loc[("vLLM 0.8.5", "API server"), "a100-80"] == "1024"
    assert shown.loc[("vLLM 0.17.1", "API server"), "a100-80"] == "256"
    assert set(shown.loc["vLLM 0.6.6 (V0)"].to_numpy().ravel()) == {"256"}


@pytest.mark.parametrize("text", ["", "1:2:3", "a:1:2:3", "1:2:3:-4", "1:2:3:99999999"])
def test_a_step_that_is_none_gets_a_sentence(text):
    with pytest.raises(ScenarioError, match="32:1024:128:0"):
        Step.parse(text)


def test_the_measured_line_is_met_by_the_fitted_step_and_bends_under_max():
    cost, line = StepCost.parse("roofline/h100-sxm/llama-3.1-8b"), LINES["h100-sxm", "llama-3.1-8b"]
    for tokens in (100, 400, 800):
        assert step_ms(cost, line.step(tokens)) == pytest.approx(line.at(tokens), rel=0.08)
    longest = StepCost.parse("roofline/h100-sxm/llama-3.1-8b/overlap=1")
    assert step_ms(longest, line.step(400)) < 0.85 * line.at(400)
    assert math.isnan(line.at(line.most + 1))


def test_a_chunk_of_120_beside_32_decodes_stretches_the_step_by_27_percent():
    assert "5.32 ms, 27 % over the floor" in BY_NUMBER["16"].note


def test_the_calls_of_exercise_08_2():
    lengths = c.lengths_of_08_2()
    assert sum(lengths) == 11_176
    assert [calls[0] for calls in c.model_calls(lengths, 8).values()] == [2_395, 1_707]
    assert [calls[0] for calls in c.model_calls(lengths, 32).values()] == [930, 752]


def test_the_checklist_of_the_module():
    checks = c.checklist(seeds=30)
    assert [x.holds for x in checks] == [True, True, False, False, False, True, False, True, None]
    assert checks[1].measured == "238 and 108 times"
    assert checks[2].measured == "2.68 times"


@pytest.mark.parametrize("step", [Step(), Step(decodes=0, prefill=512, before=64)])
def test_the_parts_of_a_step_add_up(step):
    for cost in (StepCost.parse("roofline/h100-sxm/llama-3.1-70b/tp=4"), *MODULE.values()):
        assert sum(parts(cost, step).values()) == pytest.approx(step_ms(cost, step))


def test_the_formulas_are_what_is_simulated():
    cost = StepCost.parse("roofline/h100-sxm/llama-3.1-8b")
    assert lone_ttft(cost, 5_000, 512)[0] == pytest.approx(lone_ttft(cost, 5_000, 512)[1])
    assert full_tpot(cost, 16, 900)[0] == pytest.approx(full_tpot(cost, 16, 900)[1], rel=1e-3)
