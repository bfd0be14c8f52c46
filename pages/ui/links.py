"""Scenarios worth a look, as links."""


def _report(requests: str, ms_per_token: float, rest: str) -> str:
    """Requests written out; a step costs its tokens and nothing else."""
    cost = f"prefill_ms_per_token={ms_per_token}&decode_ms_per_seq={ms_per_token}"
    return f"arrivals=list&list={requests}&{rest}&overhead_ms=0&decode_base_ms=0&{cost}&baseline=0"


LINKS = {
    "Busy half minute": "",
    # Near what it carries the p95 with 1,024 tokens misses the limit of TTFT, with 8,192, the
    # default, that of TPOT. The pool is what 0.9 of the card leaves
    # beside the weights ("KV pool from GPU memory").
    "Which budget? vLLM, an 8B, an H100, chat": "v=vllm-0.33.0-h100-api:max_num_batched_tokens=1024"
    "&v=vllm-0.33.0-h100-api:max_num_batched_tokens=2048&v=vllm-0.33.0-h100-api&baseline=2"
    "&cost=roofline/h100-sxm/llama-3.1-8b&num_gpu_blocks=26674&arrivals=poisson&rate=23"
    "&duration=60&prompt=lognormal:700:0.9:64:4096&output=lognormal:200:0.6:16:1024",
    "The module's own, 16 req/s": "v=static&v=continuous&v=chunked&rate=16",
    "The module as printed": "v=static&v=continuous&v=chunked&rate=16&as_printed=1",
    "Chunk 8 to 2048": "v=continuous&v=chunked:chunk=8&v=chunked:chunk=32&v=chunked:chunk=128"
    "&v=chunked:chunk=512&v=chunked:chunk=2048&baseline=0&rate=16",
    "Two budgets": "v=chunked:max_num_batched_tokens=256&v=chunked:max_num_batched_tokens=8192",
    "Bursts": "arrivals=gamma&rate=24&burstiness=0.1",
    "Closed loop, 48 clients": "arrivals=closed&clients=48&requests=1000",
    "Short of KV memory": "v=vllm_v1&v=vllm_v0&v=orca&max_num_seqs=64&num_gpu_blocks=1200"
    "&baseline=0",
    "Shortest job first starves": "v=sarathi&v=sjf&limit_factor=1&rate=44&num_gpu_blocks=2000"
    "&baseline=0",
    "Shared prefixes, cached and not": "v=vllm_v1&v=vllm_v1:enable_prefix_caching=1&prefixes=4"
    "&prefix_tokens=512&rate=40&num_gpu_blocks=2000&baseline=0",
    "Why vLLM plans a step ahead: 2 ms of host work": "v=vllm_v1:async_scheduling=0&v=vllm_v1"
    "&host_ms=2&rate=30&baseline=0",
    # Bursts over sixteen long prefixes, of which the pool holds half: fcfs computes again what lpm
    # finds in the cache.
    "Same engine, two versions": "v=sglang-0.5.18-h100-api&v=sglang-0.4.0-h100-api&arrivals=gamma"
    "&burstiness=0.05&rate=24&prefixes=16&prefix_tokens=2048&prompt=uniform:2112:2560"
    "&num_gpu_blocks=1500&baseline=0",
    "vLLM against SGLang": "v=vllm-0.33.0-h100-api&v=sglang-0.5.18-h100-api"
    "&v=sglang-0.5.18-h100-api:enable_mixed_chunk=1&baseline=0",
    # Public reports, restated in our terms, of the synchronous scheduler.
    "One stream against two cold 72k prompts": _report(
        "0:16:500;116.7:72000:8;116.7:72000:8",
        0.416666666666667,
        "v=vllm_v1&v=vllm_v1:max_num_batched_tokens=2048&num_gpu_blocks=20000&max_model_len=80000"
        "&async_scheduling=0",
    ),
    "Short prompt behind a 131k prompt": _report(
        "0:131072:8;1000:512:8",
        0.05,
        "v=vllm_v1&v=vllm_v1:long_prefill_token_threshold=1024&max_num_batched_tokens=2048"
        "&num_gpu_blocks=20000&max_model_len=140000&async_scheduling=0",
    ),
    "Urgent, and every seat taken": "arrivals=list&list="
    + ";".join(["0:200:1000:5"] * 4)
    + ";1000:200:10:0&v=priority&v=priority:preempt_on_arrival=1&max_num_seqs=4&overhead_ms=10"
    "&prefill_ms_per_token=0&decode_base_ms=0&decode_ms_per_seq=0&baseline=0",
    "A pool that fills, then collapses": "arrivals=list&list="
    + ";".join(["0:78460:12000"] * 8)
    + "&v=vllm_v1&num_gpu_blocks=42689&max_num_seqs=8&max_model_len=100000&overhead_ms=33.44"
    "&prefill_ms_per_token=0.01&decode_base_ms=0&decode_ms_per_seq=0",
    # The module's arithmetic: 8 GiB at 128 KiB a token, 4,096 tokens reserved for each of 16
    # requests that hold 2,200 on average.
    "An 8 GiB pool, 54 % used": "v=orca_max&v=vllm_v1&arrivals=burst&requests=128&prompt=fixed:2100"
    "&output=fixed:200&max_model_len=4096&num_gpu_blocks=4097&max_num_seqs=64&baseline=0",
}
