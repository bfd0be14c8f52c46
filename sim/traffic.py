"""Who asks for what: the frozen description of a stream of requests (sim.workload draws it)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from .parameter import ScenarioError, number, written

LONGEST = 1_000_000  # tokens of one prompt or output


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts or outputs are, in tokens, as `kind:number:number…`."""

    kind: str
    numbers: tuple[float, ...] = ()

    FORMS: ClassVar = {
        "lognormal": ("median", "sigma", "low", "high"),  # cut to [low, high], truncated to whole
        "uniform": ("low", "high"),  # whole numbers, both ends included
        "fixed": ("tokens",),
        "trace": (),  # drawn from the rows of the trace, with replacement
    }

    def __str__(self) -> str:
        return ":".join([self.kind, *map(written, self.numbers)])

    def __getitem__(self, name: str) -> float:
        return self.numbers[self.FORMS[self.kind].index(name)]

    @property
    def longest(self) -> int:
        """The largest length that can be drawn; 0 where only the trace knows."""
        return int(self.numbers[-1]) if self.numbers else 0

    @classmethod
    def parse(cls, name: str, text: str) -> "Lengths":
        """Read `text`, the value of the parameter `name`. ScenarioError where it can't be had."""
        shown = f"{name} {text[:40]!r}"
        forms = [":".join([kind, *names]) for kind, names in cls.FORMS.items()]
        kind, *rest = text.split(":")
        try:
            numbers = tuple(float(n) for n in rest)
        except ValueError:
            numbers = (math.nan,)
        names = cls.FORMS.get(kind)
        if names is None or len(numbers) != len(names) or not all(map(math.isfinite, numbers)):
            raise ScenarioError(f"{shown} is no length distribution: use {' or '.join(forms)}")
        given = dict(zip(names, numbers, strict=True))
        sigma = given.pop("sigma", 0)
        if not (0 <= sigma <= 10 and all(1 <= n <= LONGEST for n in given.values())):
            raise ScenarioError(
                f"{shown} is out of range: tokens go from 1 to {LONGEST:,}, sigma from 0 to 10"
            )
        if any(n % 1 for name, n in given.items() if name != "median"):
            raise ScenarioError(f"{shown} is not in whole tokens: round it")
        if given.get("low", 0) > given.get("high", LONGEST):
            raise ScenarioError(f"{shown} has its low above its high: swap them")
        return cls(kind, numbers)


ARRIVALS = {
    "module": "the course module's generator: Poisson, Python's random",
    "poisson": "Poisson",
    "gamma": "gamma intervals, CV = 1/sqrt(burstiness)",
    "constant": "one every 1/rate seconds",
    "burst": "all at once",
    "closed": "closed loop: a client sends its next request when its last one is done",
    "trace": "a file's own arrivals and lengths",
    "timed": "a file's own arrivals, lengths drawn",
    "list": "written out: arrival ms:prompt:output[:priority], ;",
}

MIXED = (
    "seed",
    "prompt",
    "output",
    "limit_factor",
    "stop_tokens",
    "urgent",
    "prefixes",
    "prefix_tokens",
)
WINDOW = ("first", "since", "until", "speed", "spread")
RATED = ("rate", "duration", *MIXED)
USES = {
    "module": (*RATED, "as_printed"),
    "poisson": RATED,
    "gamma": (*RATED, "burstiness"),
    "constant": RATED,
    "burst": ("requests", *MIXED),
    "closed": ("requests", "clients", *MIXED),
    "trace": ("trace", *WINDOW),
    "timed": ("trace", *WINDOW, *MIXED),
    "list": ("list",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One stream of requests. Which fields count depends on `arrivals`: see `uses`."""

    arrivals: str = "module"  # a key of ARRIVALS
    rate: float = number(36.0, 0.01, 10_000.0, "req/s", "Rate, req/s")
    duration: float = number(30.0, 0.1, 86_400.0, "s", "Arrivals for, s")
    requests: int = number(1_000, 1, 10_000_000, "requests", "Requests")
    clients: int = number(32, 1, 100_000, "clients", "Clients")
    burstiness: float = number(0.25, 0.001, 1_000.0, "", "Burstiness (1: Poisson; less: burstier)")
    prompt: Lengths = Lengths("lognormal", (700, 0.9, 64, 4096))
    output: Lengths = Lengths("lognormal", (110, 0.6, 16, 384))
    seed: int = number(1234, 0, 2**53, "", "Seed")
    limit_factor: float = number(
        0.0, 0.0, 1_000.0, "times", "Declared limit, times the output (0: the longest there is)"
    )
    stop_tokens: int = number(
        0, 0, 1, "", "Ends before the limit: at a stop token, unforeseen (1); known (0)"
    )
    urgent: float = number(0.0, 0.0, 1.0, "share", "Urgent share (priority 0; the others 1)")
    prefixes: int = number(0, 0, 1_000_000, "prefixes", "Shared prefixes")
    prefix_tokens: int = number(512, 1, LONGEST, "tokens", "Tokens of a shared prefix")
    as_printed: int = number(0, 0, 1, "", "As printed: seconds read as ms")
    trace: str = ""  # the name of a file's content
    list: str = "0:700:110;50:4096:110;100:64:110"  # requests written out
    first: int = number(0, 0, 10_000_000, "requests", "First N requests (0: all)")
    since: float = number(0.0, 0.0, 1e9, "s", "Window from, s")
    until: float = number(0.0, 0.0, 1e9, "s", "Window to, s (0: end)")
    speed: float = number(1.0, 0.001, 10_000.0, "times", "Speed-up")
    spread: int = number(0, 0, 1, "", "Spread arrivals that share a time: 1 or 0")

    @property
    def uses(self) -> tuple[str, ...]:
        """The fields that this kind of traffic looks at."""
        names = USES[self.arrivals]
        drawn = "trace" not in names and "trace" in (self.prompt.kind, self.output.kind)
        return (*names, "trace") if drawn else names

    @property
    def expected(self) -> float:
        """Requests to expect; how many a trace has is known once it is read."""
        if self.arrivals in ("trace", "timed"):
            return self.first
        if self.arrivals == "list":
            return self.list.count(";") + 1
        return self.rate * self.duration if "rate" in self.uses else self.requests

    def check(self) -> None:
        """ScenarioError if the fields don't go together."""
        if self.arrivals not in ARRIVALS:
            raise ScenarioError(
                f"arrivals {self.arrivals[:40]!r} is unknown: use one of {', '.join(ARRIVALS)}"
            )
        drawn = (self.prompt.kind, self.output.kind)
        if self.arrivals == "timed" and "trace" in drawn:
            raise ScenarioError("arrivals timed draws its lengths: use lognormal, uniform or fixed")
        if self.arrivals == "module" and {self.prompt.kind, self.output.kind} != {"lognormal"}:
            raise ScenarioError(
                f"arrivals module draws lognormal lengths only, not {self.prompt} and"
                f" {self.output}: use arrivals poisson"
            )
        if self.arrivals in ("trace", "timed") and 0 < self.until <= self.since:
            raise ScenarioError(
                f"until {self.until:g} s is not after since {self.since:g} s: widen the window"
            )
