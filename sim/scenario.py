"""What to run: frozen values, their checks, and their form in a link.

A Scenario is one traffic and a list of variants, each a policy with its own limits and cost. It
goes to and from a query string (`to_query`, `from_query`): the page's address, the command line's
`--url` and a file of JSON all hold the same names.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from .costs import COSTS
from .policies import POLICIES
from .state import Limits

MAX_REQUESTS = int(os.environ.get("SLOTSCOPE_MAX_REQUESTS", 200_000))
MAX_MEMORY_MB = int(os.environ.get("SLOTSCOPE_MAX_MEMORY_MB", 2_000))
MAX_QUERY = 8_000  # characters of a link; what a chat tool or a proxy still carries
MAX_VARIANTS = 6
BYTES_PER_REQUEST = 600  # of a run: its row, two to three steps, three segments, and their copies

COST = COSTS["linear"]


class ScenarioError(ValueError):
    """A value that can't be run: one sentence that names it and the way out."""


class Parameter(NamedTuple):
    """A number that a person may set."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    label: str
    group: str  # traffic, limits, cost, slo

    def parse(self, text: str) -> float:
        """The number in `text`, whole where the default is. ScenarioError if it is none in range."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ScenarioError(
                f"{self.name} {text[:40]!r} is not a number: give one from {self.span}"
            )
        if isinstance(self.default, int):
            if value != int(value):
                raise ScenarioError(f"{self.name} {text[:40]} is not whole: give {self.span}")
            value = int(value)
        if not self.low <= value <= self.high:
            raise ScenarioError(
                f"{self.name} {value:g} is out of range: give one from {self.span}"
            )
        return value

    @property
    def span(self) -> str:
        return f"{self.low:g} to {self.high:g} {self.unit}".rstrip()


def number(default, low, high, unit, label, group="traffic") -> Any:
    """A dataclass field that a person may set: its range and unit travel with it."""
    return field(default=default, metadata={"number": (default, low, high, unit, label, group)})


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts or outputs are, in tokens.

    lognormal: a = median, b = sigma of the logarithm, cut to [low, high]; uniform: whole numbers in
    [low, high]; fixed: a; trace: drawn from the rows of the trace.
    """

    kind: str
    a: float = 0
    b: float = 0
    low: int = 1
    high: int = 1

    KINDS = {
        "lognormal": ("a", "b", "low", "high"),
        "uniform": ("low", "high"),
        "fixed": ("a",),
        "trace": (),
    }
    LONGEST = 1_000_000

    def __str__(self) -> str:
        return ":".join([self.kind, *(f"{getattr(self, name):g}" for name in self.KINDS[self.kind])])

    @classmethod
    def parse(cls, name: str, text: str) -> "Lengths":
        kind, *values = text.split(":")
        names = cls.KINDS.get(kind)
        if names is None:
            raise ScenarioError(
                f"{name} {text[:40]!r} is no length distribution: use lognormal:median:sigma:low:high,"
                " uniform:low:high, fixed:tokens or trace"
            )
        try:
            numbers = [float(v) for v in values]
        except ValueError:
            numbers = []
        if len(numbers) != len(names) or not all(map(math.isfinite, numbers)):
            form = ":".join([kind, *("median sigma low high".split() if names[1:2] == ("b",) else names)])
            raise ScenarioError(f"{name} {text[:40]!r} does not read as {form}: give those numbers")
        got = dict(zip(names, numbers, strict=True))
        lengths = cls(
            kind,
            got.get("a", 0),
            got.get("b", 0),
            int(got.get("low", 1)),
            int(got.get("high", cls.LONGEST)),
        )
        smallest = lengths.a if kind == "fixed" else lengths.low
        largest = lengths.a if kind == "fixed" else lengths.high
        if not 1 <= smallest <= largest <= cls.LONGEST or lengths.b < 0 or lengths.b > 10:
            raise ScenarioError(
                f"{name} {text[:40]!r} is out of range: tokens go from 1 to {cls.LONGEST:,},"
                " low first, sigma from 0 to 10"
            )
        if kind == "lognormal" and not 1 <= lengths.a <= cls.LONGEST:
            raise ScenarioError(f"{name}: median {lengths.a:g} is out of range: give 1 or more tokens")
        return lengths

    @property
    def longest(self) -> int:
        return int(self.a) if self.kind == "fixed" else self.high


ARRIVALS = {
    "module": "the course module's generator (Python's random, Poisson)",
    "poisson": "Poisson",
    "gamma": "gamma intervals: CV = 1/sqrt(burstiness)",
    "constant": "one every 1/rate seconds",
    "burst": "all at once",
    "closed": "closed loop: each client sends its next request when the last one is done",
    "trace": "a file's own arrivals",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    arrivals: str = "module"  # a key of ARRIVALS
    rate: float = number(36.0, 0.01, 10_000.0, "req/s", "Rate, requests per second")
    duration: float = number(30.0, 0.1, 86_400.0, "s", "Duration of arrivals, seconds")
    requests: int = number(1_000, 1, 10_000_000, "requests", "Requests")
    clients: int = number(32, 1, 100_000, "clients", "Clients")
    burstiness: float = number(0.25, 0.001, 1_000.0, "", "Burstiness (1 is Poisson, below burstier)")
    seed: int = number(1234, 0, 2**53, "", "Seed")
    prompt: Lengths = Lengths("lognormal", 700, 0.9, 64, 4096)
    output: Lengths = Lengths("lognormal", 110, 0.6, 16, 384)
    as_printed: int = number(0, 0, 1, "", "Arrivals as the module prints them (seconds read as ms)")
    trace: str = ""  # name of the file's content, see sim.traces.name_of
    first: int = number(0, 0, 10_000_000, "requests", "First requests of the trace (0: all)")
    since: float = number(0.0, 0.0, 1e9, "s", "Window of the trace from, seconds")
    until: float = number(0.0, 0.0, 1e9, "s", "to, seconds (0: the end)")
    speed: float = number(1.0, 0.001, 10_000.0, "times", "Speed-up of the trace")

    USES = {
        "module": ("rate", "duration", "seed", "as_printed", "prompt", "output"),
        "poisson": ("rate", "duration", "seed", "prompt", "output"),
        "gamma": ("rate", "duration", "burstiness", "seed", "prompt", "output"),
        "constant": ("rate", "duration", "seed", "prompt", "output"),
        "burst": ("requests", "seed", "prompt", "output"),
        "closed": ("requests", "clients", "seed", "prompt", "output"),
        "trace": ("trace", "first", "since", "until", "speed"),
    }

    @property
    def uses(self) -> tuple[str, ...]:
        """The fields that this kind of traffic looks at."""
        names = self.USES[self.arrivals]
        if "trace" in (self.prompt.kind, self.output.kind) and "trace" not in names:
            names += ("trace",)
        return names

    @property
    def expected(self) -> float:
        """Requests to expect; a trace's own number is known once it is read."""
        if self.arrivals == "trace":
            return self.first
        return self.rate * self.duration if "rate" in self.uses else self.requests

    def check(self) -> None:
        if self.arrivals not in ARRIVALS:
            raise ScenarioError(
                f"arrivals {self.arrivals[:40]!r} is unknown: use one of {', '.join(ARRIVALS)}"
            )
        if self.arrivals == "module" and (self.prompt.kind, self.output.kind) != ("lognormal",) * 2:
            raise ScenarioError(
                f"arrivals module draws lognormal lengths only, not {self.prompt} and {self.output}:"
                " use arrivals poisson"
            )
        if "trace" in self.uses and not self.trace:
            raise ScenarioError("the traffic needs a trace and none is given: upload the file")
        if 0 < self.until <= self.since:
            raise ScenarioError(
                f"until {self.until:g} s is not after since {self.since:g} s: widen the window"
            )


class Slo(NamedTuple):
    ttft_slo: float = 500.0
    tpot_slo: float = 25.0
    max_wait: float = 10_000.0


@dataclass(frozen=True, slots=True)
class Variant:
    policy: str
    changes: tuple[tuple[str, float], ...] = ()  # of limits and cost, against the scenario's

    def __str__(self) -> str:
        return ":".join([self.policy, *(f"{name}={value:g}" for name, value in self.changes)])

    @classmethod
    def parse(cls, text: str) -> "Variant":
        policy, *rest = text.split(":")
        if policy not in POLICIES:
            raise ScenarioError(
                f"v {policy[:40]!r} is no policy: use one of {', '.join(POLICIES)}"
            )
        changes = {}
        for change in rest:
            name, _, value = change.partition("=")
            if name not in CHANGEABLE:
                raise ScenarioError(
                    f"v {text[:60]!r} changes {name[:40]!r}, which is no limit or cost: use one of"
                    f" {', '.join(CHANGEABLE)}"
                )
            changes[name] = PARAMETERS[name].parse(value)
        return cls(policy, tuple(changes.items()))

    @property
    def label(self) -> str:
        """As a person would say it: the policy, and what sets it apart."""
        changes = [f"{name.removeprefix('max_num_')} {value:g}" for name, value in self.changes]
        return " · ".join([POLICIES[self.policy].label, *changes])


def _parameters() -> dict[str, Parameter]:
    rows = [
        Parameter(f.name, *f.metadata["number"]) for f in fields(Traffic) if "number" in f.metadata
    ]
    rows += [
        Parameter("max_num_seqs", 32, 1, 4_096, "seats", "Seats (max_num_seqs)", "limits"),
        Parameter(
            "max_num_batched_tokens",
            8_192,
            1,
            10_000_000,
            "tokens",
            "Step budget (max_num_batched_tokens)",
            "limits",
        ),
        Parameter("chunk", 512, 1, 1_000_000, "tokens", "Chunk of a prompt in a step", "limits"),
    ]
    rows += [
        Parameter(name, default, 0.0, 1e6, "ms", label, "cost")
        for name, default, label in COST.coefficients
    ]
    limit = Slo()
    rows += [
        Parameter("ttft_slo", limit.ttft_slo, 0.001, 1e9, "ms", "TTFT limit, ms", "slo"),
        Parameter("tpot_slo", limit.tpot_slo, 0.001, 1e9, "ms", "TPOT limit, ms", "slo"),
        Parameter("max_wait", limit.max_wait, 0.001, 1e9, "ms", "Starved beyond a wait of, ms", "slo"),
    ]
    return {p.name: p for p in rows}


PARAMETERS = _parameters()
CHANGEABLE = tuple(p.name for p in PARAMETERS.values() if p.group in ("limits", "cost"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    traffic: Traffic = Traffic()
    variants: tuple[Variant, ...] = (
        Variant("static"),
        Variant("continuous"),
        Variant("chunked", (("chunk", 128),)),
    )
    baseline: int = 1  # which of the variants the others are measured against
    limits: Limits = Limits()
    cost: tuple[float, ...] = tuple(c.default for c in COST.coefficients)
    slo: Slo = Slo()

    def limits_of(self, variant: Variant) -> Limits:
        return self.limits._replace(
            **{name: int(v) for name, v in variant.changes if name in Limits._fields}
        )

    def cost_of(self, variant: Variant) -> tuple[float, ...]:
        names = [c.name for c in COST.coefficients]
        return tuple((dict(zip(names, self.cost, strict=True)) | dict(variant.changes))[n] for n in names)

    def check(self, requests: float | None = None) -> None:
        """ScenarioError if it can't be run; `requests` where their number is known already."""
        self.traffic.check()
        if not 1 <= len(self.variants) <= MAX_VARIANTS:
            raise ScenarioError(
                f"{len(self.variants)} variants can't be compared: give 1 to {MAX_VARIANTS}"
            )
        if len(set(self.variants)) < len(self.variants):
            raise ScenarioError(
                f"v {next(str(v) for v in self.variants if self.variants.count(v) > 1)!r} is given twice:"
                " change one of the two"
            )
        if not 0 <= self.baseline < len(self.variants):
            raise ScenarioError(
                f"baseline {self.baseline} is no variant: they are numbered 0 to {len(self.variants) - 1}"
            )
        for variant in self.variants:
            if max(self.cost_of(variant)) == 0:
                raise ScenarioError(
                    f"{variant}: every cost is 0 ms, so time would stand still: give overhead_ms"
                )
        count = self.traffic.expected if requests is None else requests
        if count > MAX_REQUESTS:
            raise ScenarioError(
                f"{count:,.0f} requests are over the cap of {MAX_REQUESTS:,}: lower rate, duration or"
                " requests, or raise SLOTSCOPE_MAX_REQUESTS"
            )
        memory = count * len(self.variants) * BYTES_PER_REQUEST / 1e6
        if memory > MAX_MEMORY_MB:
            raise ScenarioError(
                f"{count:,.0f} requests under {len(self.variants)} variants need about {memory:,.0f} MB,"
                f" over the cap of {MAX_MEMORY_MB:,} MB: ask for fewer, or raise SLOTSCOPE_MAX_MEMORY_MB"
            )

    def values(self) -> dict[str, float]:
        """Every number that a person may set, by name."""
        costs = dict(zip((c.name for c in COST.coefficients), self.cost, strict=True))
        traffic = {n: getattr(self.traffic, n) for n in PARAMETERS if PARAMETERS[n].group == "traffic"}
        return traffic | self.limits._asdict() | costs | self.slo._asdict()

    def to_query(self) -> dict[str, list[str]]:
        """Names and values of all that is not as in the opening scenario, and plays a part."""
        usual, query = Scenario(), {}
        if self.variants != usual.variants:
            query["v"] = [str(v) for v in self.variants]
        if self.baseline != min(usual.baseline, len(self.variants) - 1):
            query["baseline"] = [str(self.baseline)]
        for name in ("arrivals", "trace", "prompt", "output"):
            value = str(getattr(self.traffic, name))
            if value != str(getattr(usual.traffic, name)) and name in ("arrivals", *self.traffic.uses):
                query[name] = [value]
        for name, value in self.values().items():
            plays = PARAMETERS[name].group != "traffic" or name in self.traffic.uses
            if plays and value != PARAMETERS[name].default:
                query[name] = [repr(value).removesuffix(".0")]
        return query

    def link(self) -> str:
        """The part of the page's address after its host."""
        query = self.to_query()
        return "/?" + urlencode(query, doseq=True, safe=":=,") if query else "/"

    @classmethod
    def from_query(cls, query: Mapping[str, Sequence[str]]) -> tuple["Scenario", list[str]]:
        """The scenario that `query` asks for, and a sentence on each part that can't be had.

        What is wrong stays as in the opening scenario, so that there is always something to show.
        """
        problems: list[str] = []
        size = sum(len(name) + sum(map(len, values)) for name, values in query.items())
        if size > MAX_QUERY:
            return cls(), [
                f"the link has {size:,} characters, more than {MAX_QUERY:,}: it was cut short or padded,"
                " ask for it anew; this is the opening scenario"
            ]

        def attempt(make):
            try:
                return make()
            except ScenarioError as error:
                problems.append(str(error))
                return None

        known = {"v", "baseline", "arrivals", "trace", "prompt", "output", *PARAMETERS}
        problems += [
            f"{name[:40]!r} is no parameter of a scenario and was left out"
            for name in query
            if name not in known
        ]
        got = {name: values[-1] for name, values in query.items() if name in known and values}
        values = {
            name: value
            for name in PARAMETERS
            if name in got and (value := attempt(lambda n=name: PARAMETERS[n].parse(got[n]))) is not None
        }
        traffic = {n: v for n, v in values.items() if PARAMETERS[n].group == "traffic"}
        traffic |= {n: got[n] for n in ("arrivals", "trace") if n in got}
        for name in ("prompt", "output"):
            if name in got and (lengths := attempt(lambda n=name: Lengths.parse(n, got[n]))):
                traffic[name] = lengths
        scenario = cls(
            traffic=Traffic(**traffic),
            limits=Limits()._replace(**{n: values[n] for n in Limits._fields if n in values}),
            cost=tuple(values.get(c.name, c.default) for c in COST.coefficients),
            slo=Slo()._replace(**{n: values[n] for n in Slo._fields if n in values}),
        )
        if "v" in query:
            asked = [attempt(lambda t=text: Variant.parse(t)) for text in query["v"]]
            if variants := tuple(v for v in asked if v):
                scenario = replace(scenario, variants=variants)
        baseline = min(cls().baseline, len(scenario.variants) - 1)
        if "baseline" in got:
            last = len(scenario.variants) - 1
            numbers = Parameter("baseline", baseline, 0, last, "", "", "")
            given = attempt(lambda: numbers.parse(got["baseline"]))
            baseline = baseline if given is None else int(given)
        scenario = replace(scenario, baseline=baseline)
        if problem := scenario.problem():
            problems.append(problem)
            scenario = replace(scenario, traffic=_runnable(scenario))
        if problem := scenario.problem():
            problems.append(problem)
            scenario = cls()
        return scenario, problems

    def problem(self) -> str | None:
        """Why it can't be run, if so."""
        try:
            self.check()
        except ScenarioError as error:
            return str(error)
        return None

    @classmethod
    def from_url(cls, url: str) -> tuple["Scenario", list[str]]:
        """The same from a page's whole address."""
        return cls.from_query(parse_qs(urlsplit(url).query, keep_blank_values=True))


def _runnable(scenario: Scenario) -> Traffic:
    """The opening traffic where the asked one can't be run; one that only lacks its file stays."""
    asked = scenario.traffic
    return asked if "trace" in asked.USES.get(asked.arrivals, ()) and not asked.trace else Traffic()
