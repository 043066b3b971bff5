"""Checks of exercises that have no panel's test: unanswered, wrong in every way, right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tao
from tao.exercises import live, start
from tao.history import History
from tao.timeline import seconds, short_sessions, small_run, spans

SIX = small_run(short_sessions(6, seed=1))


def waited(answer: Any) -> None:
    live.check_waited(answer, SIX)


def longest(history: History) -> str:
    """By the phases that the lesson on sessions shows, which leave out waits under a tenth of a second."""
    told = spans(history)
    return max(history.session_ids, key=lambda name: seconds(told, name)["waiting"])


@pytest.mark.parametrize(
    ("check", "wrong", "right"),
    [
        (start.check_left_out, [{"171"}, "171", {"177"}, {"nobody"}, 7], {"177", "178"}),
        (start.check_left_out, ["nobody"], ["178", "177"]),
        (start.check_most_tokens, ["dp", "exact", "short_first", "none", 3], "bfd"),
        (start.check_most_tokens, ["exhaustive"], "worst_fit"),
        (waited, ["s1", "nobody", 0], longest(SIX)),
        (live.check_untold, [0, 0.0, 0.5, "?"], None),
    ],
)
def test_the_checks_know_unanswered_wrong_and_right(
    check: Callable[[Any], None], wrong: list[Any], right: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (..., *wrong, right):
        check(answer)
    first, *middle, last = capsys.readouterr().out.splitlines()
    assert first == "not answered yet"
    assert len(middle) == len(wrong)
    assert all(line.startswith("not yet: ") for line in middle)
    assert last.startswith("right. ")


def test_the_share_found_is_a_whole_percent_and_0_if_nothing_was_promised() -> None:
    run = tao.simulate("swe-lite", "tao", nodes=1, workers=6, tasks=6, capacity_tokens=40_000)
    share = tao.measure(run)["credit_realized"]
    assert share is not None
    assert live.found_percent(run) == round(100 * share)
    assert live.found_percent(SIX) == 0


def test_what_agrees_best_differs_least_and_nothing_does_without_a_simulation() -> None:
    run, slower = (small_run(short_sessions(n, seed=1)) for n in (2, 3))
    off = {
        words: abs(tao.measure(run)[name] / tao.measure(slower)[name] - 1)
        for words, name in live.ROWS.items()
    }
    best = live.agrees_best(run, slower)
    assert all(off[best] <= other for other in off.values())
    assert live.agrees_best(run, None) == "none of them"
