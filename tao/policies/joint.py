"""TAO's policy, compiled: value each pair of session and node, place jointly, pause on overload."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tao import assign, durations, exact, kernels, readiness, valuation
from tao._jit import njit
from tao.checks import MAX_TOKENS
from tao.profiles import PS_PER_S
from tao.readiness import Evidence, Ints
from tao.state import (
    CAPACITY,
    CONTEXT,
    COST_PS,
    FALLBACK,
    KIND,
    LEAVING,
    LIVE,
    NOTED,
    NOTED_PS,
    NOW_PS,
    PAUSED,
    PHASE,
    POOL,
    RANK,
    REASONING,
    RESIDENT,
    RESIDENTS,
    SHARED,
    SINCE_PS,
    STATES,
    TOOL,
    TOOL_DUE_PS,
    TOOL_PS,
    WAITING,
    WAKE_PS,
    demand_tokens,
    free_tokens,
    pause,
    place,
    still_running,
)

SMALLEST, LEAST_VALUE = range(2)  # as in model.PauseRule
FOREVER_S = 4_620_000.0  # more than simulated time has, and twice as much still fits 64 bits
OVER_BUDGET, EMPTY_NODE = 1, 2  # why bfd placed instead


class Waiting(NamedTuple):
    """Who waits and could be let in somewhere, as the planners take it (see `tao.assign`).

    pool int64[k], sessions in order of id; since int64[k] picoseconds; residents int64[m] per node.
    """

    pool: Ints
    demand: Ints
    free: Ints
    credit: Ints
    ready: Ints
    tokens: Ints
    prefer: Ints
    tier: Ints
    since: Ints
    residents: Ints


@njit
def tao_tick(state):
    """Pause where a node is overfull, then plan if anybody fits anywhere; the plan takes its time."""
    waiting = _waiting(state)
    if len(waiting.pool):
        _admit(state, waiting, _choose(state, waiting))


@njit
def exact_tick(state):
    """The same with the exact planner, apart because it takes long to compile."""
    waiting, settings = _waiting(state), state.settings
    if len(waiting.pool):
        w, budget = waiting, settings.state_budget
        choice, _, proven, state.clock[STATES] = exact.solve(
            w.demand, w.free, w.credit, w.ready, w.tokens, w.prefer, False, budget
        )
        if proven < 3:
            choice, _ = assign.or_better(
                *(choice, w.demand, w.free, w.credit, w.ready, w.tokens, w.prefer, w.tier),
                *(settings.quantum_tokens, budget, False),
            )
        _admit(state, waiting, choice)


@njit
def _waiting(state):
    """Pause where a node is overfull; then who waits, and what each is worth where."""
    node = state.node
    free = np.empty(len(node), np.int64)
    residents = np.empty(len(node), np.int64)
    for b in range(len(node)):
        free[b], residents[b] = free_tokens(state, b), node[b, RESIDENTS]
        if free[b] < 0:
            _pause_overfull(state, b)
    for k in range(state.clock[PAUSED]):
        i = state.pause[k]
        if state.session[i, PHASE] != REASONING:  # it is in the pool from now on
            free[state.session[i, RESIDENT]] += demand_tokens(state, i)
            residents[state.session[i, RESIDENT]] -= 1
    pool = _candidates(state, free.max())
    demand = np.empty(len(pool), np.int64)
    for k in range(len(pool)):
        demand[k] = demand_tokens(state, pool[k])
    credit, ready, tokens, last, since = values(state, pool)
    prefer, tier = assign.arrange(credit, last, np.ones(credit.shape, np.bool_), demand, free)
    for b in range(len(free)):
        free[b] = max(free[b], 0)
    return Waiting(pool, demand, free, credit, ready, tokens, prefer, tier, since, residents)


@njit
def _admit(state, waiting, choice):
    """Place sessions as chosen, int64[k] node or -1, and note what the plan costs and when to wake."""
    w, clock, settings = waiting, state.clock, state.settings
    for k in range(len(choice)):
        if choice[k] >= 0:
            row = state.place[place(state, w.pool[k], choice[k])]
            row[2], row[3], row[4] = w.credit[k, choice[k]], w.ready[k], w.tokens[k]
    cost_s = settings.plan_cost_s + settings.plan_cost_per_state_s * clock[STATES]
    clock[COST_PS] = int(min(cost_s, FOREVER_S) * PS_PER_S + 0.5)
    clock[WAKE_PS] = _wake_ps(state, w.pool) if settings.readiness else -1


@njit
def _choose(state, waiting):
    """The planner's choice: int64[k] node or -1; bfd where dp has too many states or leaves a node empty."""
    w, clock, settings = waiting, state.clock, state.settings
    if settings.planner != assign.DP:
        return assign.place(settings.planner, w.demand, w.free, w.since, w.prefer)
    budget = settings.state_budget
    choice, clock[STATES] = assign.solve_dp(
        *(w.demand, w.free, w.credit, w.ready, w.tokens, w.prefer, w.tier),
        *(settings.quantum_tokens, budget),
    )
    if clock[STATES] < 0:
        clock[STATES], clock[FALLBACK] = budget + 1, OVER_BUDGET
        return assign.place(assign.BFD, w.demand, w.free, w.since, w.prefer)
    # Rounding must not keep a session for ever from a node that is empty.
    if w.residents.min() == 0 and choice.max() < 0:
        clock[FALLBACK] = EMPTY_NODE
        return assign.place(assign.BFD, w.demand, w.free, w.since, w.prefer)
    return choice


@njit
def _candidates(state, room):
    """Who of the pool, and of those paused at this moment, needs no more than `room`, in order of id."""
    s, clock = state.session, state.clock
    ranks = np.empty(clock[POOL] + clock[PAUSED], np.int64)
    count = 0
    for k in range(clock[POOL]):
        if demand_tokens(state, state.pool[k]) <= room:
            ranks[count] = s[state.pool[k], RANK]
            count += 1
    for k in range(clock[PAUSED]):
        i = state.pause[k]
        if s[i, PHASE] != REASONING and demand_tokens(state, i) <= room:
            ranks[count] = s[i, RANK]
            count += 1
    return _by_id(state, ranks[:count])


@njit
def _by_id(state, ranks):
    """The sessions of so many ranks, in order of id."""
    pool = np.empty(len(ranks), np.int64)
    kernels.sort_by(ranks, pool)
    for k in range(len(ranks)):
        pool[k] = state.by_rank[ranks[k]]
    return pool


@njit
def values(state, pool):
    """Credit int64[k, m], ready, tokens, last node and since (picoseconds) int64[k] of sessions."""
    s, settings = state.session, state.settings
    now_s = state.clock[NOW_PS] / PS_PER_S
    k, m = len(pool), len(state.node)
    credit = np.zeros((k, m), np.int64)
    ready, tokens, last = np.zeros(k, np.int64), np.empty(k, np.int64), np.full(k, -1)
    since = np.full(k, 1 << 62)
    for a in range(k):
        i = pool[a]
        tokens[a] = s[i, CONTEXT]
        extra = 0
        if s[i, PHASE] == WAITING:
            since[a] = s[i, SINCE_PS]
            waited_s = now_s - since[a] / PS_PER_S
            extra = min(int(settings.ageing_tokens_per_s * waited_s), MAX_TOKENS)
        if settings.readiness:
            ready[a] = s[i, PHASE] != TOOL or readiness.forecast(evidence(state, i), now_s, settings)[2]
        newest = np.int64(-1)
        for b in range(m):
            noted, at_ps = state.pair[i, b, NOTED], state.pair[i, b, NOTED_PS]
            credit[a, b] = extra
            if noted > 0:
                credit[a, b] += valuation.decayed(noted, now_s - at_ps / PS_PER_S, settings.half_life_s)
                if at_ps > newest:
                    newest, last[a] = at_ps, b
    return credit, ready, tokens, last, since


@njit
def evidence(state, i):
    """What is known of session i's running tool."""
    s = state.session
    due_s = s[i, TOOL_DUE_PS] / PS_PER_S if s[i, TOOL_DUE_PS] >= 0 else math.nan
    started_s, still = s[i, TOOL_PS] / PS_PER_S, still_running(state, i)
    ran_s = state.clock[NOW_PS] / PS_PER_S - started_s
    expected_s = durations.expected_s(state.book, s[i, KIND], ran_s, still, state.settings)
    return Evidence(started_s, due_s, state.asked_s[i], expected_s)


@njit
def _wake_ps(state, pool):
    """The next moment at which a tool of the pool may change its ready bit, -1: none."""
    now_s, first_s = state.clock[NOW_PS] / PS_PER_S, math.inf
    for i in pool:
        if state.session[i, PHASE] == TOOL:
            known = evidence(state, i)
            if state.settings.statistic == durations.SURVIVAL:  # what it expects changes all the time
                kind, still = state.session[i, KIND], still_running(state, i)
                at_s = durations.next_look(state.book, kind, known.started_s, now_s, still, state.settings)
                first_s = min(first_s, at_s)
                known = Evidence(known.started_s, known.deadline_s, known.asked_s, math.nan)
            first_s = min(first_s, readiness.next_change(known, now_s, state.settings))
    return -1 if math.isinf(first_s) else int(first_s * PS_PER_S) + 1


@njit
def _pause_overfull(state, b):
    """Pause residents of an overfull node, or mark them if they are answering, by the pause rule."""
    s, count = state.session, 0
    staying = np.empty(state.clock[LIVE], np.int64)
    over = -state.node[b, CAPACITY]
    if state.settings.share_prefix:
        over += state.clock[SHARED]
    for k in range(state.clock[LIVE]):
        i = state.live[k]
        if s[i, RESIDENT] == b and not s[i, LEAVING]:
            staying[count] = i
            count += 1
            over += demand_tokens(state, i)
    if over <= 0:
        return
    staying = staying[:count]
    if state.settings.pause_rule == LEAST_VALUE and _pause_least_value(state, b, staying):
        return
    size = np.empty(count, np.int64)
    for k in range(count):
        size[k] = s[staying[k], CONTEXT]
    kernels.sort_by(size, staying)
    for acting in (True, False):
        for i in staying:
            if over > 0 and (s[i, PHASE] == TOOL) == acting:
                pause(state, i)
                over -= demand_tokens(state, i)


@njit
def _pause_least_value(state, b, staying):
    """Pause those whose value on node b is least in sum: keep the best knapsack. False beyond the budget.

    ThunderAgent's covering problem, turned round (ours).
    """
    settings, k = state.settings, len(staying)
    ranks = np.empty(k, np.int64)
    for a in range(k):
        ranks[a] = state.session[staying[a], RANK]
    staying = _by_id(state, ranks)
    demand = np.empty(k, np.int64)
    for a in range(k):
        demand[a] = demand_tokens(state, staying[a])
    credit, ready, tokens, last, _ = values(state, staying)
    here = credit[:, b : b + 1].copy()
    room = np.array([state.node[b, CAPACITY]])
    prefer, tier = assign.arrange(here, last, np.ones((k, 1), np.bool_), demand, room)
    choice, states = assign.solve_dp(
        *(demand, room, here, ready, tokens, prefer, tier),
        *(settings.quantum_tokens, settings.state_budget),
    )
    for a in range(k):
        if states >= 0 and choice[a] < 0:
            pause(state, staying[a])
    return states >= 0
