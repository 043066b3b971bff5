"""What it is worth to give session i its next inference on node b: the triple (k, r, t).

TAO paper: cache credit k decays with the age of the observation, readiness r says
whether the tool returns within the horizon, tokens t is the size of the context; compared
lexicographically. The decay is computed here for every host (planner, simulator, live scheduler).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tao._jit import njit
from tao.checks import MAX_TOKENS
from tao.model import CacheNote, Params, Session, Value

Ints = npt.NDArray[np.int64]

# Taylor series of 2**-x: multiplying and adding gives the same bits compiled and interpreted, which
# the `pow` and `exp2` of different libraries do not. 18 terms are exact to the last bit or two.
_TAYLOR = tuple((-math.log(2.0)) ** k / math.factorial(k) for k in range(18))


@njit
def power_of_half(x: float) -> float:
    """2**-x for x >= 0; exact for whole x, and the same bits compiled or interpreted.

    >>> power_of_half(0.0), power_of_half(1.0), power_of_half(10.0) == 2.0**-10
    (1.0, 0.5, True)
    """
    if x >= 1100.0:  # below the smallest float
        return 0.0
    whole = math.floor(x)
    part = x - whole
    total = 0.0
    for k in range(len(_TAYLOR) - 1, -1, -1):  # Horner
        total = total * part + _TAYLOR[k]
    return math.ldexp(total, -int(whole))


@njit
def decayed(tokens: int, age_s: float, half_life_s: float) -> int:
    """Whole tokens of cache credit left after `age_s` seconds (TAO paper: half-life 10 s).

    >>> decayed(16000, 10.0, 10.0)
    8000
    """
    return math.floor(tokens * power_of_half(max(age_s, 0.0) / half_life_s))


def credit(note: CacheNote | None, now_s: float, params: Params) -> int:
    """Cache credit (k) of one note: tokens, decayed by the note's age; 0 without a note."""
    if note is None:
        return 0
    # Floats whatever the input's type: another type would compile the kernel once more.
    return decayed(note.tokens, float(now_s - note.seen_at_s), params.settings.half_life_s)


def ageing(session: Session, now_s: float, params: Params) -> int:
    """Extra credit in whole tokens for time spent waiting (ours; off by default), at most 2**40."""
    if not params.ageing_tokens_per_s or session.waiting_since_s is None:
        return 0
    return min(int(params.ageing_tokens_per_s * (now_s - session.waiting_since_s)), MAX_TOKENS)


def value(session: Session, node: str, ready: bool, now_s: float, params: Params) -> Value:
    """The triple of one (session, node) pair; `ready` comes from `tao.readiness`.

    >>> s = Session("a", 18000, cached={"n0": CacheNote(16000, 0.0)})
    >>> value(s, "n0", True, 10.0, Params()), value(s, "n1", True, 10.0, Params())
    (Value(credit=8000, ready=1, tokens=18000), Value(credit=0, ready=1, tokens=18000))
    """
    k = credit(session.cached.get(node), now_s, params) + ageing(session, now_s, params)
    return Value(k, int(ready), session.context_tokens)


def last_node(session: Session) -> str | None:
    """The node where the session was seen last: that of its newest cache note, lower id on a tie."""
    if not session.cached:
        return None
    return min(session.cached, key=lambda node: (-session.cached[node].seen_at_s, node))


def credits(
    sessions: Sequence[Session], index: Mapping[str, int], now_s: float, params: Params
) -> tuple[Ints, Ints, Ints]:
    """(credit, last, aged) of many sessions at once: `credit` plus `ageing`, `last_node` and `ageing`.

    credit int64[n, m], with ageing; last int64[n], -1 without a note; aged int64[n]; `index` numbers the
    nodes in order of id.
    """
    aged = np.zeros(len(sessions), np.int64)
    if params.ageing_tokens_per_s:
        aged[:] = [ageing(s, now_s, params) for s in sessions]
    cached = [s.cached for s in sessions]
    notes = [note for by_node in cached for note in by_node.values()]
    credit, last = _credits(
        aged,
        np.array([len(by_node) for by_node in cached], np.int64),
        np.array([index[node] for by_node in cached for node in by_node], np.int64),
        np.array([note.tokens for note in notes], np.int64),
        np.array([note.seen_at_s for note in notes], np.float64),
        *(len(index), float(now_s), params.settings.half_life_s),
    )
    return credit, last, aged


@njit
def _credits(
    aged: Ints,
    count: Ints,
    node: Ints,
    tokens: Ints,
    seen_at_s: npt.NDArray[np.float64],
    nodes: int,
    now_s: float,
    half_life_s: float,
) -> tuple[Ints, Ints]:
    """(credit int64[n, m], last int64[n]) where session i holds the next count[i] notes of those listed."""
    n, k = len(count), 0
    credit, last = np.empty((n, nodes), np.int64), np.full(n, -1)
    for i in range(n):
        credit[i, :] = aged[i]
        newest_s = -math.inf
        for _ in range(count[i]):
            b, at_s = node[k], seen_at_s[k]
            credit[i, b] += decayed(tokens[k], now_s - at_s, half_life_s)
            if at_s > newest_s or (at_s == newest_s and b < last[i]):
                newest_s, last[i] = at_s, b
            k += 1
    return credit, last
