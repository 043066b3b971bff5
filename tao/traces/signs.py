"""What makes an imported log doubtful: sentences for its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tao.traces.recording import Recording

ENOUGH = 10  # ours: fewer calls than that say nothing about all
SHARE = 0.9  # ours: of the calls, for "nearly all"
FORK_TURNS = 5  # ours: forks of one conversation were seen to share that many (prompt, output) pairs
SAFETY_S = 0.4  # ours: no command of these classes needs that long at its quickest, a hidden model call does


def signs_of(recording: Recording) -> tuple[str, ...]:
    """The suspicious signs in a recording, each in one sentence."""
    calls, signs = recording.calls, []
    known = calls["seconds"][~np.isnan(calls["seconds"])]
    if len(known) >= ENOUGH:
        for odd, what in (
            (known == 0, "are exactly 0 s: times that nobody measured?"),
            ((known == np.round(known)) & (known > 0), "are whole seconds: a coarse clock, or made up"),
            (known == np.median(known), "are the same: times that nobody measured?"),
        ):
            if odd.mean() >= SHARE:
                signs.append(f"{odd.mean():.0%} of the tool times {what}")
    signs += [*_hidden_calls(recording), *_forks(recording)]
    return tuple(signs)


def _hidden_calls(recording: Recording) -> list[str]:
    """Commands that are slow at their quickest beside reads that are fast: a model is asked in between."""
    calls, number = recording.calls, {name: k for k, name in enumerate(recording.classes)}

    def seconds(*classes: str) -> Any:
        chosen = np.isin(calls["tool_class"], [number.get(name, -1) for name in classes])
        return calls["seconds"][chosen & ~np.isnan(calls["seconds"])]

    quick, slow = seconds("read", "search", "bookkeeping"), seconds("python", "test", "other", "build")
    if len(quick) < ENOUGH or len(slow) < ENOUGH:
        return []
    least = float(np.quantile(slow, 0.05))
    if least < SAFETY_S or float(np.median(quick)) > SAFETY_S / 4:
        return []
    return [
        f"19 of 20 commands take {least:.1f} s or more while reads return at once: "
        "a safety check by a model may be hidden in the tool times"
    ]


def _forks(recording: Recording) -> list[str]:
    """Sessions that begin with the same turns as another one."""
    turns, seen, forks = recording.turns, set[bytes](), 0
    pairs = (
        np.stack([turns["context_tokens"], turns["output_tokens"]], axis=1)
        if len(turns)
        else np.zeros((0, 2))
    )
    for start, end in zip(recording.first[:-1].tolist(), recording.first[1:].tolist(), strict=True):
        if end - start >= FORK_TURNS and (pairs[start : start + FORK_TURNS] > 0).all():
            key = pairs[start : start + FORK_TURNS].tobytes()
            forks += key in seen
            seen.add(key)
    if not forks:
        return []
    return [
        f"{forks:,} sessions begin with the same {FORK_TURNS} turns as another one: forks of a conversation"
    ]
