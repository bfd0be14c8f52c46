"""Cost models: how long the planned step takes.

A cost model is a compiled function of (n, coef) -> ms: n are the counters of the planned step
(sim.state.COUNTERS), coef its coefficients in the declared order.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from .jit import jit
from .state import COUNTERS

COST = numba.float64(numba.from_dtype(COUNTERS), numba.float64[::1])


class Coefficient(NamedTuple):
    name: str
    default: float
    label: str


class CostModel(NamedTuple):
    name: str
    label: str
    about: str
    coefficients: tuple[Coefficient, ...]
    ms: Callable[[np.record, np.ndarray], float]


COSTS: dict[str, CostModel] = {}


def cost_model(label: str, *coefficients: Coefficient):
    def register(ms):
        name, about = ms.__name__, inspect.getdoc(ms) or ""
        COSTS[name] = CostModel(name, label, about, coefficients, jit(COST)(ms))
        return ms

    return register


@cost_model(
    "Linear",
    Coefficient("overhead_ms", 0.20, "Overhead of a step, ms"),
    Coefficient("prefill_ms_per_token", 0.020, "Per prompt token, ms"),
    Coefficient("decode_base_ms", 0.40, "Base of a step that decodes, ms"),
    Coefficient("decode_ms_per_seq", 0.030, "Per decoding sequence, ms"),
)
def linear(n, coef):
    """The module's: overhead + per prompt token + (base + per sequence) where any decodes."""
    ms = coef[0] + coef[1] * (n.prefill + n.pad_prefill)
    decodes = n.decodes + n.pad_decodes
    if decodes > 0:
        ms += coef[2] + coef[3] * decodes
    return ms
