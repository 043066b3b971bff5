"""Which runs each experiment of the TAO paper stands for here, and which parts of that are our choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from tao.checks import InputError, shown
from tao.jobs import Arm
from tao.model import Params
from tao.workloads import WORKLOADS

BASELINES = ("thunderagent", "dynamo_kv", "vllm_rr", "vllm_cache_aware")
"""The four that the TAO paper compares with."""

KNEE_TOKENS = 180_000  # ours: 32 workers of swe-lite on two such nodes are at the knee


class Contrast(NamedTuple):
    """A row of a report: by how much `arm` differs from `against` in a metric, relatively or `absolute`.

    `against` is an arm, "best" (of the `BASELINES`, by this metric's mean), or "" for the arm's value alone.
    """

    metric: str
    arm: str = "tao"
    against: str = "best"
    absolute: bool = False


@dataclass(frozen=True)
class Preset:
    """One setting of one experiment; `ours` says what the paper does not, `cannot` what it cannot show.

    `recorded` names what is asked of single decisions: "objective", "readiness", "cost" or "resumes".
    """

    name: str
    experiment: str
    what: str
    workload: str
    profile: str
    nodes: int
    workers: int
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...]
    tasks: int | None = None
    capacity_tokens: int | None = None
    extra_delay_s: tuple[float, float] | None = None
    recorded: str = ""
    ours: str = ""
    cannot: str = ""


_CLUSTERS = {
    "deepseek": ("deepseek-v4-flash-4xh100", 2),
    "qwen": ("qwen3-32b-2xh100", 4),
    "glm": ("glm-4.7-8xh100", 1),
}
_THREE = (Contrast("task_latency_s"), Contrast("ttft_s"), Contrast("decode_tok_s"))

# Of each experiment: what it does, and what it cannot show.
_TEXTS = {
    "E1": (
        "TAO against the best of four baselines, metric by metric",
        "the paper ran each setting once, on GPUs that we do not have, and the KV capacity of DeepSeek's "
        "node is fitted to put its 64 workers near the knee: agreement here is no evidence for the paper",
    ),
    "E2": (
        "the same on a single node",
        "of six settings we know one figure, a time to first token: the simulator's least trustworthy "
        "output, and beyond the knee nearly all of it is waiting",
    ),
    "E3": (
        "parts of the value added one by one; dp's objective against short-first's on recorded decisions",
        "credit that a plan promises is not KV cache that the engine retains; our snapshots are not the "
        "paper's 35, so their shares stand side by side and test nothing",
    ),
    "E5": (
        "slow tools: TAO against its previous version and an oracle; placements that readiness alone changes",
        "the paper replayed one record once per condition, ours draws tool times independently; `previous` "
        "differs from tao in three things at once, so a gain is not readiness' alone",
    ),
    "E6": (
        "what planning costs, and how often the search hands over to bfd",
        "the paper's quantum and budget are unknown, and its cost leaves out failed searches and fallback; "
        "our search opens only states that can still win, so it hands over far less often; "
        "here planning_s is a law of ours, milliseconds are this machine's",
    ),
    "E7": (
        "TAO against routing by a hash of the session",
        "the TokenCake engine is not modelled, only its routing; without pauses, resumes and migrations no "
        "difference can be credited to joint placement",
    ),
    "E8": (
        "few workers on one node: what TAO costs where it has nothing to win",
        "on one node routers have nothing to choose, so the baselines nearly coincide, and 15 to 20 ms of "
        "time to first token are less than the profile's error",
    ),
    "losses": (
        "a coarse search for settings where TAO loses",
        "of so many intervals at 95 % some miss by chance, and the grid is our choice",
    ),
}


def _preset(
    experiment: str, cluster: str, workload: str, workers: int, ours: str = "", name: str = "", **more: Any
) -> Preset:
    profile, nodes = _CLUSTERS[cluster]
    what, cannot = _TEXTS[experiment]
    arms = tuple(Arm(policy, policy) for policy in ("tao", *BASELINES))
    name = name or f"{experiment}-{cluster}-{workload}-{workers}"
    values: dict[str, Any] = {"arms": arms, "contrasts": _THREE, "ours": ours, "cannot": cannot} | more
    return Preset(name, experiment, what, workload, profile, nodes, workers, **values)


def _main() -> Iterator[Preset]:
    """E1 and E2: the loads of which the paper's text says something, and those that are our choice."""
    ours = "the load"
    for experiment, cluster, workload, loads in (
        ("E1", "deepseek", "swe-lite", {32: "", 64: ""}),
        ("E1", "deepseek", "swe-verified", {32: ours, 64: ours}),
        ("E1", "deepseek", "terminal-bench", {16: "", 64: ""}),
        ("E1", "qwen", "swe-lite", {96: "", 160: ""}),
        ("E1", "qwen", "swe-verified", {96: ours, 128: ""}),
        ("E1", "qwen", "terminal-bench", {16: ours, 64: ours}),
        ("E2", "glm", "swe-lite", {32: ours, 96: ours}),
        ("E2", "glm", "swe-verified", {32: ours, 96: ""}),
        ("E2", "glm", "terminal-bench", {16: ours, 64: ours}),
    ):
        for workers, choice in loads.items():
            yield _preset(experiment, cluster, workload, workers, choice)


def _ablations() -> Iterator[Preset]:
    arms = (
        Arm("thunderagent", "thunderagent"),
        Arm("credit only", "tao", Params(decay=False, readiness=False)),
        Arm("credit + decay", "tao", Params(readiness=False)),
        Arm("tao", "tao"),
    )
    contrasts = (
        Contrast("prefix_hit_rate", "credit only", "thunderagent", absolute=True),
        Contrast("pool_wait_s", "credit only", "thunderagent"),
        Contrast("prefix_hit_rate", "credit + decay", "thunderagent", absolute=True),
        Contrast("decode_tok_s", "credit + decay", "thunderagent"),
        Contrast("decode_tok_s", "tao", "credit + decay"),
        Contrast("tool_end_to_first_token_s", "tao", "credit + decay"),
    )
    where = ("E3", "deepseek", "swe-lite", 32)
    common: dict[str, Any] = {"arms": arms, "contrasts": contrasts, "recorded": "objective"}
    ours = f"{KNEE_TOKENS:,} KV tokens, for at the profile's capacity nobody waits: see the preset ...-ample"
    yield _preset(*where, ours, capacity_tokens=KNEE_TOKENS, **common)
    yield _preset(*where, "the profile's capacity", f"{'-'.join(map(str, where))}-ample", **common)


def _delays() -> Iterator[Preset]:
    # `previous` lacks this accounting whatever it is given, so that it differs in all three things.
    arms = tuple(Arm(policy, policy, Params(share_prefix=True)) for policy in ("tao", "previous", "oracle"))
    contrasts = tuple(Contrast("total_completion_s", "tao", other) for other in ("previous", "oracle"))
    common: dict[str, Any] = {"arms": arms, "contrasts": contrasts, "recorded": "readiness"}
    ours = f"cluster, 32 workers, and {KNEE_TOKENS:,} KV tokens, as in E3; tao with `share_prefix`"
    for lo, hi in ((1, 5), (2, 10), (4, 20)):
        more = common | {"extra_delay_s": (lo, hi), "capacity_tokens": KNEE_TOKENS}
        yield _preset("E5", "deepseek", "swe-lite", 32, ours, f"E5-delay-{lo}-{hi}", **more)


def _overhead() -> Iterator[Preset]:
    sizes = ((64, 200), (64, 50))  # a search that opens all states hands over in 6 and 40 % of E6-qwen-160
    arms = (
        Arm("tao", "tao"),
        Arm("exact", "tao", Params(planner="exact")),
        *(Arm(f"quantum {q}, budget {b}", "tao", Params(quantum_tokens=q, state_budget=b)) for q, b in sizes),
    )
    contrasts = (
        *(Contrast("fallback_share", arm.name, "") for arm in arms),
        *(Contrast(metric, "tao", "") for metric in ("planning_s", "planning_share")),
    )
    for cluster, workers in (("deepseek", 64), ("qwen", 96), ("qwen", 128), ("qwen", 160)):
        recorded = "cost" if workers == 160 else ""  # the one of which the paper tells milliseconds
        more: dict[str, Any] = {"arms": arms, "contrasts": contrasts, "recorded": recorded}
        yield _preset(
            "E6", cluster, "swe-lite", workers, "quantum and budget (tao: 1,024 and 200,000)", **more
        )


def _others() -> Iterator[Preset]:
    arms = tuple(Arm(policy, policy) for policy in ("tao", "session_hash"))
    contrasts = (
        *(Contrast(metric, "tao", "session_hash") for metric in ("decode_tok_s", "task_latency_s", "ttft_s")),
        *(Contrast(metric, "tao", "") for metric in ("pauses", "migrations")),
    )
    more: dict[str, Any] = {"arms": arms, "contrasts": contrasts, "recorded": "resumes"}
    yield _preset("E7", "deepseek", "swe-lite", 16, "cluster and workload", "E7-session-hash-16", **more)
    seconds = (_THREE[0], Contrast("ttft_s", absolute=True), _THREE[2])
    for workers in (4, 8, 16, 32, 64):
        yield _preset("E8", "glm", "swe-lite", workers, "the model", contrasts=seconds)


def _grid() -> Iterator[Preset]:
    loads = {"deepseek": (16, 32, 64), "qwen": (32, 96, 160)}
    for workload, delay_s, cluster in product(WORKLOADS, (None, (4.0, 20.0)), loads):
        for workers in loads[cluster]:
            name = f"losses-{cluster}-{workload}-{workers}" + ("-delay-4-20" if delay_s else "")
            more: dict[str, Any] = {"extra_delay_s": delay_s, "contrasts": (_THREE[0], _THREE[2])}
            yield _preset("losses", cluster, workload, workers, "all of it", name, **more)


PRESETS: dict[str, Preset] = {
    preset.name: preset for preset in (*_main(), *_ablations(), *_delays(), *_overhead(), *_others())
}
"""Every setting by name; E4 are two snapshots of `tao.load`: `dp_beats_short_first` and `session_177`."""

GRID = tuple(_grid())
"""Where `losses` searches: two clusters, all workloads, tools as they are and slow, three loads."""


def chosen(name: str) -> tuple[Preset, ...]:
    """The preset of that name, all of an experiment ("E1"), or the grid ("losses"); else `InputError`.

    >>> len(chosen("E1")), len(chosen("E2")), chosen("E7-session-hash-16")[0].workers
    (12, 6, 16)
    """
    found = tuple(p for p in (*PRESETS.values(), *GRID) if name in (p.experiment, p.name))
    if not found:
        names = ", ".join((*_TEXTS, *PRESETS))
        raise InputError(f"preset is {shown(name)}; it must be an experiment or a setting: {names}")
    return found
