"""Cost models: how long the planned step takes.

A cost model is a compiled function of (n, coef) -> ms: n are the counters of the planned step
(sim.state.COUNTERS), coef its coefficients in the declared order. Each coefficient multiplies a
feature of the step; `features` fills them for prediction, and from recorded steps for fitting.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from .jit import jit
from .state import COUNTERS, STEP

COST = numba.float64(numba.from_dtype(COUNTERS), numba.float64[::1])


class Features(NamedTuple):
    """What a step is made of. To add one: a line here, one in `features`, its counters in STEP."""

    step: float  # 1
    prefill: float  # prompt tokens, padding included
    prompts: float  # prompts that have tokens in it
    mixed: float  # 1 where any has
    decoding: float  # 1 where any request decodes
    decodes: float  # sequences that decode, padding included
    context: float  # tokens whose KV the decodes read
    reread: float  # tokens whose KV the prompts' later chunks read again
    attended: float  # pairs of a prompt token and one that it attends to
    emitting: float  # 1 where any request emits a token: what the output head costs


# From step to step, while the plan stays the same.
GROWING = {"context", "reread", "attended", "emitting"}


@jit()
def features(n):
    """Of the planned step, or of a recorded one."""
    decodes = n.decodes + n.pad_decodes
    return Features(
        1.0,
        float(n.prefill + n.pad_prefill),
        float(n.prompts),
        1.0 if n.prompts > 0 else 0.0,
        1.0 if decodes > 0 else 0.0,
        float(decodes),
        float(n.context),
        float(n.reread),
        float(n.attended),
        1.0 if decodes + n.completed > 0 else 0.0,
    )


@jit(numba.void(numba.from_dtype(STEP)[::1], numba.float64[:, ::1]))
def fill(steps, x):
    """x: (steps, len(Features._fields)), the features of each recorded step; of the first of those
    that repeat."""
    for k in range(len(steps)):
        row = features(steps[k])
        for j in range(len(row)):
            x[k, j] = row[j]


class Coefficient(NamedTuple):
    name: str
    default: float
    label: str
    feature: str = ""  # what it multiplies; "": nothing, it is a knob


class CostModel(NamedTuple):
    name: str
    label: str
    about: str
    coefficients: tuple[Coefficient, ...]
    ms: Callable[[np.record, np.ndarray], float]

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(c.feature for c in self.coefficients)

    @property
    def steady(self) -> bool:
        """Whether steps that are planned alike take equally long."""
        return not GROWING & set(self.features)


COSTS: dict[str, CostModel] = {}


def cost_model(label: str, *coefficients: Coefficient):
    def register(ms):
        name, about = ms.__name__, inspect.getdoc(ms) or ""
        COSTS[name] = CostModel(name, label, about, coefficients, jit(COST)(ms))
        return ms

    return register


def planned(
    *, prefill=0, prompts=0, decodes=0, context=0, reread=0, attended=0, completed=0
) -> np.record:
    """The counters of a step of that make, as a cost model reads them."""
    n = np.zeros(1, COUNTERS).view(np.recarray)[0]
    n.prefill, n.prompts, n.decodes = prefill, prompts, decodes
    n.context, n.reread, n.attended, n.completed = context, reread, attended, completed
    return n


@cost_model(
    "Linear",
    Coefficient("overhead_ms", 0.20, "Overhead of a step, ms", "step"),
    Coefficient("prefill_ms_per_token", 0.020, "Per prompt token, ms", "prefill"),
    Coefficient("decode_base_ms", 0.40, "Base of a step that decodes, ms", "decoding"),
    Coefficient("decode_ms_per_seq", 0.030, "Per decoding sequence, ms", "decodes"),
)
def linear(n, coef):
    """The module's: overhead + per prompt token + (base + per sequence) where any decodes."""
    x = features(n)
    ms = coef[0] + coef[1] * x.prefill
    if x.decodes > 0.0:
        ms += coef[2] + coef[3] * x.decodes
    return ms


@cost_model(
    "Roofline",
    Coefficient("overhead_ms", 1.5, "Launches and scheduling of a step, ms", "step"),
    Coefficient("weights_ms", 4.78, "Reading the weights, ms"),
    Coefficient("kv_ms_per_token", 0.0, "Reading the KV of a token, ms", "context"),
    Coefficient("gemm_ms_per_token", 0.0, "Matrix products of a token, ms"),
    Coefficient("attention_ms_per_pair", 0.0, "Attention of a pair of tokens, ms", "attended"),
    Coefficient("network_ms_per_token", 0.0, "All-reduce of a token, ms"),
    Coefficient("host_ms_per_seq", 0.0, "Host work of a sequence, ms"),
    Coefficient("mixed_ms", 0.0, "Launches of a step with a prompt, on top, ms", "mixed"),
    Coefficient("overlap", 0.0, "Share of the shorter time that hides behind the longer"),
)
def roofline(n, coef):
    """Memory time and compute time of a model on a device, added or overlapped; and overhead."""
    x = features(n)
    tokens = x.prefill + x.decodes
    memory = coef[1] + coef[2] * (x.context + x.reread)
    compute = coef[3] * tokens + coef[4] * (x.attended + x.context)
    rest = coef[0] + coef[5] * tokens + coef[6] * (x.prompts + x.decodes) + coef[7] * x.mixed
    return rest + memory + compute - coef[8] * min(memory, compute)


@cost_model(
    "Calibrated",
    *(Coefficient(f"{name}_ms", 0.0, f"{name}, ms", name) for name in Features._fields),
)
def calibrated(n, coef):
    """A weighted sum of what the step is made of, fitted to measured steps."""
    x = features(n)
    ms = 0.0
    for k in range(len(x)):
        ms += coef[k] * x[k]
    return ms
