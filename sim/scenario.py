"""What to run: one traffic and a list of variants; and its form in a link.

The page's address, the command line's `--url` and its `--scenario FILE` hold the same names.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np

from .costs import COSTS, planned
from .parameter import Parameter, ScenarioError, number, parameters, written
from .policies import POLICIES
from .presets import Preset, preset
from .pricing import Pricing, StepCost
from .state import Limits
from .traffic import LONGEST, Lengths, Traffic

MAX_REQUESTS = int(os.environ.get("SLOTSCOPE_MAX_REQUESTS", 1_100_000))
MAX_MEMORY_MB = int(os.environ.get("SLOTSCOPE_MAX_MEMORY_MB", 2_000))
MAX_LINK = 8_000  # characters; longer ones are cut by chat tools and proxies
MAX_VARIANTS = 6
BYTES_PER_REQUEST = 600  # of a run: its row, two to three steps, three segments, and their copies

COST = COSTS["linear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request may take. Goodput counts those that keep both of the first two."""

    ttft_slo: float = number(500.0, 0.001, 1e9, "ms", "TTFT limit, ms")
    tpot_slo: float = number(50.0, 0.001, 1e9, "ms", "TPOT limit, ms")
    max_wait: float = number(10_000.0, 0.001, 1e9, "ms", "Starved after a wait of, ms")


TRAFFIC = parameters(Traffic)
SLO = parameters(Slo)
LIMITS = {
    p.name: p
    for p in (
        Parameter("max_num_seqs", 32, 1, 4_096, "seats", "max_num_seqs: seats"),
        Parameter(
            "max_num_batched_tokens",
            8_192,
            1,
            10_000_000,
            "tokens",
            "max_num_batched_tokens: a step's budget",
        ),
        Parameter("chunk", 512, 1, LONGEST, "tokens", "chunk: tokens of a prompt in a step"),
        Parameter("num_gpu_blocks", 4_000, 2, 10_000_000, "blocks", "num_gpu_blocks: the KV pool"),
        Parameter("block_size", 16, 1, 1_024, "tokens", "block_size: tokens of a KV block"),
        Parameter(
            "max_model_len", 8_192, 2, 2 * LONGEST, "tokens", "max_model_len: prompt and output"
        ),
        Parameter("enable_chunked_prefill", 1, 0, 1, "", "enable_chunked_prefill: 1 or 0"),
        Parameter(
            "long_prefill_token_threshold",
            0,
            0,
            LONGEST,
            "tokens",
            "long_prefill_token_threshold: most of one prompt in a step",
        ),
        Parameter(
            "long_prefill_token_threshold_adaptive",
            0,
            0,
            1,
            "",
            "long_prefill_token_threshold_adaptive: 1 or 0",
        ),
        Parameter("enable_prefix_caching", 0, 0, 1, "", "enable_prefix_caching: 1 or 0"),
        Parameter("scheduler_reserve_full_isl", 1, 0, 1, "", "scheduler_reserve_full_isl: 1 or 0"),
        Parameter(
            "watermark", 0.0, 0.0, 1.0, "share", "watermark: blocks that admission leaves free"
        ),
        Parameter("preempt_on_arrival", 0, 0, 1, "", "preempt_on_arrival: 1 or 0"),
        Parameter("async_scheduling", 1, 0, 1, "", "async_scheduling: 1 or 0"),
        Parameter(
            "chunked_prefill_size",
            8_192,
            -1,
            10_000_000,
            "tokens",
            "chunked_prefill_size: prompts in a step; -1: whole ones",
        ),
        Parameter(
            "max_prefill_tokens",
            16_384,
            1,
            10_000_000,
            "tokens",
            "max_prefill_tokens: prompts in a step, the last one beyond it",
        ),
        Parameter(
            "schedule_conservativeness",
            1.0,
            0.0,
            100.0,
            "times",
            "schedule_conservativeness: times the share of outputs that is reserved",
        ),
        Parameter("enable_mixed_chunk", 0, 0, 1, "", "enable_mixed_chunk: 1 or 0"),
        Parameter("ignore_eos", 0, 0, 1, "", "ignore_eos: outputs as long as limits; 1 or 0"),
    )
}
COSTING = {c.name: Parameter(c.name, c.default, 0.0, 1e6, "ms", c.label) for c in COST.coefficients}
HOST = {
    "host_ms": Parameter(
        "host_ms", 0.0, 0.0, 1e6, "ms", "Host work of a step (plan, inputs, detokenising), ms"
    )
}
PARAMETERS = TRAFFIC | LIMITS | COSTING | HOST | SLO
CHANGEABLE = LIMITS | COSTING | HOST  # what a variant may have of its own
PAGE = (
    "request",
    "window",
    "live",
    "run",
    "review",
    "x",
    "y",
    "seeds",
    "share",
)  # what else a page's address holds
TEXTS = ("arrivals", "trace", "list", "prompt", "output")


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, or an engine's preset, and what its limits and cost have of their own."""

    name: str  # in POLICIES, or one of sim.presets.names()
    changes: tuple[tuple[str, float | str], ...] = ()  # `cost`, a StepCost's text, is one too

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{n}={written(value)}" for n, value in self.changes)])

    @property
    def label(self) -> str:
        """As a person says it: `chunked 128`, `continuous batched_tokens 2048`."""
        names = {"chunk": ""}
        changes = [
            f"{names.get(n, n.removeprefix('max_num_') + ' ')}{written(value)}"
            for n, value in self.changes
        ]
        return " ".join([self.name, *changes])

    @property
    def preset(self) -> Preset | None:
        return preset(self.name)

    @property
    def policy(self) -> str:
        """Its key in POLICIES."""
        return self.preset.policy if self.preset else self.name

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """Read `policy:name=value:name=value`. ScenarioError where it can't be had."""
        named, *rest = text.split(":")
        if named not in POLICIES and preset(named) is None:
            raise ScenarioError(
                f"v {named[:40]!r} is no policy: use {', '.join(POLICIES)}, or an engine such as"
                " vllm-0.33.0-h100-api"
            )
        changes = {}
        for change in rest:
            name, _, value = change.partition("=")
            if name == "cost":
                changes[name] = str(StepCost.parse(value))
                continue
            if name not in CHANGEABLE:
                raise ScenarioError(
                    f"v {text[:60]!r} sets {name[:40]!r}, which is no limit or cost: use"
                    f" {', '.join(CHANGEABLE)}"
                )
            changes[name] = PARAMETERS[name].parse(value)
        return cls(named, tuple(changes.items()))


OPENING = (Variant("static"), Variant("continuous"), Variant("chunked", (("chunk", 128),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    traffic: Traffic = Traffic()
    variants: tuple[Variant, ...] = OPENING
    baseline: int = 1  # which of the variants the others are measured against
    limits: Limits = Limits()
    model: StepCost = StepCost()
    cost: tuple[float, ...] = tuple(c.default for c in COST.coefficients)  # of the linear model
    host_ms: float = HOST["host_ms"].default
    slo: Slo = Slo()

    def limits_of(self, variant: Variant) -> Limits:
        own: dict[str, Any] = {n: value for n, value in variant.changes if n in LIMITS}
        usual = variant.preset.limits(self.limits, own) if variant.preset else {}
        return POLICIES[variant.policy].starts(self.limits._replace(**(usual | own)))

    def model_of(self, variant: Variant) -> StepCost:
        own = dict(variant.changes).get("cost")
        return StepCost.parse(str(own)) if own else self.model

    def cost_of(self, variant: Variant) -> Pricing:
        """The cost model and its coefficients."""
        own = dict(variant.changes)
        linear = tuple(
            float(own.get(name, usual)) for name, usual in zip(COSTING, self.cost, strict=True)
        )
        return self.model_of(variant).pricing(linear)

    def host_of(self, variant: Variant) -> float:
        """ms of the host's work for a step."""
        return float(dict(variant.changes).get("host_ms", self.host_ms))

    def value(self, name: str) -> float:
        """The number named `name`, one of PARAMETERS."""
        if name in HOST:
            return self.host_ms
        if name in COSTING:
            return self.cost[list(COSTING).index(name)]
        home = self.traffic if name in TRAFFIC else self.limits if name in LIMITS else self.slo
        return getattr(home, name)

    def check(self, requests: float | None = None) -> None:
        """ScenarioError if it can't be run. Give `requests` once their number is known."""
        self.traffic.check()
        if not 1 <= len(self.variants) <= MAX_VARIANTS:
            raise ScenarioError(
                f"{len(self.variants)} variants can't be compared: give 1 to {MAX_VARIANTS}"
            )
        for variant in self.variants:
            if self.variants.count(variant) > 1:
                raise ScenarioError(f"v {str(variant)!r} is given twice: change one of them")
            cost = self.cost_of(variant)
            token = planned(prefill=1, prompts=1, attended=1)
            if COSTS[cost.cost].ms(token, np.array(cost.coefficients)) <= 0:
                names = (
                    "overhead_ms 0 and prefill_ms_per_token 0"
                    if cost.cost == "linear"
                    else f"its cost {self.model_of(variant)}"
                )
                raise ScenarioError(
                    f"{variant}: {names} let prompts take no time: raise one of them"
                )
            self._check_limits(variant)
        if not 0 <= self.baseline < len(self.variants):
            raise ScenarioError(
                f"baseline {self.baseline} is no variant: give 0 to {len(self.variants) - 1}"
            )
        count = self.traffic.expected if requests is None else requests
        if count > MAX_REQUESTS:
            raise ScenarioError(
                f"{count:,.0f} requests are over the cap of {MAX_REQUESTS:,}: ask for fewer, or"
                " raise SLOTSCOPE_MAX_REQUESTS"
            )
        memory = count * len(self.variants) * BYTES_PER_REQUEST / 1e6
        if memory > MAX_MEMORY_MB:
            raise ScenarioError(
                f"{count:,.0f} requests under {len(self.variants)} variants take about"
                f" {memory:,.0f} MB, over the cap of {MAX_MEMORY_MB:,}: ask for fewer, or raise"
                " SLOTSCOPE_MAX_MEMORY_MB"
            )

    def _check_limits(self, variant: Variant) -> None:
        """ScenarioError for limits that the engine itself refuses to start with."""
        limits, keeps = self.limits_of(variant), POLICIES[variant.policy].keeps
        if "chunked_prefill_size" in keeps:
            self._check_chunk(variant, limits)
        budget, longest = limits.max_num_batched_tokens, limits.max_model_len
        if not {"max_model_len", "max_num_batched_tokens"} <= set(keeps):
            return
        whole = variant.policy == "vllm_v0" or (
            "enable_chunked_prefill" in keeps and limits.enable_chunked_prefill == 0
        )
        if whole and budget < longest:
            raise ScenarioError(
                f"{variant}: max_num_batched_tokens {budget:,} is below max_model_len {longest:,}"
                " while chunking is off: raise the budget (or lower max_model_len), or turn"
                " chunking on"
            )
        if budget < limits.max_num_seqs:
            raise ScenarioError(
                f"{variant}: max_num_batched_tokens {budget:,} is below max_num_seqs"
                f" {limits.max_num_seqs:,}: raise max_num_batched_tokens or lower max_num_seqs"
            )
        if limits.long_prefill_token_threshold > longest:
            raise ScenarioError(
                f"{variant}: long_prefill_token_threshold"
                f" {limits.long_prefill_token_threshold:,} is above max_model_len {longest:,}:"
                " lower the one or raise the other"
            )

    def _check_chunk(self, variant: Variant, limits: Limits) -> None:
        chunk, page = limits.chunked_prefill_size, limits.block_size
        if chunk > 0 and chunk % page:
            raise ScenarioError(
                f"{variant}: chunked_prefill_size {chunk:,} is no multiple of block_size {page:,}:"
                " change either"
            )
        if 0 < chunk <= limits.max_num_seqs and limits.enable_mixed_chunk:
            raise ScenarioError(
                f"{variant}: the decodes of max_num_seqs {limits.max_num_seqs:,} may take all of"
                f" chunked_prefill_size {chunk:,} in a mixed step: lower the one or raise the other"
            )

    def to_query(self) -> dict[str, list[str]]:
        """Name -> values of what plays a part and is not as in the opening scenario."""
        query = {}
        if self.variants != OPENING:
            query["v"] = [str(v) for v in self.variants]
        if self.baseline != min(Scenario().baseline, len(self.variants) - 1):
            query["baseline"] = [str(self.baseline)]
        if self.model != StepCost():
            query["cost"] = [str(self.model)]
        for name in TEXTS:
            value, usual = getattr(self.traffic, name), getattr(Traffic(), name)
            if value != usual and name in ("arrivals", *self.traffic.uses):
                query[name] = [str(value)]
        for name, parameter in PARAMETERS.items():
            plays = name not in TRAFFIC or name in self.traffic.uses
            if plays and self.value(name) != parameter.default:
                query[name] = [written(self.value(name))]
        return query

    def link(self) -> str:
        """What follows the host in the page's address."""
        query = urlencode(self.to_query(), doseq=True, safe=":=,/")
        return f"/?{query}" if query else "/"

    def to_json(self) -> str:
        return json.dumps(self.to_query(), indent=1)

    @classmethod
    def from_query(
        cls, query: Mapping[str, Sequence[str]], most: float = MAX_LINK
    ) -> tuple["Scenario", list[str]]:
        """The scenario asked for, and a sentence on each part of `query` that can't be had.

        Such a part stays as in the opening scenario, so that there is something to show. most:
        characters of the query; of one that comes by no link, as many as there are.
        """
        size = sum(len(name) + sum(map(len, values)) for name, values in query.items())
        if size > most:
            return cls(), [
                f"the link has {size:,} characters, over the limit of {most:,}, and was left"
                " out: ask for it anew"
            ]
        problems: list[str] = []

        def attempt(read, *args) -> Any:
            try:
                return read(*args)
            except ScenarioError as error:
                return problems.append(str(error))

        known = {"v", "baseline", "cost", *TEXTS, *PARAMETERS, *PAGE}
        problems += [
            f"{name[:40]!r} is no parameter of a scenario and was left out"
            for name in query
            if name not in known
        ]
        last = {name: values[-1] for name, values in query.items() if name in known and values}
        numbers = {n: attempt(p.parse, last[n]) for n, p in PARAMETERS.items() if n in last}
        numbers = {name: value for name, value in numbers.items() if value is not None}
        texts = {name: last[name] for name in ("arrivals", "trace", "list") if name in last}
        lengths = {n: attempt(Lengths.parse, n, last[n]) for n in ("prompt", "output") if n in last}
        texts |= {name: value for name, value in lengths.items() if value}
        variants = tuple(v for text in query.get("v", ()) if (v := attempt(Variant.parse, text)))
        variants = variants or OPENING
        model = attempt(StepCost.parse, last["cost"]) if "cost" in last else None
        top = len(variants) - 1
        places = Parameter("baseline", min(cls().baseline, top), 0, top, "", "")
        baseline = attempt(places.parse, last["baseline"]) if "baseline" in last else None

        def of(names):
            return {name: numbers[name] for name in names if name in numbers}

        scenario = cls(
            traffic=Traffic(**texts, **of(TRAFFIC)),
            variants=variants,
            baseline=int(places.default if baseline is None else baseline),
            limits=Limits(**of(LIMITS)),
            model=model or StepCost(),
            cost=tuple(numbers.get(name, p.default) for name, p in COSTING.items()),
            host_ms=numbers.get("host_ms", HOST["host_ms"].default),
            slo=Slo(**of(SLO)),
        )
        if scenario.problem:
            problems.append(scenario.problem)
            usual = cls()
            milder = (
                replace(scenario, variants=usual.variants, baseline=usual.baseline),
                replace(scenario, cost=usual.cost, model=usual.model),
                replace(scenario, limits=usual.limits),
                replace(scenario, traffic=usual.traffic),
            )
            scenario = next((m for m in milder if not m.problem), usual)
        return scenario, problems

    @property
    def problem(self) -> str | None:
        """Why it can't be run, where it can't."""
        try:
            return self.check()
        except ScenarioError as error:
            return str(error)

    @classmethod
    def from_url(cls, url: str) -> tuple["Scenario", list[str]]:
        """The same from a page's whole address."""
        try:
            return cls.from_query(parse_qs(urlsplit(url).query, keep_blank_values=True))
        except ValueError as error:
            return cls(), [f"{url[:40]!r} is no address ({error}): copy it anew"]

    @staticmethod
    def query_of(text: str) -> dict[str, list[str]]:
        """What `to_json` wrote, as a query. ScenarioError if it is nothing of the kind."""
        try:
            content = json.loads(text)
            return {
                k: [str(x) for x in (v if isinstance(v, list) else [v])] for k, v in content.items()
            }
        except (ValueError, AttributeError, RecursionError):
            raise ScenarioError(
                "the scenario is no JSON object such as"
                ' {"rate": 36, "v": ["static", "chunked:chunk=128"]}'
            ) from None
