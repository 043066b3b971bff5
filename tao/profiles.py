"""Engine profiles: how long one step of a node takes, and how many tokens its KV cache holds.

The step-time law, for B decoding sequences with K tokens of context in all, and prefill chunks of n
tokens after c tokens that are already in the cache::

    host + max(t0 + t1 * (1 - (1 - r)**(B + n)), ap + d * n) + sum e * n * (c + n / 2) + t2 * B + c1 * K

`ap + d * n` counts only when something is prefilled. Times are whole picoseconds, so that every
host of the simulation computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tao.model import InputError

PS_PER_S = 10**12
_PS = {"ms": 10**9, "us": 10**6}


@dataclass(frozen=True)
class Profile:
    """Constants of the step-time law for one model on one kind of node, with where they come from.

    `capacity_tokens`: KV cache of a node. `block_tokens`: prefix hits are whole blocks.
    """

    name: str
    capacity_tokens: int
    t0_ms: float  # dense weights and launch
    t1_ms: float  # all experts touched
    expert_share: float  # r: experts that one token touches / all
    t2_us: float  # per decoding sequence
    kv_us_per_1k: float  # c1: reading 1,000 tokens of KV cache
    prefill_ms: float  # ap: fixed part of a prefill
    prefill_us: float  # d: per prefilled token
    attention_us_per_1k: float  # e: per prefilled token and 1,000 tokens before it
    host_ms: float  # between steps, on the CPU
    max_batched_tokens: int = 8192  # vLLM V1 default on GPUs of 70 GiB and more
    max_seqs: int = 1024  # likewise
    block_tokens: int = 16  # vLLM default on GPUs
    provenance: str = ""
    known_error: str = ""

    def __post_init__(self) -> None:
        for name in ("capacity_tokens", "max_batched_tokens", "max_seqs", "block_tokens"):
            given = getattr(self, name)
            if not isinstance(given, int) or given < 1:
                raise InputError(
                    f"profile {self.name!r}: {name} is {given!r}; it must be a whole number above 0"
                )

    @cached_property
    def law(self) -> StepLaw:
        """The same constants in whole picoseconds."""
        untouched, experts = 1.0, []
        for _ in range(self.max_seqs + self.max_batched_tokens + 1):
            experts.append(round(self.t1_ms * _PS["ms"] * (1.0 - untouched)))
            untouched *= 1.0 - self.expert_share
        return StepLaw(
            base=round(self.t0_ms * _PS["ms"]),
            experts=tuple(experts),
            per_sequence=round(self.t2_us * _PS["us"]),
            per_kv_token=round(self.kv_us_per_1k * _PS["us"] / 1000),
            prefill=round(self.prefill_ms * _PS["ms"]),
            per_prefill_token=round(self.prefill_us * _PS["us"]),
            attention=round(self.attention_us_per_1k * _PS["us"] / 1000),
            host=round(self.host_ms * _PS["ms"]),
        )


@dataclass(frozen=True)
class StepLaw:
    """The step-time law in whole picoseconds (see the module's docstring)."""

    base: int
    experts: tuple[int, ...]  # by number of tokens in the step
    per_sequence: int
    per_kv_token: int
    prefill: int
    per_prefill_token: int
    attention: int  # per prefilled token and token before it
    host: int

    def step_ps(self, decodes: int, context: int, chunks: Iterable[tuple[int, int]] = ()) -> int:
        """Duration of a step: `decodes` sequences over `context` tokens, `chunks` of (new, cached) tokens.

        >>> PROFILES["qwen3-32b-2xh100"].law.step_ps(decodes=16, context=16 * 20_000) / 1e9  # ms
        29.744
        """
        new, attention = 0, 0
        for n, cached in chunks:
            new += n
            attention += n * (2 * cached + n)
        work = self.base + self.experts[decodes + new]
        if new:
            work = max(work, self.prefill + self.per_prefill_token * new)
        return (
            self.host
            + work
            + self.attention * attention // 2
            + self.per_sequence * decodes
            + self.per_kv_token * context
        )


PROFILES: dict[str, Profile] = {
    "qwen3-32b-2xh100": Profile(
        name="qwen3-32b-2xh100",
        capacity_tokens=310_000,
        t0_ms=13.6,
        t1_ms=0.0,
        expert_share=0.0,
        t2_us=30.0,
        kv_us_per_1k=42.7,
        prefill_ms=3.4,
        prefill_us=60.0,
        attention_us_per_1k=1.60,
        host_ms=2.0,
        provenance=(
            "Qwen3-32B, bf16, TP2 on H100: step-time law fitted to NVIDIA AIConfigurator 0.12 kernel tables "
            "(vLLM 0.24), host time and prefill slope set by us on measured runs; KV capacity by bytes at "
            "0.9 memory utilization, +-5 %"
        ),
        known_error=(
            "on 30 measured points of vLLM 0.12 (1k and 4k prompts, 8 to 128 at a time) TPOT is off by 5.6 % "
            "in the mean and 17 % at most, TTFT by 93 % in the mean: TTFT is the least trustworthy output"
        ),
    ),
}


DEFAULT_PROFILE = "qwen3-32b-2xh100"


def profile(name: str) -> Profile:
    """The built-in profile of that name; raises `InputError` listing the names."""
    if name not in PROFILES:
        raise InputError(f"profile is {name!r}; it must be one of {', '.join(PROFILES)}")
    return PROFILES[name]
