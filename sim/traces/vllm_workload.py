"""Workloads of a bench that drives vLLM's engine itself (LLMServingSim)."""

from . import Rows, trace


@trace("Engine workload", "jsonl", "input_toks", "output_toks", "arrival_time_ns", unit="ns")
def vllm_workload(t):
    """Arrivals in ns from 0."""
    return Rows(t.numbers("arrival_time_ns"), t.tokens("input_toks"), t.tokens("output_toks"))
