"""Numbers that a person may set: default, range and unit, once for page, link and CLI."""

import math
from dataclasses import field, fields
from typing import Any, NamedTuple


class ScenarioError(ValueError):
    """A value that can't be run: one sentence that names it and the way out."""


class Parameter(NamedTuple):
    name: str
    default: float  # a whole number takes whole numbers only
    low: float
    high: float
    unit: str
    label: str

    @property
    def span(self) -> str:
        return f"{self.low:,.12g} to {self.high:,.12g} {self.unit}".rstrip()

    def parse(self, text: str) -> float:
        """The number in `text`. ScenarioError unless it is one in range."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ScenarioError(f"{self.name} {text[:40]!r} is no number: give {self.span}")
        if isinstance(self.default, int):
            if value != int(value):
                raise ScenarioError(f"{self.name} {text[:40]} is not whole: give {self.span}")
            value = int(value)
        if not self.low <= value <= self.high:
            raise ScenarioError(f"{self.name} {value:,.12g} is out of range: give {self.span}")
        return value


def written(value: float | str) -> str:
    """The number as a link has it: every digit that it needs, and none more. Text stays."""
    if isinstance(value, str):
        return value
    return repr(value).removesuffix(".0")


def number(default, low, high, unit, label) -> Any:
    """A dataclass field that a person may set."""
    return field(default=default, metadata={"parameter": (default, low, high, unit, label)})


def parameters(cls) -> dict[str, Parameter]:
    """The fields of a dataclass that `number` made, by name."""
    return {
        f.name: Parameter(f.name, *f.metadata["parameter"])
        for f in fields(cls)
        if "parameter" in f.metadata
    }
