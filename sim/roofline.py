"""From a model, a device and a few knobs to the coefficients of the roofline."""

from dataclasses import dataclass, fields

from .costs import COSTS
from .hardware import Device, Llm
from .parameter import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What no data sheet says. The defaults are those of sim.fidelity's fit."""

    tp: int = number(1, 1, 64, "devices", "Tensor parallel over")
    mbu: float = number(0.9, 0.01, 1.0, "share", "MBU: of the bandwidth that is reached")
    mfu: float = number(0.6418, 0.01, 1.0, "share", "MFU: of the FLOP/s that are reached")
    overlap: float = number(0.497, 0.0, 1.0, "share", "Overlap: 0 adds memory and compute, 1: max")
    overhead_ms: float = number(1.631, 0.0, 1e6, "ms", "Launches and scheduling of a step, ms")
    host_ms: float = number(0.0, 0.0, 1e6, "ms", "Host work of a sequence, ms")
    mixed_ms: float = number(1.026, 0.0, 1e6, "ms", "Launches of a step with a prompt, on top, ms")
    hop_ms: float = number(0.01, 0.0, 1e6, "ms", "Latency of an all-reduce, ms")
    front_ms: float = number(18.72, 0.0, 1e6, "ms", "Front end (HTTP, tokeniser), ms a request")


def coefficients(llm: Llm, device: Device, knobs: Knobs) -> tuple[float, ...]:
    """Of COSTS["roofline"], in its order; ms.

    Weights are read once a step, KV of each running request once. Tensor parallel devices share
    weights, KV and FLOP evenly; each layer ends twice in an all-reduce of a token's hidden state,
    which a ring sends 2 (tp - 1) / tp times over each link.
    """
    ms_per_byte = 1e3 / (device.bandwidth_tb_s * 1e12 * knobs.mbu * knobs.tp)
    tflops = device.tflops_fp8 if llm.weight_bytes <= 1 else device.tflops
    ms_per_flop = 1e3 / (tflops * 1e12 * knobs.mfu * knobs.tp)
    ms_per_flop_attention = 1e3 / (device.tflops * 1e12 * knobs.mfu * knobs.tp)
    reduces = 2 * llm.layers if knobs.tp > 1 else 0
    sent = 2 * (knobs.tp - 1) / knobs.tp * llm.hidden * 2
    named = {
        "overhead_ms": knobs.overhead_ms + reduces * knobs.hop_ms,
        "weights_ms": llm.weights * ms_per_byte,
        "kv_ms_per_token": llm.kv_per_token * ms_per_byte,
        "gemm_ms_per_token": llm.flop_per_token * ms_per_flop,
        "attention_ms_per_pair": llm.flop_per_pair * ms_per_flop_attention,
        "network_ms_per_token": reduces * sent / (device.link_gb_s * 1e9) * 1e3,
        "host_ms_per_seq": knobs.host_ms,
        "mixed_ms": knobs.mixed_ms,
        "overlap": knobs.overlap,
    }
    return tuple(named[c.name] for c in COSTS["roofline"].coefficients)


KNOBS = tuple(f.name for f in fields(Knobs))
# By device; only this one has records to fit to (sim.fidelity), and the others take it over.
PRESETS = {"h100-sxm": Knobs()}
# %: median |error| of TPOT on the device's records, leave-one-out (sim.fidelity computes it).
ERRORS = {"h100-sxm": 4.2}
