"""Which runs each experiment of the TAO paper stands for here, and which parts of that are our choice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from tao.checks import InputError, shown
from tao.jobs import Arm
from tao.model import Params
from tao.workloads import WORKLOADS

BASELINES = ("thunderagent", "dynamo_kv", "vllm_rr", "vllm_cache_aware")
"""The four that the TAO paper compares with."""

HIGHER_IS_BETTER = ("decode_tok_s", "prefix_hit_rate")
KNEE_TOKENS = 180_000  # ours: 32 workers of swe-lite on two such nodes are at the knee
RECORDED = 96  # ours: sessions of a run of which every decision is kept


class Contrast(NamedTuple):
    """A row of a report: `arm` minus `against` in one metric, relative unless `absolute`.

    `against` is an arm, "best" (of the `BASELINES`, by this metric's mean), or "" for the arm's value alone.
    """

    metric: str
    arm: str = "tao"
    against: str = "best"
    absolute: bool = False


@dataclass(frozen=True)
class Preset:
    """One setting of one experiment; `ours` says what the paper does not, `cannot` what it cannot show.

    `recorded` names what is asked about decisions that are looked at one by one: "objective", "readiness",
    "cost" or "resumes".
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


CLUSTERS = {
    "deepseek": ("deepseek-v4-flash-4xh100", 2),
    "qwen": ("qwen3-32b-2xh100", 4),
    "glm": ("glm-4.7-8xh100", 1),
}
THREE = (Contrast("task_latency_s"), Contrast("ttft_s"), Contrast("decode_tok_s"))
PAPERS = tuple(Arm(name, name) for name in ("tao", *BASELINES))
_OUR_LOAD = "the load is our choice"

CANNOT = {
    "E1": "the paper ran each setting once, on GPUs that we do not have; the KV capacity of DeepSeek's node is "
    "fitted to put its 64 workers near the knee, so neither agreement nor disagreement there is evidence",
    "E2": "one figure of six settings is known to us; the simulator's time to first token is its least "
    "trustworthy output, and beyond the knee it is nearly all waiting",
    "E3": "credit that a plan promises is not KV cache that the engine retains; our snapshots are not the "
    "paper's 35, so their shares stand side by side and test nothing",
    "E5": "the paper replayed one record once per condition, ours draws tool times independently; `previous` "
    "differs from tao in three things at once, so a gain is not one of readiness alone",
    "E6": "quantum and budget of the paper are unknown, and its cost leaves out failed searches and fallback; "
    "ours is a law of our own in simulation, and milliseconds of this machine where measured",
    "E7": "the TokenCake engine is not modelled, only routing by a hash; without pauses, resumes and "
    "migrations no difference can be credited to joint placement",
    "E8": "on a single node routers have nothing to choose, so the baselines nearly coincide; 15 to 20 ms of "
    "time to first token are below the profile's error",
    "losses": "so many comparisons at 95 % bring a few rows by chance alone, and our choice of grid decides "
    "how many there can be",
}


def _setting(
    experiment: str, cluster: str, workload: str, workers: int, what: str, ours: str = "", **more: object
) -> Preset:
    """A preset on one of the paper's clusters, named after all four unless `more` names it."""
    profile, nodes = CLUSTERS[cluster]
    values: dict[str, object] = {"arms": PAPERS, "contrasts": THREE} | more
    values.setdefault("name", f"{experiment}-{cluster}-{workload}-{workers}")
    return Preset(
        experiment=experiment,
        what=what,
        workload=workload,
        profile=profile,
        nodes=nodes,
        workers=workers,
        ours=ours,
        cannot=CANNOT[experiment],
        **values,  # type: ignore[arg-type]
    )


# Loads that the paper is known to have run, by cluster and workload; of the others it gives no figure.
_MAIN = {
    ("deepseek", "swe-lite"): {32: "", 64: ""},
    ("deepseek", "swe-verified"): {32: _OUR_LOAD, 64: _OUR_LOAD},
    ("deepseek", "terminal-bench"): {16: "", 64: ""},
    ("qwen", "swe-lite"): {96: "", 160: ""},
    ("qwen", "swe-verified"): {96: _OUR_LOAD, 128: ""},
    ("qwen", "terminal-bench"): {16: _OUR_LOAD, 64: _OUR_LOAD},
}
_GLM = {
    "swe-lite": {32: _OUR_LOAD, 96: _OUR_LOAD},
    "swe-verified": {32: _OUR_LOAD, 96: ""},
    "terminal-bench": {16: _OUR_LOAD, 64: _OUR_LOAD},
}


def _main() -> list[Preset]:
    what = "TAO against the best of four baselines, metric by metric"
    return [
        *(
            _setting("E1", *key, load, what, ours)
            for key, loads in _MAIN.items()
            for load, ours in loads.items()
        ),
        *(
            _setting("E2", "glm", work, load, f"{what}, on one node", ours)
            for work, loads in _GLM.items()
            for load, ours in loads.items()
        ),
    ]


def _ablations() -> list[Preset]:
    """E3 twice: at the knee, and at the profile's capacity, where nobody ever waits."""
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
    what = "parts of the value added one by one; dp's objective against short-first's on recorded decisions"
    common = {"arms": arms, "contrasts": contrasts, "recorded": "objective"}
    knee = f"a capacity of {KNEE_TOKENS:,} tokens, as at the profile's no pool forms (see ...-32-ample)"
    ample = "E3-deepseek-swe-lite-32-ample"
    return [
        _setting("E3", "deepseek", "swe-lite", 32, what, knee, capacity_tokens=KNEE_TOKENS, **common),
        _setting(
            "E3", "deepseek", "swe-lite", 32, what, "the same at the profile's capacity", name=ample, **common
        ),
    ]


def _delays() -> list[Preset]:
    arms = tuple(Arm(name, name) for name in ("tao", "previous", "oracle"))
    contrasts = tuple(Contrast("total_completion_s", "tao", against) for against in ("previous", "oracle"))
    what = "tools delayed: TAO against its previous version and an oracle; what readiness alone changes"
    ours = f"cluster, 32 workers and a capacity of {KNEE_TOKENS:,} tokens"
    common = {"arms": arms, "contrasts": contrasts, "recorded": "readiness", "capacity_tokens": KNEE_TOKENS}
    return [
        _setting(
            "E5",
            "deepseek",
            "swe-lite",
            32,
            what,
            ours,
            name=f"E5-delay-{lo}-{hi}",
            extra_delay_s=(lo, hi),
            **common,
        )
        for lo, hi in ((1, 5), (2, 10), (4, 20))
    ]


def _overhead() -> list[Preset]:
    sizes = ((64, 2_000), (64, 200), (64, 50), (1024, 20))
    others = (Arm(f"{q}, {b:,}", "tao", Params(quantum_tokens=q, state_budget=b)) for q, b in sizes)
    arms = (Arm("tao", "tao"), *others)
    shares = (Contrast("fallback_share", arm.name, "") for arm in arms)
    contrasts = (*shares, Contrast("planning_s", "tao", ""), Contrast("planning_share", "tao", ""))
    common = {"arms": arms, "contrasts": contrasts, "recorded": "cost"}
    what = "what planning costs, and how often the search hands over to bfd"
    ours = "arms named after their quantum and state budget; tao has 1,024 and 200,000"
    loads = (("deepseek", 64), ("qwen", 96), ("qwen", 128), ("qwen", 160))
    return [_setting("E6", cluster, "swe-lite", load, what, ours, **common) for cluster, load in loads]


def _routing() -> list[Preset]:
    arms = (Arm("tao", "tao"), Arm("session_hash", "session_hash"))
    metrics = ("decode_tok_s", "task_latency_s", "ttft_s")
    counts = ("pauses", "migrations")
    contrasts = (
        *(Contrast(metric, "tao", "session_hash") for metric in metrics),
        *(Contrast(metric, "tao", "") for metric in counts),
    )
    what = "TAO against routing by a hash of the session"
    return [
        _setting(
            *("E7", "deepseek", "swe-lite", 16, what, "cluster and workload are our choice"),
            name="E7-session-hash-16",
            arms=arms,
            contrasts=contrasts,
            recorded="resumes",
        )
    ]


def _low_loads() -> list[Preset]:
    contrasts = (THREE[0], Contrast("ttft_s", absolute=True), THREE[2])
    what = "few workers on one node: what TAO costs where it has nothing to win"
    ours = "the model is not named; GLM-4.7 is our choice"
    return [_setting("E8", "glm", "swe-lite", n, what, ours, contrasts=contrasts) for n in (4, 8, 16, 32, 64)]


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (*_main(), *_ablations(), *_delays(), *_overhead(), *_routing(), *_low_loads())
}
"""Every setting by name; E4 of the paper are two snapshots: `tao.load("dp_beats_short_first")`, `"session_177"`."""

_LOADS = {"deepseek": (16, 32, 64), "qwen": (32, 96, 160)}

GRID: tuple[Preset, ...] = tuple(
    _setting(
        *(
            "losses",
            cluster,
            workload,
            load,
            "a coarse search for settings where TAO loses",
            "the whole grid",
        ),
        name=f"losses-{cluster}-{workload}-{load}" + ("-delay-4-20" if delay_s else ""),
        extra_delay_s=delay_s,
        contrasts=(THREE[0], THREE[2]),
    )
    for workload, delay_s, cluster in product(WORKLOADS, (None, (4.0, 20.0)), _LOADS)
    for load in _LOADS[cluster]
)
"""The settings that `losses` searches: two clusters, every workload, without and with slow tools, three loads."""


def chosen(name: str) -> tuple[Preset, ...]:
    """The preset of that name, all of an experiment ("E1"), or the grid ("losses").

    >>> len(chosen("E1")), len(chosen("E2")), chosen("E7-session-hash-16")[0].workers
    (12, 6, 16)
    """
    if name in PRESETS:
        return (PRESETS[name],)
    found = tuple(p for p in (*PRESETS.values(), *GRID) if name in (p.experiment, p.name))
    if not found:
        experiments = dict.fromkeys(p.experiment for p in PRESETS.values())
        raise InputError(
            f"preset is {shown(name)}; it must be one of {', '.join(experiments)}, losses, or one setting: "
            f"{', '.join(PRESETS)}"
        )
    return found
