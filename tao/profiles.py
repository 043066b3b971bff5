"""Engine profiles: how long one step of a node takes, and how many tokens its KV cache holds.

The step-time law, for B decoding sequences with K tokens of context in all, and prefill chunks of n
tokens after c tokens that are already in the cache::

    host + max(t0 + t1 * (1 - (1 - r)**(B + n)), ap + d * n) + sum e * n * (c + n / 2) + t2 * B + c1 * K

`ap + d * n` counts only when something is prefilled. Times are whole picoseconds, so that every
host of the simulation computes the same numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tao import checks
from tao.checks import InputError, shown

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
        checks.name(self.name, "profile name")
        for f in fields(self):
            given, what = getattr(self, f.name), f"profile {shown(self.name)}: {f.name}"
            if f.type == "int":
                checks.whole(given, what, 1)
            elif f.type == "float":
                checks.at_least_zero(given, what)
            else:
                checks.text(given, what)
        if self.expert_share > 1:
            what = f"profile {shown(self.name)}: expert_share"
            raise InputError(f"{what} is {self.expert_share}; it is at most 1")
        if not min(self.law.step_ps(1, 0), self.law.step_ps(0, 0, [(1, 0)])):
            raise InputError(
                f"profile {shown(self.name)}: its steps take no time; raise host_ms or t0_ms above 0"
            )

    @classmethod
    def from_roofline(
        cls,
        name: str,
        *,
        params_total: float,
        params_active: float,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        gpus: int,
        expert_share: float = 0.0,
        weight_bytes: float = 2.0,
        kv_bytes: float = 2.0,
        memory_gib: float = 80.0,
        bandwidth_tb_s: float = 3.35,
        tflops: float = 989.0,
    ) -> Profile:
        """A rough profile from the shape of a model and the data sheet of a GPU (default: H100 SXM).

        The shares of the peak that are reached (0.77 of the bandwidth for weights, 0.92 for KV cache, 0.66
        of the FLOPs) are those of the fitted `qwen3-32b-2xh100`. Raises `InputError` if nothing fits.

        >>> shape = dict(layers=64, heads=64, kv_heads=8, head_dim=128, gpus=2)
        >>> rough = Profile.from_roofline("qwen", params_total=32.8e9, params_active=32.8e9, **shape)
        >>> round(rough.t0_ms, 1), round(rough.kv_us_per_1k, 1), rough.capacity_tokens
        (12.7, 42.5, 310907)
        """
        kv_per_gpu = 2 * layers * kv_heads * head_dim * kv_bytes / min(gpus, kv_heads)
        weights = params_total * weight_bytes / gpus
        room = (0.9 * memory_gib - 3.5) * 2**30 - weights  # 3.5 GiB for activations and communication
        if room < kv_per_gpu:
            raise InputError(
                f"profile {shown(name)}: {weights / 2**30:.1f} GiB of weights leave no room for KV cache in "
                f"{memory_gib:g} GiB; use more GPUs or smaller weights"
            )
        read_ms = weight_bytes / gpus / (bandwidth_tb_s * 1e12 * 0.77) * 1e3  # per parameter
        compute_us = 1e6 / (gpus * tflops * 1e12 * 0.66)  # per FLOP
        return cls(
            name=name,
            capacity_tokens=int(room / kv_per_gpu),
            t0_ms=params_active * read_ms,
            t1_ms=(params_total - params_active) * read_ms,
            expert_share=expert_share,
            t2_us=30.0,
            kv_us_per_1k=1000 * kv_per_gpu / (bandwidth_tb_s * 1e12 * 0.92) * 1e6,
            prefill_ms=3.4,
            prefill_us=2 * params_active * compute_us,
            attention_us_per_1k=1000 * 4 * layers * heads * head_dim * compute_us,
            host_ms=2.0,
            provenance="roofline from the model's shape and the GPU's data sheet",
            known_error="not compared with any measurement",
        )

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Profile:
        """A profile from a JSON object with the names of the fields; raises `InputError` on anything else."""
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except OSError as e:
            raise InputError(f"{path}: {e.strerror or 'it cannot be read'}") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path}: not valid JSON; is the file complete?") from None
        known = {f.name: f for f in fields(cls)}
        if not isinstance(data, dict) or set(data) - set(known):
            extra = ", ".join(sorted(set(data) - set(known))) if isinstance(data, dict) else shown(data)
            raise InputError(f"{path}: {extra} is not known; a profile has {', '.join(known)}")
        missing = [n for n, f in known.items() if f.default is MISSING and n not in data]
        if missing:
            raise InputError(f"{path}: {', '.join(missing)} is missing; add it")
        return cls(**data)

    def to_json(self) -> str:
        """The profile as JSON text, for `from_json`."""
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, indent=1)

    @cached_property
    def experts(self) -> npt.NDArray[np.int64]:
        """int64: `law.experts` as an array."""
        return np.array(self.law.experts, np.int64)

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
            "on 30 measured points of vLLM 0.12 (1k and 4k prompts, 8 to 128 at a time) TPOT is off by 4.5 % "
            "in the mean and 17 % at most, TTFT by 65 % in the mean: TTFT is the least trustworthy output"
        ),
    ),
    "deepseek-v4-flash-4xh100": Profile(
        name="deepseek-v4-flash-4xh100",
        capacity_tokens=400_000,
        t0_ms=8.8,
        t1_ms=26.9,
        expert_share=6 / 256,
        t2_us=18.0,
        kv_us_per_1k=0.72,
        prefill_ms=36.7,
        prefill_us=41.8,
        attention_us_per_1k=0.01,
        host_ms=2.0,
        provenance=(
            "DeepSeek-V4-Flash, TP4 on H100: step-time law fitted to NVIDIA AIConfigurator 0.12 tables for "
            "vLLM (its MoE kernels transferred from other shapes, not measured); KV capacity NOT measured: "
            "400,000 tokens put the TAO paper's 64-worker setting near the knee (by bytes 9 M, by vLLM's "
            "reports 0.15 to 4.6 M)"
        ),
        known_error=(
            "fit to the tables: decode 3.5 %, prefill 8.5 % in the mean; the tables themselves are off "
            "by up to 30 % for MoE models"
        ),
    ),
    "glm-4.7-8xh100": Profile(
        name="glm-4.7-8xh100",
        capacity_tokens=560_000,
        t0_ms=7.2,
        t1_ms=13.1,
        expert_share=8 / 160,
        t2_us=0.0,
        kv_us_per_1k=16.0,
        prefill_ms=23.8,
        prefill_us=26.9,
        attention_us_per_1k=0.90,
        host_ms=2.0,
        provenance=(
            "GLM-4.7, FP8, TP8 on H100: step-time law fitted to NVIDIA AIConfigurator 0.12 tables for SGLang "
            "(its MoE kernels transferred from other shapes, not measured); KV capacity by bytes, +-15 %"
        ),
        known_error=(
            "fit to the tables: decode 4.1 %, prefill 1.6 % in the mean; the tables themselves are off "
            "by up to 30 % for MoE models"
        ),
    ),
}

DEFAULT_PROFILE = "qwen3-32b-2xh100"


def profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """The built-in profile of that name, or one from a JSON file; raises `InputError` for neither."""
    if str(name_or_path) in PROFILES:
        return PROFILES[str(name_or_path)]
    if not Path(name_or_path).is_file():
        raise InputError(
            f"profile is {shown(str(name_or_path))}; it must be one of {', '.join(PROFILES)}, or a JSON file"
        )
    return Profile.from_json(name_or_path)
