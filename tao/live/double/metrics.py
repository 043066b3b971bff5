"""The server's `/metrics`: vLLM's names, labels and buckets, counted from what the engine does.

They are written by the library that vLLM itself uses, so a page differs from a real one in its numbers only.
"""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tao.live.double.jobs import Job
from tao.profiles import PS_PER_S

Version = tuple[int, int, int]
# Buckets as in vLLM 0.32; those of tokens go up to the model's length.
TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
LATENCY = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
ITERATION = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
RESIDENCY = "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 30 60 120 300 600 1200 1800"
TOKENS = ""

# Name, extra labels with their values, first and last release (of those looked at) that has it.
GAUGES = """
num_requests_running
num_requests_waiting
num_requests_waiting_by_reason reason=capacity|deferred 0.20
engine_sleep_state sleep_state=awake|weights_offloaded|discard_all 0.12
kv_cache_usage_perc
gpu_cache_usage_perc - 0 0.10"""
COUNTERS = """
estimated_flops_per_gpu - 0.20
estimated_read_bytes_per_gpu - 0.20
estimated_write_bytes_per_gpu - 0.20
prefix_cache_queries
prefix_cache_hits
gpu_prefix_cache_queries - 0 0.10
gpu_prefix_cache_hits - 0 0.10
external_prefix_cache_queries - 0.12
external_prefix_cache_hits - 0.12
mm_cache_queries - 0.12
mm_cache_hits - 0.12
num_preemptions
prompt_tokens
prompt_tokens_by_source source=local_compute|local_cache_hit|external_kv_transfer 0.17
prompt_tokens_cached - 0.17
prompt_tokens_cached_by_source source=device|host|p2p|disk|external_unspecified 0.26
generation_tokens
request_success finished_reason=stop|length|abort|error|repetition
admission_rejections reason=max_num_queued_reqs|max_num_queued_tokens 0.32"""
HISTOGRAMS = {
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "iteration_tokens_total": ITERATION,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_n": "1 2 5 10 20",
    "request_params_max_tokens": TOKENS,
    "time_to_first_token_seconds": TTFT,
    "time_per_output_token_seconds - 0 0.14": ITL,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_num_preemptions - 0.32": "1 2 3 4 5 10 20",
    "request_prefill_kv_computed_tokens - 0.17": TOKENS,
    "kv_block_lifetime_seconds - 0.12": RESIDENCY,
    "kv_block_idle_before_evict_seconds - 0.12": RESIDENCY,
    "kv_block_reuse_gap_seconds - 0.12": RESIDENCY,
}
HELP = "Simulated; see vLLM's metric of this name."


class Metrics:
    """All families of one server that its version has."""

    def __init__(
        self, model: str, version: Version, max_model_len: int, info: dict[str, str], speedup: float = 1.0
    ) -> None:
        self.model, self.version = model, version
        self.second_ps = PS_PER_S * speedup  # of simulated time
        self.started_s = time.time()
        self.registry = CollectorRegistry()
        self._children: dict[tuple[str, str], Any] = {}
        for kind, lines in ((Gauge, GAUGES.split("\n")[1:]), (Counter, COUNTERS.split("\n")[1:])):
            for line in lines:
                self._add(kind, line)
        tokens = [m * 10**e for e in range(8) for m in (1, 2, 5) if m * 10**e <= max_model_len]
        for line, limits in HISTOGRAMS.items():
            self._add(Histogram, line, buckets=[float(x) for x in limits.split()] or tokens)
        labels = info | {"engine": "0"}
        config = Gauge("vllm:cache_config_info", HELP, sorted(labels), registry=self.registry)
        config.labels(**labels).set(1)
        Gauge("process_start_time_seconds", HELP, registry=self.registry).set(self.started_s)
        self.set("engine_sleep_state", 1, "awake")

    def _add(self, kind: Any, line: str, **options: Any) -> None:
        name, label, first, last = (line.split() + ["-", "0", "99"][len(line.split()) - 1 :])[:4]
        release = self.version[1]
        if not _release(first) <= release <= _release(last):
            return
        key, _, values = label.partition("=")
        names = ["model_name"] if name == "admission_rejections" else ["model_name", "engine"]
        known = dict(zip(names, (self.model, "0"), strict=False))
        extra = [key] if values else []
        family = kind(f"vllm:{name}", HELP, names + extra, registry=self.registry, **options)
        for value in values.split("|"):
            self._children[name, value] = family.labels(**known, **dict.fromkeys(extra, value))

    def set(self, gauge: str, value: float, label: str = "") -> None:
        """Set a gauge, if this version has it."""
        if child := self._children.get((gauge, label)):
            child.set(value)

    def add(self, counter: str, amount: float = 1, label: str = "") -> None:
        """Raise a counter, if this version has it."""
        if child := self._children.get((counter, label)):
            child.inc(amount)

    def observe(self, histogram: str, value: float) -> None:
        """Count a value, if this version has the histogram."""
        if child := self._children.get((histogram, "")):
            child.observe(value)

    def load(self, running: int, waiting: int, usage: float) -> None:
        """What the node does now; `usage` is the share of its KV blocks that requests use."""
        self.set("num_requests_running", running)
        self.set("num_requests_waiting", waiting)
        self.set("num_requests_waiting_by_reason", waiting, "capacity")
        self.set("kv_cache_usage_perc", usage)
        self.set("gpu_cache_usage_perc", usage)

    def admitted(self, job: Job) -> None:
        """A request is in a batch for the first time."""
        for old in ("", "gpu_") if job.reads else ():
            self.add(f"{old}prefix_cache_queries", job.prompt_tokens)
            self.add(f"{old}prefix_cache_hits", job.hit_tokens)
        self.add("prompt_tokens_cached_by_source", job.hit_tokens, "device")

    def token(self, job: Job, now_ps: int) -> int:
        """A request has one more token; how many tokens the step computed for it, as vLLM counts them."""
        self.add("generation_tokens")
        if job.emitted > 1:
            for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
                self.observe(name, (now_ps - job.last_ps) / self.second_ps)
            return 1
        computed = job.prompt_tokens - job.hit_tokens
        self.add("prompt_tokens", job.prompt_tokens)
        self.add("prompt_tokens_by_source", computed, "local_compute")
        self.add("prompt_tokens_by_source", job.hit_tokens, "local_cache_hit")
        self.add("prompt_tokens_cached", job.hit_tokens)
        self.observe("time_to_first_token_seconds", (now_ps - job.submitted_ps) / self.second_ps)
        return computed + 1

    def finished(self, job: Job) -> None:
        """A request has ended well."""
        self.add("request_success", 1, "stop" if job.reason == "tool_calls" else job.reason)
        at = [
            x / self.second_ps
            for x in (job.submitted_ps, job.scheduled_ps, job.first_token_ps, job.finished_ps)
        ]
        submitted, scheduled, first, end = at
        for name, value in {
            "request_prompt_tokens": job.prompt_tokens,
            "request_generation_tokens": job.output_tokens,
            "request_params_max_tokens": job.max_tokens,
            "request_time_per_output_token_seconds": (end - first) / max(job.output_tokens - 1, 1),
            "e2e_request_latency_seconds": end - submitted,
            "request_queue_time_seconds": scheduled - submitted,
            "request_inference_time_seconds": end - scheduled,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": end - first,
            "request_num_preemptions": job.preemptions,
            "request_prefill_kv_computed_tokens": job.prompt_tokens - job.hit_tokens,
        }.items():
            self.observe(name, value)
        job.others.discard(job.session)
        if not job.others:
            self.observe("request_max_num_generation_tokens", job.output_tokens)
            self.observe("request_params_n", job.n)

    def page(self) -> bytes:
        """The text of `/metrics`."""
        return generate_latest(self.registry)


def _release(text: str) -> int:
    return int(text.removeprefix("0.") or 0)
