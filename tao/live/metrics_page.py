"""What a node says about itself at `/metrics`: the few families that are used, by any release's names.

Only their lines go to prometheus_client's parser; the whole page would cost the loop some milliseconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tao.checks import MAX_TOKENS
from tao.live.faults import Broken

MAX_PAGE_BYTES = 2**21  # ours: vLLM 0.32's page has about 60 kB per engine
MAX_KEPT_BYTES = 2**16  # ours: of them about 2 kB are used; more would keep the parser busy for long
FAMILIES = {  # field of `Load`: names, the newest release's first
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_used": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "query_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "hit_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generated_tokens": ("vllm:generation_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "rejections": ("vllm:admission_rejections_total",),
    "started_s": ("process_start_time_seconds",),
}
MOST = dict.fromkeys(FAMILIES, 2.0**53)  # above it a float does not count any more
MOST |= {"kv_used": 1.0, "kv_tokens": MAX_TOKENS, "block_size": MAX_TOKENS}
CONFIG = "vllm:cache_config_info"
_NAMES = "|".join(name for names in (*FAMILIES.values(), (CONFIG,)) for name in names)
_LINE = re.compile(rf"^(?:{_NAMES})[{{ ].*$".encode(), re.MULTILINE)


@dataclass(frozen=True)
class Load:
    """One look at a node; None is unknown, as is whatever no node can mean.

    Counts are sums over the engines behind the address. `kv_used`: share 0..1 that running requests hold;
    reusable cache is not in it. `kv_tokens`: KV capacity of all engines. `block_size` in tokens.
    `started_s`: wall time at which the process started.
    """

    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    query_tokens: float | None = None
    hit_tokens: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    preemptions: float | None = None
    rejections: float | None = None
    started_s: float | None = None
    engines: int = 0
    kv_tokens: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            x = getattr(self, name)
            if x is not None and not 0 <= x <= most:
                object.__setattr__(self, name, None)

    def restarted_since(self, earlier: Load) -> bool:
        """Whether it is another process now, whose cache is empty."""
        return None not in (self.started_s, earlier.started_s) and self.started_s != earlier.started_s

    def hits_since(self, earlier: Load) -> int | None:
        """Cached tokens that the node found between two looks, for servers whose replies do not tell.

        >>> Load(hit_tokens=96.0).hits_since(Load(hit_tokens=32.0)), Load().hits_since(Load())
        (64, None)
        """
        if self.hit_tokens is None or earlier.hit_tokens is None or self.restarted_since(earlier):
            return None
        return max(0, round(self.hit_tokens - earlier.hit_tokens))


def parse(page: bytes) -> Load:
    """The load that a metrics page tells.

    >>> parse(b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 3.6652860755781986e-05').kv_used
    3.6652860755781986e-05
    """
    kept = b"\n".join(_LINE.findall(page))
    if len(kept) > MAX_KEPT_BYTES:
        raise Broken("its metrics page is longer than any that vLLM writes")
    values: dict[str, list[float]] = defaultdict(list)
    configs: dict[str, dict[str, str]] = {}  # by engine: several API servers each repeat it
    try:
        for family in text_string_to_metric_families(kept.decode("utf-8") + "\n"):
            for sample in family.samples:
                if sample.name == CONFIG:
                    configs[sample.labels.get("engine", "0")] = sample.labels
                else:
                    values[sample.name].append(sample.value)
    except (ValueError, KeyError, IndexError, RecursionError):
        raise Broken("its metrics page is not in the format of Prometheus") from None
    found = {}
    for field, names in FAMILIES.items():
        given = next((values[name] for name in names if name in values), None)
        if given and all(value >= 0 for value in given):  # of all engines, and NaN is not
            found[field] = max(given) if field in ("kv_used", "started_s") else sum(given)
    sizes = [_capacity(labels) for labels in configs.values()]
    blocks = [_int(labels.get("block_size")) for labels in configs.values()]
    caching = {labels.get("enable_prefix_caching") for labels in configs.values()} - {None}
    return Load(
        **found,
        engines=len(configs),
        kv_tokens=sum(s for s in sizes if s) if sizes and None not in sizes else None,
        block_size=max((b for b in blocks if b), default=None),
        prefix_caching=caching == {"True"} if caching else None,
    )


def _capacity(labels: dict[str, str]) -> int | None:
    """KV tokens of an engine: `kv_cache_size_tokens` where there is one (vLLM 0.26), else blocks x size."""
    blocks, size = _int(labels.get("num_gpu_blocks")), _int(labels.get("block_size"))
    return _int(labels.get("kv_cache_size_tokens")) or (blocks * size if blocks and size else None)


def _int(label: str | None) -> int | None:
    """A label that is a number above 0; servers also write None."""
    return int(label) if label and label.isascii() and label.isdigit() and len(label) < 16 else None
