"""How long tools take: what finished calls, and those that still run, tell of one that has begun."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tao._jit import njit
from tao.params import Params, Statistic

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MEAN, MEDIAN, SURVIVAL = range(3)  # as in params.Statistic
SHRINK_CALLS = 8.0  # ours: on two recordings 4 to 12 differ by 1 % in Brier score, by 3 % in log loss
LOOK_S, LOOKS = 0.5, 20  # ours: how often, and how far ahead, a call is looked at whose bit may turn
FAR_S = 1e6  # ours: as good as never, and fits simulated time


class Book(NamedTuple):
    """Durations of finished calls by kind, where kind 0 is every call, as compiled code takes them.

    A call is entered under its own kind and under those that `above` lists, more general ones, -1 for none.
    """

    calls: Ints  # int64[kinds]
    total_s: Floats  # float64[kinds]
    above: Ints  # int64[kinds, 2]
    start: Ints  # int64[kinds], where a kind's part of `ordered` begins
    ordered: Floats  # float64[...], ascending per kind; the mean does not ask for it


@njit
def learn(book, kind, seconds, statistic):
    """Enter a call of that kind, in order of length too where the statistic asks for it."""
    for rung in range(3):
        k = kind if rung == 0 else book.above[kind, rung - 1]
        if k < 0:
            continue
        if statistic != MEAN:
            at = book.start[k] + book.calls[k]
            while at > book.start[k] and book.ordered[at - 1] > seconds:
                book.ordered[at] = book.ordered[at - 1]
                at -= 1
            book.ordered[at] = seconds
        book.calls[k] += 1
        book.total_s[k] += seconds


@njit
def expected_s(book, kind, ran_s, still, settings):
    """Seconds that a call of that kind takes, from the most specific kind seen so far; nan without any.

    With "survival": by when `chance` is a half for one that has run `ran_s`, so that it is ready whenever
    it returns within the horizon more likely than not.
    """
    for rung in range(3):
        k = kind if rung == 0 else book.above[kind, rung - 1]
        if k >= 0 and book.calls[k]:
            if settings.statistic == MEAN:
                return book.total_s[k] / book.calls[k]
            if settings.statistic == SURVIVAL:
                return _half_back_s(book, kind, ran_s, still, settings.fallback_s)
            low = book.ordered[book.start[k] + (book.calls[k] - 1) // 2]
            return (low + book.ordered[book.start[k] + book.calls[k] // 2]) / 2.0
    return math.nan


@njit
def chance(book, kind, ran_s, within_s, still, fallback_s):
    """The chance that a call which has run `ran_s` returns within `within_s` (ours).

    Of the finished calls that lasted longer than `ran_s`, the share that took no more than `within_s` more:
    of the same class, drawn towards that of the tool, this towards that of all calls, each by so many calls
    as `SHRINK_CALLS`. `still`: how many calls of the kind, and of those above it, still run and began
    `within_s` or more before this one; they did not return in that time. Of a call of which nothing is
    known, half return after `fallback_s`, and the longer it has run, the longer it is expected to go on.
    """
    until_s = ran_s + max(within_s, 0.0)
    share, unknown = _shares(book, kind, ran_s, until_s, still)
    if until_s > ran_s:
        share += unknown * (until_s - ran_s) / (until_s + fallback_s)
    return share


@njit
def _shares(book, kind, ran_s, until_s, still):
    """What the book says of a return by `until_s`, and the weight of the chance when nothing is known."""
    calls, above, start, ordered = book.calls, book.above, book.start, book.ordered
    share, unknown = 0.0, 1.0
    for rung in range(2, -1, -1):
        k = kind if rung == 0 else above[kind, rung - 1]
        if k < 0:
            continue
        end = start[k] + calls[k]
        passed = _up_to(ordered, start[k], end, ran_s)
        back = _up_to(ordered, passed, end, until_s) - passed
        weight = end - passed + still[rung] + SHRINK_CALLS
        share = (back + SHRINK_CALLS * share) / weight
        unknown = SHRINK_CALLS * unknown / weight
    return share, unknown


@njit
def _up_to(ordered, first, end, seconds):
    """The index of the first of `ordered`, from `first` to `end`, that is more than so many seconds."""
    while first < end:
        middle = (first + end) // 2
        if ordered[middle] <= seconds:
            first = middle + 1
        else:
            end = middle
    return first


@njit
def _half_back_s(book, kind, ran_s, still, fallback_s):
    """The time after its start at which the chance is a half that a call has returned which has run `ran_s`.

    The chance leaps at lengths of finished calls, all of which are in the part of kind 0; in between only
    the weight of the unknown makes it grow. `still` is taken as for the horizon throughout.
    """
    ordered, first = book.ordered, book.start[0]
    end = first + book.calls[0]
    first = _up_to(ordered, first, end, ran_s)
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        until_s = ordered[middle]
        share, unknown = _shares(book, kind, ran_s, until_s, still)
        if share + unknown * (until_s - ran_s) / (until_s + fallback_s) >= 0.5:
            high = middle
        else:
            low = middle + 1
    since_s = ordered[low - 1] if low > first else ran_s
    share, unknown = _shares(book, kind, ran_s, since_s, still)
    left_s = FAR_S
    if share + unknown > 0.5:
        left_s = min(FAR_S, (ran_s + fallback_s) * (0.5 - share) / (share + unknown - 0.5))
    return min(ordered[low], ran_s + left_s) if low < end else ran_s + left_s


@njit
def next_look(book, kind, started_s, now_s, still, settings):
    """With "survival": the moment to look again at a call, because its ready bit turns or nobody knows."""
    within_s, so_far = settings.horizon_s - settings.margin_s, int((now_s - started_s) / LOOK_S)
    ready = chance(book, kind, now_s - started_s, within_s, still, settings.fallback_s) >= 0.5
    ran_s = now_s - started_s
    for k in range(1, LOOKS + 1):
        ran_s = (so_far + k) * LOOK_S
        if (chance(book, kind, ran_s, within_s, still, settings.fallback_s) >= 0.5) != ready:
            break
    return started_s + ran_s


@njit
def is_under(book, kind, k):
    """Are calls of that kind entered under k too?"""
    return kind == k or book.above[kind, 0] == k or book.above[kind, 1] == k


class Kinds:
    """Numbers for kinds of calls: 0 is every call, then each tool and each (tool, command class) as met.

    >>> kinds = Kinds()
    >>> kinds.number("bash", "test"), kinds.number("bash", None), kinds.above
    (2, 1, [(-1, -1), (0, -1), (1, 0)])
    """

    def __init__(self) -> None:
        self.names: list[tuple[str, str | None]] = [("", None)]
        self.above: list[tuple[int, int]] = [(-1, -1)]
        self._numbers: dict[tuple[str, str | None], int] = {}

    def number(self, tool: str, command_class: str | None) -> int:
        """The number of a kind, a new one if it is new."""
        if (tool, command_class) not in self._numbers:
            above = (0, -1) if command_class is None else (self.number(tool, None), 0)
            self._numbers[tool, command_class] = len(self.names)
            self.names.append((tool, command_class))
            self.above.append(above)
        return self._numbers[tool, command_class]

    def book(self, room: Ints) -> Book:
        """An empty book with room for so many calls of each kind."""
        start = np.cumsum(room) - room
        n = len(self.names)
        return Book(
            np.zeros(n, np.int64),
            np.zeros(n),
            np.array(self.above, np.int64),
            start.astype(np.int64),
            np.zeros(int(room.sum())),
        )


def enlarged(kinds: Kinds, old: Book, room: int) -> Book:
    """The same book with room for all kinds there are now, and for so many calls of each."""
    book = kinds.book(np.full(len(kinds.names), room, np.int64))
    known = len(old.calls)
    book.calls[:known], book.total_s[:known] = old.calls, old.total_s
    for k, count in enumerate(old.calls.tolist()):
        to, since = int(book.start[k]), int(old.start[k])
        if len(old.ordered) >= since + count:  # else only means were kept
            book.ordered[to : to + count] = old.ordered[since : since + count]
    return book


NONE = (0, 0, 0)  # calls that still run, see `chance`


class History:
    """Learns how long tools take, per (tool, command class), per tool, and over all.

    >>> history = History()
    >>> for seconds in (0.1, 0.1, 3.1):
    ...     history.add("bash", "test", seconds)
    >>> history.estimate("bash", "test", "median"), history.estimate("bash", "git", "mean")
    (0.1, 1.1)
    """

    def __init__(self) -> None:
        self._kinds = Kinds()
        self._book = self._kinds.book(np.zeros(1, np.int64))
        self._room = 0

    def add(self, tool: str, command_class: str | None, seconds: float) -> None:
        """Note one completed call of `seconds`."""
        kind = self._kinds.number(tool, command_class)
        if len(self._kinds.names) > len(self._book.calls) or self._book.calls[0] == self._room:
            self._grow()
        learn(self._book, kind, float(seconds), MEDIAN)

    def estimate(
        self, tool: str, command_class: str | None, statistic: Statistic, ran_s: float = 0.0
    ) -> float | None:
        """Seconds such a call takes, from the most specific kind seen so far; None without any.

        With "survival": one that has run `ran_s` already.
        """
        kind, settings = self._kind(tool, command_class), Params(statistic=statistic).settings
        found = expected_s(self._book, kind, float(ran_s), NONE, settings)
        return None if math.isnan(found) else float(found)

    def chance(self, tool: str, command_class: str | None, ran_s: float, within_s: float) -> float:
        """The chance that such a call, which has run `ran_s`, returns within `within_s` (by "survival").

        >>> history = History()
        >>> for seconds in [0.1] * 9 + [60.0] * 3:
        ...     history.add("bash", "test", seconds)
        >>> [round(history.chance("bash", "test", ran_s, 1.0), 2) for ran_s in (0.0, 0.5, 59.5)]
        [0.71, 0.06, 0.62]
        """
        kind = self._kind(tool, command_class)
        return float(chance(self._book, kind, float(ran_s), float(within_s), NONE, Params().fallback_s))

    def _kind(self, tool: str, command_class: str | None) -> int:
        kind = self._kinds.number(tool, command_class)
        if len(self._kinds.names) > len(self._book.calls):
            self._grow()
        return kind

    def _grow(self) -> None:
        """A new book with room for all kinds and twice the calls."""
        self._room = max(16, 2 * self._room)
        self._book = enlarged(self._kinds, self._book, self._room)
