"""The numbers behind the seeded workloads: what was measured in public recordings, and what is assumed.

Where they come from (commits and licences as of 2026-11-29; only counts and durations were taken):

* *tokens and turns of swe-...*: gruckion/mini-swe-agent @ d12a71a (MIT): 500 runs of SWE-bench Verified,
  93 of them also in Lite, mini-swe-agent 1.15 with Gemini 3 Pro; exact usage counts.
* *tool times of swe-...*: eunomia-bpf/agentcgroup @ 5af9e7b (GPL-2.0): Claude Code on SWE-rebench
  containers, with the hidden safety check (0.6 to 1 s) taken out of python and test, and a floor
  of 0.1 s for entering a container. Another agent and machine than the tokens: joined by class only.
* *terminal-bench*: laude-institute/terminal-bench-leaderboard @ 8e1925a (no licence stated): 171 runs of
  mini-swe-agent with Claude Sonnet 4; tool times recorded, tokens estimated from the text.

A mixture is a tuple of lognormals (weight, mu, sigma), natural logarithm of tokens or seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Mixture = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Clipped:
    """A lognormal (mu, sigma) cut to lo..hi."""

    mu: float
    sigma: float
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything needed to draw one kind of session; tokens and seconds."""

    sessions: int
    turns: Clipped
    shared_prompt_tokens: int  # the part of the first prompt that all sessions have in common
    first_prompt: Clipped  # the rest of the first prompt
    new_tokens: Mixture  # what a tool's output adds to the context
    new_cap: int
    output_tokens: Mixture
    output_cap: int
    output_scale: float  # applied after the cap
    classes: Mapping[str, float]  # share of each command class
    tools: Mapping[str, Mixture]  # seconds per class
    sleep_choices_s: tuple[float, ...]  # what a `sleep` asks for, all equally likely
    timeout_s: float


_CONTAINER: Mixture = ((1.0, -2.3, 0.6),)  # median 0.10 s: the floor of a command in a container

_SWE_TOOLS: dict[str, Mixture] = {
    "edit": _CONTAINER,
    "search": _CONTAINER,
    "read": _CONTAINER,
    "git": _CONTAINER,
    "python": ((0.90, -0.5, 0.80), (0.10, 1.8, 0.90)),
    "test": ((0.72, 0.1, 0.56), (0.28, 1.3, 1.75)),
    "build": ((1.0, 0.5, 1.2),),  # assumed: hardly any in the recordings
    "install": ((1.0, 0.9, 1.0),),
    "other": ((1.0, -0.5, 1.5),),  # assumed
}

_SWE_FIRST_PROMPT = Clipped(mu=7.29, sigma=0.33, lo=900, hi=11_000)
_SWE_SLEEP_S = (2.0, 3.0, 5.0, 5.0, 10.0)
_SWE_TIMEOUT_S = 60.0  # ThunderAgent a7eef77 swebench.yaml

RECIPES: dict[str, Recipe] = {
    "swe-lite": Recipe(
        sessions=300,
        turns=Clipped(mu=3.546, sigma=0.396, lo=8, hi=135),
        shared_prompt_tokens=140,
        first_prompt=_SWE_FIRST_PROMPT,
        new_tokens=((0.23, 3.13, 0.41), (0.77, 5.09, 1.30)),
        new_cap=5_000,
        output_tokens=((0.43, 3.74, 0.44), (0.57, 5.45, 1.02)),
        output_cap=8_192,
        output_scale=0.65,  # 5.9k output tokens per session, as the TAO paper's DeepSeek run implies
        classes={
            "edit": 0.267,
            "search": 0.232,
            "read": 0.206,
            "python": 0.170,
            "test": 0.101,
            "git": 0.017,
            "build": 0.003,
            "install": 0.0015,
            "sleep": 0.0005,
            "other": 0.002,
        },
        tools=_SWE_TOOLS,
        sleep_choices_s=_SWE_SLEEP_S,
        timeout_s=_SWE_TIMEOUT_S,
    ),
    "swe-verified": Recipe(
        sessions=300,  # TAO paper, per run; 500 recorded
        turns=Clipped(mu=3.601, sigma=0.423, lo=8, hi=150),
        shared_prompt_tokens=140,
        first_prompt=_SWE_FIRST_PROMPT,
        new_tokens=((0.20, 3.16, 0.42), (0.80, 5.12, 1.32)),
        new_cap=5_000,
        output_tokens=((0.425, 3.74, 0.44), (0.575, 5.50, 1.06)),
        output_cap=8_192,
        output_scale=1.0,  # as recorded
        classes={
            "edit": 0.272,
            "search": 0.220,
            "read": 0.214,
            "python": 0.171,
            "test": 0.096,
            "git": 0.014,
            "other": 0.009,
            "build": 0.0024,
            "install": 0.0006,
            "sleep": 0.0005,
        },
        tools=_SWE_TOOLS,
        sleep_choices_s=_SWE_SLEEP_S,
        timeout_s=_SWE_TIMEOUT_S,
    ),
    "terminal-bench": Recipe(
        sessions=171,
        turns=Clipped(mu=2.875, sigma=0.543, lo=3, hi=60),
        shared_prompt_tokens=140,  # assumed: first prompts were not logged
        first_prompt=Clipped(mu=7.0, sigma=0.25, lo=900, hi=6_000),  # assumed
        new_tokens=((0.17, 3.53, 0.10), (0.83, 5.14, 1.17)),
        new_cap=5_000,
        output_tokens=((0.61, 4.42, 0.40), (0.39, 6.69, 0.71)),
        output_cap=4_096,
        output_scale=1.0,  # as recorded
        classes={
            "edit": 0.258,
            "python": 0.229,
            "read": 0.170,
            "search": 0.149,
            "install": 0.075,
            "other": 0.061,
            "web": 0.017,
            "sleep": 0.013,
            "git": 0.012,
            "build": 0.009,
            "test": 0.007,
        },
        tools={
            "edit": ((0.78, -3.6, 0.50), (0.22, 0.6, 1.9)),
            "python": ((0.55, -2.1, 1.00), (0.45, 2.0, 2.0)),
            "read": ((0.90, -4.0, 0.40), (0.10, 0.3, 2.3)),
            "search": ((0.88, -3.9, 0.45), (0.12, -1.2, 1.2)),
            "install": ((1.0, 3.2, 2.4),),
            "other": ((0.60, -3.2, 0.90), (0.40, 1.2, 1.8)),
            "web": ((0.75, -3.3, 0.80), (0.25, 1.8, 0.9)),
            "git": ((1.0, -3.3, 0.8),),
            "build": ((0.70, -3.5, 0.70), (0.30, 0.7, 1.1)),
            "test": ((1.0, 0.0, 0.5),),
        },
        sleep_choices_s=(1.0, 2.0, 3.0, 5.0, 5.0, 5.0, 10.0, 15.0, 30.0),
        timeout_s=30.0,  # the recorded agent's setting
    ),
}

# Stand-ins for tool times that a trace does not tell: the classes above as in swe-..., the rest from
# Claude Code's runs in eunomia-bpf/agentcgroup. A class that is not listed uses "".
STAND_IN_TOOLS: dict[str, Mixture] = _SWE_TOOLS | {
    "web": ((1.0, 2.03, 0.64),),
    "bookkeeping": ((1.0, -3.44, 0.89),),
    "subagent": ((1.0, 4.00, 0.70),),  # Haiku 4.5 runs
    "": ((0.32, -3.42, 0.42), (0.68, -0.99, 2.07)),  # all calls together
}
STAND_IN_SLEEP_S = _SWE_SLEEP_S
STAND_IN_TIMEOUT_S = _SWE_TIMEOUT_S  # of a command; sub-agents run on
