"""What a step costs in a scenario: the text of a link, and the coefficients that it stands for.

`linear` takes its coefficients from the scenario. `roofline/h100-sxm/llama-3.1-8b/tp=2` names a
device and a model; what follows overrides a knob or a number of the model.
`calibrated/step_ms=6.5/prefill_ms=0.024` has them written out; `prefill_max=512` says how far the
measured steps went, `error=3` by how many per cent the fit is off, and
`name=measured on a card, 1999-12-31` what they were measured on.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from .costs import COSTS
from .hardware import DEVICES, LLMS, NUMBERS, Device, Llm
from .parameter import Parameter, ScenarioError, parameters, written
from .roofline import ERRORS, KNOBS, PRESETS, Knobs, coefficients

OWN = "own"  # a model that is written out
NAME = re.compile(r"[\w .,:()+-]{1,80}")
CALIBRATED = {
    c.name: Parameter(c.name, c.default, 0.0, 1e6, "ms", c.label)
    for c in COSTS["calibrated"].coefficients
}
RANGES = {
    f"{name}_max": Parameter(f"{name}_max", math.inf, 0.0, 1e15, "", f"Measured up to {name}")
    for name in ("prefill", "decodes", "context", "attended")
}
SIZES = {
    name: Parameter(
        name, 1.0 if "bytes" in name else 1, 0.25 if "bytes" in name else 1, 1e13, "", name
    )
    for name in NUMBERS
}
KNOB = parameters(Knobs)
FRONT = {"front_ms": KNOB["front_ms"]._replace(default=0.0)}
ERROR = {"error": Parameter("error", 0.0, 0.0, 1e6, "%", "Median |error| of the fit, %")}
NUMBERS_OF = {
    "linear": {},
    "roofline": KNOB | SIZES,
    "calibrated": CALIBRATED | RANGES | FRONT | ERROR,
}


class Pricing(NamedTuple):
    """What the engine needs to know."""

    cost: str  # a key of COSTS
    coefficients: tuple[float, ...]
    front_ms: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """A cost model and what it is of."""

    kind: str = "linear"  # a key of COSTS
    device: str = ""  # in DEVICES
    llm: str = ""  # in LLMS, or OWN
    numbers: tuple[tuple[str, float], ...] = ()
    name: str = ""  # of a calibrated one: what was measured, when

    def __str__(self) -> str:
        names = [self.device, self.llm] if self.kind == "roofline" else []
        names += [f"name={self.name}"] if self.name else []
        return "/".join([self.kind, *names, *(f"{n}={written(v)}" for n, v in self.numbers)])

    @property
    def label(self) -> str:
        """As a person says it."""
        if self.kind == "roofline":
            own = ", ".join(f"{n} {written(v)}" for n, v in self.numbers if n in KNOBS)
            named = self.model.label if self.llm != OWN else "own model"
            return f"{named} on {DEVICES[self.device].label}" + (f", {own}" if own else "")
        return self.name or COSTS[self.kind].label

    @classmethod
    def parse(cls, text: str) -> "StepCost":
        """ScenarioError where it can't be had."""
        kind, *words = str(text).split("/")
        if kind not in COSTS:
            raise ScenarioError(f"cost {kind[:40]!r} is unknown: use one of {', '.join(COSTS)}")
        device = llm = named = ""
        if kind == "roofline":
            device, llm, *words = [*words, "", ""] if len(words) < 2 else words
            if device not in DEVICES:
                raise ScenarioError(
                    f"cost device {device[:40]!r} is unknown: use one of {', '.join(DEVICES)}"
                )
            if llm not in LLMS and llm != OWN:
                raise ScenarioError(
                    f"cost model {llm[:40]!r} is unknown: use one of {', '.join(LLMS)}, or {OWN}"
                    f" with {', '.join(NUMBERS)}"
                )
        known, numbers = NUMBERS_OF[kind], {}
        for word in filter(None, words):
            name, _, value = word.partition("=")
            if name == "name" and kind == "calibrated":
                if not NAME.fullmatch(named := value):
                    raise ScenarioError(
                        f"cost name {value[:40]!r} can't be shown: give at most 80 letters, digits"
                        " and .,:()+-"
                    )
                continue
            if name not in known:
                raise ScenarioError(
                    f"cost {kind} has no {name[:40]!r}: use {', '.join(known) or 'no further word'}"
                )
            numbers[name] = known[name].parse(value)
        missing = [n for n in NUMBERS[:-2] if n not in numbers] if llm == OWN else []
        if missing:
            raise ScenarioError(
                f"cost roofline/{device}/{OWN} lacks {', '.join(missing)}: give each"
            )
        return cls(kind, device, llm, tuple(numbers.items()), named)

    @classmethod
    def of_llm(cls, device: str, llm: Llm, knobs: tuple[tuple[str, float], ...] = ()) -> "StepCost":
        """The roofline of a model that is written out."""
        sizes = tuple((name, getattr(llm, name)) for name in NUMBERS)
        return cls("roofline", device, OWN, (*sizes, *knobs))

    @property
    def model(self) -> Llm:
        """Of a roofline."""
        sizes = {n: v for n, v in self.numbers if n in NUMBERS}
        usual = LLMS.get(self.llm) or Llm(OWN, 1, 1, 1, 1, 1, 1.0, "written out in the link")
        return replace(usual, **sizes)

    @property
    def knobs(self) -> Knobs:
        usual = PRESETS.get(self.device, PRESETS["h100-sxm"])
        return replace(usual, **{n: v for n, v in self.numbers if n in KNOBS})

    def pricing(self, linear: tuple[float, ...]) -> Pricing:
        """linear: the coefficients of that model, which the scenario holds."""
        if self.kind == "linear":
            return Pricing("linear", linear, 0.0)
        if self.kind == "roofline":
            device: Device = DEVICES[self.device]
            return Pricing(
                "roofline", coefficients(self.model, device, self.knobs), self.knobs.front_ms
            )
        own = dict(self.numbers)
        coef = tuple(own.get(name, 0.0) for name in CALIBRATED)
        return Pricing("calibrated", coef, own.get("front_ms", 0.0))

    @property
    def known_error(self) -> tuple[float, str]:
        """(%, by which a step's time is known to be off in the median; where that is known from).
        nan where nothing measured says."""
        own = dict(self.numbers)
        if self.kind == "calibrated" and own.get("error"):
            return own["error"], "the median error of the fit to its measured steps"
        if self.kind == "roofline" and self.device in ERRORS:
            device = DEVICES[self.device].label
            said = f"the median error of TPOT on the {device} records, leave-one-out (Fidelity)"
            return ERRORS[self.device], said
        return math.nan, "no measured step or record says"

    @property
    def ranges(self) -> dict[str, float]:
        """Of a calibrated model: the largest of each feature that was measured."""
        return {n.removesuffix("_max"): v for n, v in self.numbers if n in RANGES}
