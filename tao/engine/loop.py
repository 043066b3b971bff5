"""The cluster, compiled: one event loop that plays a workload under one policy, equal to `tao.cluster`.

Events, nodes and decisions follow the order written down in `Cluster.step`. All that the loop needs
lies in arrays, so that it can stop after any moment and go on later: to report progress, to be
interrupted, or because a table is full.
"""

from __future__ import annotations

import numpy as np

from tao import state
from tao._jit import by_reference, njit
from tao.assign import OK
from tao.engine import batch, turns
from tao.engine import layout as at
from tao.engine.heap import pop, push
from tao.engine.layout import (
    APPLY,
    ARRIVAL,
    BUSY_NODES,
    BUSY_PS,
    CHANGED,
    DECISIONS,
    DONE_TASKS,
    ENDLESS,
    EVENTS,
    FINISHED,
    HEAP,
    LAST_PS,
    MOVES,
    NEXT_TASK,
    PAUSE,
    PERIOD,
    PLAN_FALLBACK,
    PLAN_PAUSES,
    PLAN_POOL,
    PLAN_ROWS,
    PLAN_STATES,
    PLANNING,
    STANDSTILL,
    STUCK,
    STUCK_PS,
    TABLE_FULL,
    TICKED_PS,
    TOOLS,
    TOUCHES,
    WAKE,
    WAKE_PS,
)
from tao.history import PAUSED as PAUSED_VERDICT
from tao.state import (
    HOLD,
    LEAVING,
    NOW_PS,
    PHASE,
    PREFILLING,
    REASONING,
    RESIDENT,
)


@njit
def play(engine, event_limit):
    """Go on until all sessions are done, or for `event_limit` events; returns why it stopped."""
    e = by_reference(engine)
    count, clock, inner = e.counts, e.clock, e.inner
    heap_ps, heap_id, heap_at = e.heap_ps, e.heap_id, e.heap_at
    n, m = len(e.session), len(e.node)
    if count[EVENTS] == 0:
        _set_off(e, n, m)
    stop_at = count[EVENTS] + event_limit
    while count[DONE_TASKS] < n:
        if count[HEAP] == 0:
            return STUCK
        if count[EVENTS] >= stop_at:
            return PAUSE
        if len(e.decisions) - count[DECISIONS] < 4 or len(e.moves) - count[MOVES] < 6 * n + 6:
            return TABLE_FULL
        now_ps = heap_ps[0]
        if now_ps >= LAST_PS:
            return ENDLESS
        clock[NOW_PS] = now_ps
        finished = 0
        while count[HEAP] and heap_ps[0] == now_ps and heap_id[0] < m:
            finished = _end_step(e, pop(count, heap_ps, heap_id, heap_at), finished)
        for k in range(finished):
            turns.finish(e, e.ended[k, 0], e.ended[k, 1])
        while True:
            while count[HEAP] and heap_ps[0] == now_ps:
                what = pop(count, heap_ps, heap_id, heap_at)
                if what < m:  # a segment cut at this very moment; nobody finishes inside one
                    _end_step(e, what, count[HEAP] * 0)
                elif what < m + n:
                    turns.tool_end(e, what - m)
                else:
                    _timer(e, what - m - n)
                if count[STANDSTILL]:
                    return STUCK
            _decide(e)
            if count[HEAP] == 0 or heap_ps[0] > now_ps:
                break
        for k in range(count[TOUCHES]):
            b = e.touched[k]
            inner[b, at.TOUCHED] = 0
            if inner[b, at.ENDS_PS] < 0:
                batch.begin(e.machine, b, now_ps)
                if inner[b, at.ENDS_PS] >= 0:
                    count[BUSY_NODES] += 1
                    push(count, heap_ps, heap_id, heap_at, b, inner[b, at.ENDS_PS])
        count[TOUCHES] = 0
    return FINISHED


@njit
def _set_off(e, n, m):
    """The moment 0: the first sessions, the first tick."""
    count = e.counts
    count[EVENTS] = 1
    if e.open_arrivals:
        push(count, e.heap_ps, e.heap_id, e.heap_at, m + n + ARRIVAL, e.arrivals_ps[0])
    else:
        for _ in range(min(e.workers, n)):
            turns.start_task(e)
    if e.period_ps >= 0:
        push(count, e.heap_ps, e.heap_id, e.heap_at, m + n + PERIOD, e.period_ps)
    _decide(e)
    for k in range(count[TOUCHES]):
        b = e.touched[k]
        e.inner[b, at.TOUCHED] = 0
        batch.begin(e.machine, b, e.clock[NOW_PS])
        count[BUSY_NODES] += 1
        push(count, e.heap_ps, e.heap_id, e.heap_at, b, e.inner[b, at.ENDS_PS])
    count[TOUCHES] = 0


@njit
def _end_step(e, b, finished):
    """The step or segment of node b ends; returns the new number of finished requests."""
    e.counts[EVENTS] += 1
    e.counts[BUSY_NODES] -= 1
    e.counts[BUSY_PS] = e.clock[NOW_PS]
    turns.touch(e, b)
    charged = e.node[b, PREFILLING]
    finished = batch.finish(e.machine, b, e.clock[NOW_PS], e.ended, finished)
    if e.node[b, PREFILLING] != charged:
        e.counts[CHANGED] = 1
    return finished


@njit
def _timer(e, what):
    """An arrival, a plan that is ready, a period that is over, or the moment to decide again."""
    count, now_ps = e.counts, e.clock[NOW_PS]
    first = len(e.node) + len(e.session)
    count[EVENTS] += 1
    if what < PERIOD:
        count[BUSY_PS] = now_ps
    if what == ARRIVAL:
        turns.start_task(e)
        if count[NEXT_TASK] < len(e.session):
            at_ps = e.arrivals_ps[count[NEXT_TASK]]
            push(count, e.heap_ps, e.heap_id, e.heap_at, first + ARRIVAL, at_ps)
    elif what == APPLY:
        _apply(e)
    elif what == PERIOD:
        if not count[PLANNING]:
            _tick(e)
        push(count, e.heap_ps, e.heap_id, e.heap_at, first + PERIOD, now_ps + e.period_ps)
        _watch_for_standstill(e)
    else:
        count[WAKE_PS], count[CHANGED] = -1, 1
        _watch_for_standstill(e)


@njit
def _watch_for_standstill(e):
    count, now_ps = e.counts, e.clock[NOW_PS]
    coming = e.open_arrivals and count[NEXT_TASK] < len(e.session)
    if count[BUSY_NODES] or count[TOOLS] or count[PLANNING] or coming:
        count[BUSY_PS] = now_ps
    elif now_ps - count[BUSY_PS] > STUCK_PS:
        count[STANDSTILL] = 1


@njit
def _decide(e):
    """After the events of a moment: let an event-driven policy decide, or wake it when it may."""
    count = e.counts
    if e.period_ps >= 0 or not e.decides or not count[CHANGED] or count[PLANNING]:
        return
    due_ps = count[TICKED_PS] + max(e.gap_ps, 1)
    if count[TICKED_PS] >= 0 and e.clock[NOW_PS] < due_ps:
        _wake_at(e, due_ps)
        return
    _tick(e)
    if count[CHANGED] and not count[PLANNING]:  # somebody was paused
        _wake_at(e, e.clock[NOW_PS] + max(e.gap_ps, 1))


@njit
def _wake_at(e, at_ps):
    if e.counts[WAKE_PS] < 0 or at_ps < e.counts[WAKE_PS]:
        e.counts[WAKE_PS] = at_ps
        what = len(e.node) + len(e.session) + WAKE
        push(e.counts, e.heap_ps, e.heap_id, e.heap_at, what, at_ps)


@njit
def _tick(e):
    count, clock, now_ps = e.counts, e.clock, e.clock[NOW_PS]
    count[CHANGED], count[TICKED_PS] = 0, now_ps
    turns.show(e)
    state.begin_tick(e.state)
    e.tick(e.state)
    pool, planned = clock[state.POOL], clock[state.COST_PS] >= 0
    if clock[state.WAKE_PS] >= 0 and e.period_ps < 0:
        _wake_at(e, max(clock[state.WAKE_PS], now_ps + 1))
    if planned:
        for k in range(clock[state.PLACED]):
            for c in range(7):
                e.proposed[k, c] = e.state.place[k, c]
    else:
        for k in range(clock[state.PLACED]):
            turns.place(e, e.state.place[k, 0], e.state.place[k, 1])
    paused = 0
    for k in range(clock[state.PAUSED]):
        if _pause(e, e.state.pause[k]):
            e.plan_pauses[paused] = e.state.pause[k]
            paused += 1
    count[PLAN_ROWS], count[PLAN_PAUSES], count[PLAN_POOL] = clock[state.PLACED], paused, pool
    count[PLAN_STATES], count[PLAN_FALLBACK] = clock[state.STATES], clock[state.FALLBACK]
    if planned:  # the plan takes its time; what it relies on may change meanwhile
        count[PLANNING], count[PLAN_POOL] = 1, clock[state.POOL]
        what = len(e.node) + len(e.session) + APPLY
        push(count, e.heap_ps, e.heap_id, e.heap_at, what, now_ps + clock[state.COST_PS])
    elif clock[state.PLACED] or paused:
        _record_decision(e, 0, e.state.place, np.zeros(clock[state.PLACED], np.int64))


@njit
def _pause(e, i):
    """Pause now, or mark a session that is answering; False if it was already."""
    s = e.session
    if s[i, RESIDENT] < 0 or s[i, LEAVING]:
        return False
    if s[i, PHASE] == REASONING:
        s[i, LEAVING] = 1
    else:
        state.move(e.state, i, HOLD)
        e.counts[CHANGED] = 1
    return True


@njit
def _apply(e):
    """The plan is there: apply what still holds."""
    e.counts[PLANNING] = 0
    proposed = e.proposed[: e.counts[PLAN_ROWS]]
    verdicts = state.recheck(e.state, proposed)
    for k in range(len(verdicts)):
        if verdicts[k] == OK:
            turns.place(e, proposed[k, 0], proposed[k, 1])
    _record_decision(e, 1, proposed, verdicts)


@njit
def _record_decision(e, planned, rows, verdicts):
    count, k = e.counts, e.counts[DECISIONS]
    row = e.decisions[k]
    row[0], row[1] = e.clock[NOW_PS], count[PLAN_POOL]
    row[2], row[3], row[4] = count[PLAN_STATES], count[PLAN_FALLBACK], planned
    count[DECISIONS] += 1
    for j in range(len(verdicts) + count[PLAN_PAUSES]):
        move = e.moves[count[MOVES]]
        count[MOVES] += 1
        if j < len(verdicts):
            move[0], move[1], move[2], move[3] = k, rows[j, 0], rows[j, 1], verdicts[j]
        else:
            i = e.plan_pauses[j - len(verdicts)]
            move[0], move[1], move[2], move[3] = k, i, -1, PAUSED_VERDICT
