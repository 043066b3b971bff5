"""The cluster, compiled: one event loop that plays a workload under one policy, equal to `tao.cluster`.

Events, nodes and decisions follow the order written down in `Cluster.step`. All that the loop needs
lies in arrays, so that it can stop after any moment and go on later: to report progress, to be
interrupted, or because a table is full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tao import machine as at
from tao import readiness, state, valuation
from tao._jit import by_reference, njit
from tao.assign import OK
from tao.history import PAUSED as PAUSED_VERDICT
from tao.machine import Machine
from tao.profiles import PS_PER_S
from tao.readiness import Book, Floats, Ints
from tao.state import (
    CHARGE,
    HOLD,
    INFLIGHT,
    KIND,
    LAST_NODE,
    LEAVING,
    NOTED,
    NOTED_PS,
    NOW_PS,
    PHASE,
    PREFILLING,
    PREFIX,
    REASONING,
    RESIDENT,
    SINCE_PS,
    STREAMED,
    TOOL,
    TOOL_DUE_PS,
    TOOL_PS,
    TURN,
    WAITING,
    State,
)


LAST_PS = 2**62  # as in tao.cluster
STUCK_PS = 3 * 3600 * PS_PER_S
FINISHED, PAUSE, TABLE_FULL, STUCK, ENDLESS = range(5)  # why `play` returns
ARRIVAL, APPLY, PERIOD, WAKE = range(4)  # events beside steps and tools, in the order a moment handles them

# Entries of Engine.count.
(
    NEXT_TASK,
    DONE_TASKS,
    TURNS,
    DECISIONS,
    MOVES,
    EVENTS,
    HEAP,
    TOUCHED,
    CHANGED,
    TICKED_PS,
    WAKE_PS,
    BUSY_PS,
    IDLE_SERVERS,
    TOOL_HEAD,
    TOOL_TAIL,
    TOOLS,  # that run or wait for a server
    PLANNING,  # 1: a plan is being made
    PLAN_ROWS,
    PLAN_PAUSES,
    PLAN_POOL,
    PLAN_STATES,
    PLAN_FALLBACK,
    STANDSTILL,
    BUSY_NODES,
) = range(24)
COUNTERS = 24


class Engine(NamedTuple):
    """Everything that a run is made of, flat, so that nothing has to be looked up in two steps."""

    state: State
    machine: Machine
    # Arrays of these two.
    session: Ints
    node: Ints
    pair: Ints
    clock: Ints
    asks_s: Floats
    book: Book
    request: Ints
    inner: Ints
    # The workload, as in `workloads.Script`.
    first: Ints
    prompt: Ints
    prefix: Ints
    output: Ints
    tool_ps: Ints
    kind: Ints
    asked_s: Floats
    arrivals_ps: Ints  # int64[n], if they are open
    # The policy, as in `policies.Compiled`.
    route: Any
    on_finish: Any
    tick: Any
    period_ps: int  # -1: after changes
    gap_ps: int
    counts_streamed: bool
    sees_cache: bool
    sees_tools: bool
    decides: bool  # False: its tick never does anything
    median: bool
    workers: int
    open_arrivals: bool
    # Where the run stands.
    count: Ints  # int64[COUNTERS]
    heap_ps: Ints  # int64[m + n + 4], times of a binary heap
    heap_id: Ints  # whose: node b's step is b, session i's tool m + i, then ARRIVAL to WAKE
    heap_at: Ints  # where each stands in the heap, -1: nowhere
    touched: Ints  # int64[m], nodes that may begin a step
    ended: Ints  # int64[n, 2], requests that finished at this moment
    proposed: Ints  # int64[n, 7], the plan being made, rows of State.place
    plan_pauses: Ints  # int64[n]
    turns: Ints  # int64[turns, 16], rows of history.TurnRow
    decisions: Ints  # int64[..., 5], rows of History.decision_rows
    moves: Ints  # int64[..., 4], rows of History.move_rows


@njit
def push(count, heap_ps, heap_id, heap_at, what, at_ps):
    """Enter an event, or make it earlier."""
    k = heap_at[what]
    if k < 0:
        k = count[HEAP]
        count[HEAP] += 1
    while k > 0:
        above = (k - 1) >> 1
        if heap_ps[above] < at_ps or (heap_ps[above] == at_ps and heap_id[above] < what):
            break
        heap_ps[k], heap_id[k] = heap_ps[above], heap_id[above]
        heap_at[heap_id[k]] = k
        k = above
    heap_ps[k], heap_id[k], heap_at[what] = at_ps, what, k


@njit
def pop(count, heap_ps, heap_id, heap_at):
    """Take out the first event: whose it is."""
    first = heap_id[0]
    heap_at[first] = -1
    count[HEAP] -= 1
    size = count[HEAP]
    if size == 0:
        return first
    at_ps, what, k = heap_ps[size], heap_id[size], 0
    while True:
        below = 2 * k + 1
        if below >= size:
            break
        other = below + 1
        if other < size and (
            heap_ps[other] < heap_ps[below]
            or (heap_ps[other] == heap_ps[below] and heap_id[other] < heap_id[below])
        ):
            below = other
        if at_ps < heap_ps[below] or (at_ps == heap_ps[below] and what < heap_id[below]):
            break
        heap_ps[k], heap_id[k] = heap_ps[below], heap_id[below]
        heap_at[heap_id[k]] = k
        k = below
    heap_ps[k], heap_id[k], heap_at[what] = at_ps, what, k
    return first


@njit
def play(engine, event_limit):
    """Go on until all sessions are done, or for `event_limit` events; returns why it stopped."""
    e = by_reference(engine)
    count, clock, inner = e.count, e.clock, e.inner
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
        if len(e.decisions) - count[DECISIONS] < 4 or len(e.moves) - count[MOVES] < 6 * clock[state.LIVE] + 6:
            return TABLE_FULL
        now_ps = heap_ps[0]
        if now_ps >= LAST_PS:
            return ENDLESS
        clock[NOW_PS] = now_ps
        finished = 0
        while count[HEAP] and heap_ps[0] == now_ps and heap_id[0] < m:
            finished = _end_step(e, pop(count, heap_ps, heap_id, heap_at), finished)
        for k in range(finished):
            _finish(e, e.ended[k, 0], e.ended[k, 1])
        while True:
            while count[HEAP] and heap_ps[0] == now_ps:
                what = pop(count, heap_ps, heap_id, heap_at)
                if what < m:  # a segment cut at this very moment; nobody finishes inside one
                    _end_step(e, what, count[HEAP] * 0)
                elif what < m + n:
                    _tool_end(e, what - m)
                else:
                    _timer(e, what - m - n)
                if count[STANDSTILL]:
                    return STUCK
            _decide(e)
            if count[HEAP] == 0 or heap_ps[0] > now_ps:
                break
        for k in range(count[TOUCHED]):
            b = e.touched[k]
            inner[b, at.TOUCHED] = 0
            if inner[b, at.ENDS_PS] < 0:
                at.begin(e.machine, b, now_ps)
                if inner[b, at.ENDS_PS] >= 0:
                    count[BUSY_NODES] += 1
                    push(count, heap_ps, heap_id, heap_at, b, inner[b, at.ENDS_PS])
        count[TOUCHED] = 0
    return FINISHED


@njit
def _set_off(e, n, m):
    """The moment 0: the first sessions, the first tick."""
    count = e.count
    count[EVENTS] = 1
    if e.open_arrivals:
        push(count, e.heap_ps, e.heap_id, e.heap_at, m + n + ARRIVAL, e.arrivals_ps[0])
    else:
        for _ in range(min(e.workers, n)):
            _start_task(e)
    if e.period_ps >= 0:
        push(count, e.heap_ps, e.heap_id, e.heap_at, m + n + PERIOD, e.period_ps)
    _decide(e)
    for k in range(count[TOUCHED]):
        b = e.touched[k]
        e.inner[b, at.TOUCHED] = 0
        at.begin(e.machine, b, e.clock[NOW_PS])
        count[BUSY_NODES] += 1
        push(count, e.heap_ps, e.heap_id, e.heap_at, b, e.inner[b, at.ENDS_PS])
    count[TOUCHED] = 0


@njit
def _touch(e, b):
    """Node b may have to begin a step at the end of this moment."""
    if not e.inner[b, at.TOUCHED]:
        e.inner[b, at.TOUCHED] = 1
        e.touched[e.count[TOUCHED]] = b
        e.count[TOUCHED] += 1


@njit
def _end_step(e, b, finished):
    """The step or segment of node b ends; returns the new number of finished requests."""
    e.count[EVENTS] += 1
    e.count[BUSY_NODES] -= 1
    _touch(e, b)
    charged = e.node[b, PREFILLING]
    finished = at.finish(e.machine, b, e.clock[NOW_PS], e.ended, finished)
    if e.node[b, PREFILLING] != charged:
        e.count[CHANGED] = 1
    return finished


@njit
def _start_task(e):
    i = e.count[NEXT_TASK]
    e.count[NEXT_TASK] += 1
    e.request[i, at.STARTED_PS] = e.clock[NOW_PS]
    state.start(e.state, i)
    _arrive(e, i)


@njit
def _arrive(e, i):
    """Session i has its next request: straight to its node, to where the policy says, or to the pool."""
    s, pair, now_ps = e.session, e.pair, e.clock[NOW_PS]
    turn = e.first[i] + s[i, TURN]
    prefix = e.prefix[turn]
    state.resize(e.state, i, e.prompt[turn])
    s[i, PHASE], s[i, PREFIX], s[i, SINCE_PS] = WAITING, prefix, now_ps
    e.request[i, at.ARRIVED_PS] = now_ps
    if s[i, TURN] and prefix < e.prompt[turn - 1] + e.output[turn - 1]:
        for b in range(pair.shape[1]):
            pair[i, b, NOTED] = min(pair[i, b, NOTED], prefix)
    e.count[CHANGED] = 1
    if s[i, RESIDENT] >= 0:
        _submit(e, i)
        return
    _show(e)
    b = e.route(e.state, i)
    if b != HOLD:
        _place(e, i, b)


@njit
def _place(e, i, b):
    """Session i becomes resident on node b; a waiting request goes there at once."""
    pair, now_ps = e.pair, e.clock[NOW_PS]
    promised = 0
    if pair[i, b, NOTED]:
        age_s = now_ps / PS_PER_S - pair[i, b, NOTED_PS] / PS_PER_S
        promised = valuation.decayed(pair[i, b, NOTED], age_s, e.state.settings.half_life_s)
    e.request[i, at.PROMISED] = promised
    state.move(e.state, i, b)
    if e.session[i, PHASE] == WAITING:
        _submit(e, i)


@njit
def _submit(e, i):
    s, node, request = e.session, e.node, e.request
    b, turn = s[i, RESIDENT], e.first[i] + s[i, TURN]
    request[i, at.PROMPT], request[i, at.OUTPUT] = e.prompt[turn], e.output[turn]
    request[i, at.REUSABLE] = e.pair[i, b, NOTED]
    s[i, PHASE] = REASONING
    node[b, INFLIGHT] += 1
    node[b, PREFILLING] += s[i, CHARGE]
    if at.submit(e.machine, b, i, e.clock[NOW_PS]):
        push(e.count, e.heap_ps, e.heap_id, e.heap_at, b, e.inner[b, at.ENDS_PS])
    if e.inner[b, at.ENDS_PS] < 0:
        _touch(e, b)


@njit
def _finish(e, b, i):
    """An answer is complete: note what is cached, record the turn, call the tool or end the session."""
    s, pair, node, request = e.session, e.pair, e.node, e.request
    now_ps, turn = e.clock[NOW_PS], e.first[i] + s[i, TURN]
    last = turn + 1 == e.first[i + 1]
    state.resize(e.state, i, e.prompt[turn] + e.output[turn])
    s[i, STREAMED] = 0
    pair[i, b, NOTED], pair[i, b, NOTED_PS] = request[i, at.COMPUTED], now_ps
    s[i, LAST_NODE] = b
    node[b, INFLIGHT] -= 1
    _record_turn(e, i, b, turn)
    e.count[CHANGED] = 1
    s[i, PHASE] = TOOL
    if not last:
        s[i, TOOL_PS], s[i, TOOL_DUE_PS] = now_ps, -1
        s[i, KIND], e.asks_s[i] = e.kind[turn], e.asked_s[turn]
        e.count[TOOLS] += 1
        _call_tool(e, i)
    e.on_finish(e.state, i)
    if s[i, LEAVING] or last:
        s[i, LEAVING] = 0
        state.move(e.state, i, HOLD)
    if last:
        state.end(e.state, i)
        request[i, at.FINISHED_PS] = now_ps
        e.count[DONE_TASKS] += 1
        if not e.open_arrivals and e.count[NEXT_TASK] < len(s):
            _start_task(e)


@njit
def _record_turn(e, i, b, turn):
    request, row = e.request, e.turns[e.count[TURNS]]
    request[i, at.ROW] = e.count[TURNS]
    e.count[TURNS] += 1
    row[0], row[1], row[2] = i, e.session[i, TURN], b
    row[3], row[4], row[5] = request[i, at.ARRIVED_PS], request[i, at.SUBMITTED_PS], request[i, at.SCHEDULED_PS]
    row[6], row[7], row[8] = request[i, at.FIRST_PS], e.clock[NOW_PS], e.clock[NOW_PS]
    row[9], row[10], row[11] = request[i, at.PROMPT], e.prefix[turn], request[i, at.HIT]
    row[12], row[13] = request[i, at.OUTPUT], request[i, at.RECOMPUTED]
    row[14], row[15] = request[i, at.PREEMPTIONS], request[i, at.PROMISED]
    request[i, at.PROMISED] = -1


@njit
def _call_tool(e, i):
    """Run the tool of session i, or queue it where all servers are busy."""
    count, request = e.count, e.request
    if count[IDLE_SERVERS] == 0:
        request[i, at.NEXT] = -1
        if count[TOOL_HEAD] < 0:
            count[TOOL_HEAD] = i
        else:
            request[count[TOOL_TAIL], at.NEXT] = i
        count[TOOL_TAIL] = i
        return
    count[IDLE_SERVERS] -= 1
    end_ps = e.clock[NOW_PS] + e.tool_ps[e.first[i] + e.session[i, TURN]]
    if e.sees_tools:
        e.session[i, TOOL_DUE_PS] = end_ps
    push(count, e.heap_ps, e.heap_id, e.heap_at, len(e.node) + i, end_ps)


@njit
def _tool_end(e, i):
    s, count, now_ps = e.session, e.count, e.clock[NOW_PS]
    count[EVENTS] += 1
    count[TOOLS] -= 1
    count[IDLE_SERVERS] += 1
    if count[TOOL_HEAD] >= 0:
        first = count[TOOL_HEAD]
        count[TOOL_HEAD] = e.request[first, at.NEXT]
        _call_tool(e, first)
    e.turns[e.request[i, at.ROW], 8] = now_ps
    lasted_s = (now_ps - s[i, TOOL_PS]) / PS_PER_S
    readiness.learn(e.book, s[i, KIND], lasted_s, e.median)
    s[i, TURN] += 1
    _arrive(e, i)


@njit
def _timer(e, what):
    """An arrival, a plan that is ready, a period that is over, or the moment to decide again."""
    count, now_ps = e.count, e.clock[NOW_PS]
    first = len(e.node) + len(e.session)
    count[EVENTS] += 1
    if what == ARRIVAL:
        _start_task(e)
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
    count, now_ps = e.count, e.clock[NOW_PS]
    coming = e.open_arrivals and count[NEXT_TASK] < len(e.session)
    if count[BUSY_NODES] or count[TOOLS] or count[PLANNING] or coming:
        count[BUSY_PS] = now_ps
    elif now_ps - count[BUSY_PS] > STUCK_PS:
        count[STANDSTILL] = 1


@njit
def _decide(e):
    """After the events of a moment: let an event-driven policy decide, or wake it when it may."""
    count = e.count
    if e.period_ps >= 0 or not e.decides or not count[CHANGED] or count[PLANNING]:
        return
    due_ps = count[TICKED_PS] + max(e.gap_ps, 1)
    if count[TICKED_PS] < 0 or due_ps <= e.clock[NOW_PS]:
        _tick(e)
    else:
        _wake_at(e, due_ps)


@njit
def _wake_at(e, at_ps):
    if e.count[WAKE_PS] < 0 or at_ps < e.count[WAKE_PS]:
        e.count[WAKE_PS] = at_ps
        what = len(e.node) + len(e.session) + WAKE
        push(e.count, e.heap_ps, e.heap_id, e.heap_at, what, at_ps)


@njit
def _tick(e):
    count, clock, now_ps = e.count, e.clock, e.clock[NOW_PS]
    count[CHANGED], count[TICKED_PS] = 0, now_ps
    _show(e)
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
            _place(e, e.state.place[k, 0], e.state.place[k, 1])
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
        e.count[CHANGED] = 1
    return True


@njit
def _apply(e):
    """The plan is there: apply what still holds."""
    e.count[PLANNING] = 0
    proposed = e.proposed[: e.count[PLAN_ROWS]]
    verdicts = state.recheck(e.state, proposed)
    for k in range(len(verdicts)):
        if verdicts[k] == OK:
            _place(e, proposed[k, 0], proposed[k, 1])
    _record_decision(e, 1, proposed, verdicts)


@njit
def _record_decision(e, planned, rows, verdicts):
    count, k = e.count, e.count[DECISIONS]
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


@njit
def _show(e):
    """Before a policy decides, as far as it looks: answers in progress, and what caches hold by now."""
    now_ps, machine = e.clock[NOW_PS], e.machine
    if e.counts_streamed:
        for b in range(len(machine.node)):
            for k in range(machine.node[b, state.RUNNING]):
                i = machine.running[b, k]
                machine.session[i, STREAMED] = at.emitted(machine, b, i, now_ps)
            i = machine.inner[b, at.HEAD]
            while i >= 0:  # preempted ones have emitted as well
                machine.session[i, STREAMED] = machine.request[i, at.EMITTED]
                i = machine.request[i, at.NEXT]
    if e.sees_cache:
        for b in range(len(machine.node)):
            at.evict_pending(machine, b, now_ps)

