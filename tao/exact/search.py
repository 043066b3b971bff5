"""The whole search: each node for itself, prices where they disagree, branches where prices do not help."""

from __future__ import annotations

import numpy as np

from tao import kernels
from tao._jit import njit
from tao.exact.knapsack import BUDGET, EXACT_RATIOS, SLACK, SPENT, knapsack, lists_of, sort_node
from tao.exact.pack import Problem
from tao.exact.prices import Duals, decide, first_prices, reprice, room_prices, settle
from tao.exact.supports import CREDIT, READY_BOUND, TOKENS_BOUND, note, visit

VISIT_STEPS = 1_000  # ours: how long supports are tried one by one before the search branches
DEPTH = 64  # ours: branches one below the other
TURNS = 8  # ours: how often each node may improve the first plan


@njit
def solve(demand, free, credit, ready, tokens, prefer, restricted, budget):
    """The best plan on true sizes: (int64[n] node or -1, bound int64[3], proven, steps).

    bound[c] is -1 where nothing is known. `proven` counts the components of the value that cannot be more.
    """
    problem, lists, duals = _begin(demand, free, credit, ready, tokens, prefer, restricted, budget)
    n, meter = len(demand), lists.meter
    choice, record, bound = np.full(n, -1, np.int64), np.full(5, -1, np.int64), np.full(3, -1, np.int64)
    node = np.full(n, -1, np.int64)
    bound[0], known, complete = branch(problem, lists, duals, node, record, choice)
    if record[CREDIT] < known:  # no time to find this plan again
        note(record, known, node, problem, meter, choice)
        complete = False
    if complete:
        bound[0], bound[1], bound[2] = record[CREDIT], record[READY_BOUND], record[TOKENS_BOUND]
    proven = 0
    while proven < 3 and record[proven] == bound[proven]:
        proven += 1
    return choice, bound, proven, meter[SPENT]


@njit
def root(demand, free, credit, ready, tokens, prefer, restricted, budget):
    """The proof before any branch: (price int64[n] of each session, int64[m] what each node earns at most).

    Together they are no less than the credit of any plan. Arguments as of `solve`, which begins so.
    """
    problem, lists, duals = _begin(demand, free, credit, ready, tokens, prefer, restricted, budget)
    at_the_root(problem, lists, duals, np.full(len(demand), -1, np.int64))
    return duals.u, duals.value


@njit
def _begin(demand, free, credit, ready, tokens, prefer, restricted, budget):
    """The problem, its `Lists`, and `Duals` without any prices."""
    n, m = prefer.shape
    order, size = np.arange(n), -demand
    kernels.sort_by(size, order)
    meter = np.zeros(3, np.int64)
    meter[BUDGET], meter[SLACK] = budget, _large(demand, credit)
    duals = Duals(np.zeros(n, np.int64), np.zeros(m, np.int64), np.zeros(n, np.int64))
    problem = Problem(demand, free, credit, ready, tokens, prefer, order, restricted)
    return problem, lists_of(credit, prefer, meter), duals


@njit
def at_the_root(problem, lists, duals, node):
    """Prices before any branch: (worth int64[n, m], bound on the credit, an objecting session or -1, known).

    node int64[n] receives the support of most credit that shows up on the way, worth `known`.
    """
    p, worth = problem, problem.credit
    for b in range(len(p.free)):
        decide(lists, duals, b, worth, p.demand, p.free)
    known = first_plan(problem, lists, node, np.int64(-1))
    if _contested(duals.wanted):
        worth = p.credit.copy()  # negative where a branch forbids the pair
        first_prices(lists, worth, p.demand, room_prices(lists, worth, p.demand, p.free, known), duals.u)
        for b in range(len(p.free)):
            decide(lists, duals, b, worth, p.demand, p.free)
    bound, i = settle(lists, duals, worth, p.demand, p.free, known)
    return worth, bound, i, first_plan(problem, lists, node, known)


@njit
def _large(demand, credit):
    """Whether floats may not tell apart any two densities, credit per token."""
    large = False
    for i in range(len(demand)):
        large = large or demand[i] >= EXACT_RATIOS or (credit[i] >= EXACT_RATIOS).any()
    return large


@njit
def first_plan(problem, lists, plan, known):
    """The credit of a support to begin with, from what the nodes want, or `known` if that is more.

    plan int64[n] is written if it is not. Where nodes want the same session, they improve it in turns:
    each takes what is best for all while the other nodes keep what it leaves them.
    """
    p = problem
    n, m = p.prefer.shape
    node, earns, clash = np.full(n, -1, np.int64), np.zeros(n, np.int64), False
    for b in range(m):
        for q in range(lists.start[b], lists.start[b + 1]):
            i = lists.item[q]
            if lists.inside[q]:
                clash = clash or node[i] >= 0
                if p.credit[i, b] > earns[i]:
                    node[i], earns[i] = b, p.credit[i, b]
    if clash:
        _take_turns(problem, lists_of(p.credit, p.prefer, lists.meter), node, earns)
    total = earns.sum()
    if total > known:
        for i in range(n):
            plan[i] = node[i]
    return max(total, known)


@njit
def _take_turns(problem, lists, node, earns):
    """Each node in turn takes its best set, for which other nodes have to be paid what they lose."""
    p, meter, item, inside = problem, lists.meter, lists.item, lists.inside
    m, turn, idle = len(p.free), 0, 0
    while idle < m and turn < TURNS * m and meter[SPENT] < meter[BUDGET]:
        b, has = turn % m, 0
        lo, hi = lists.start[b], lists.start[b + 1]
        for q in range(lo, hi):
            i = item[q]
            if node[i] == b:
                has, earns[i] = has + earns[i], 0
        sort_node(lists, b, p.credit, earns, p.demand)
        gets = knapsack(lists, b, p.free[b], np.int64(-1), inside)[0]
        for q in range(lo, hi):
            i = item[q]
            if gets > has and (inside[q] or node[i] == b):
                node[i] = b if inside[q] else -1
            earns[i] = p.credit[i, node[i]] if node[i] >= 0 else 0
        turn, idle = turn + 1, 0 if gets > has else idle + 1


@njit
def branch(problem, lists, duals, node, record, choice):
    """Search with prices and branches: (bound on the credit, credit of `node`, whether that was all).

    node int64[n] receives a support, the best that shows up beside those visited.
    """
    p, meter = problem, lists.meter
    n, m = p.credit.shape
    worth, bound, i, known = at_the_root(problem, lists, duals, node)
    width = 2 * n + m + 2 * len(lists.item)
    saved, rows = np.empty((DEPTH, width), np.int64), np.empty((DEPTH, m), np.int64)
    who, where, second = np.empty(DEPTH, np.int64), np.empty(DEPTH, np.int64), np.zeros(DEPTH, np.bool_)
    depth, most, complete = 0, bound, True
    while True:
        enough, deeper = max(known, record[CREDIT]), False
        if bound >= enough:
            left = meter[BUDGET] - meter[SPENT]
            steps = left if i < 0 else min(left, VISIT_STEPS)
            done = visit(problem, lists, duals, worth, enough, steps, record, choice)
            deeper = not done and i >= 0 and depth < DEPTH and meter[SPENT] < meter[BUDGET]
            complete = complete and (done or deeper)
        if deeper:
            _swap(saved[depth], lists, duals, deeper)
            who[depth], where[depth], second[depth] = i, _favorite(lists, worth, i), False
            for b in range(m):
                rows[depth, b] = worth[i, b]
            depth += 1
        else:
            while depth > 0 and second[depth - 1]:
                depth -= 1
                for b in range(m):
                    worth[who[depth], b] = rows[depth, b]
            if depth == 0 or meter[SPENT] >= meter[BUDGET]:
                return most, known, complete and depth == 0
            _swap(saved[depth - 1], lists, duals, deeper)
            second[depth - 1] = True
        _forbid(lists, duals, worth, who[depth - 1], where[depth - 1], second[depth - 1], rows[depth - 1])
        for b in range(m):
            if p.credit[who[depth - 1], b] > 0:
                decide(lists, duals, b, worth, p.demand, p.free)
            elif not deeper:
                reprice(lists, b, worth, duals.u, p.demand)
        bound, i = settle(lists, duals, worth, p.demand, p.free, max(known, record[CREDIT]))
        if i < 0:  # without an objection this is a plan worth as much as the bound
            known = first_plan(problem, lists, node, known)


@njit
def _contested(wanted):
    """Whether several nodes want the same session."""
    contested = False
    for count in wanted:
        contested = contested or count > 1
    return contested


@njit
def _favorite(lists, worth, i):
    """The node to try session i on first: one that wants it, or where it is worth most."""
    pick = 0
    for b in range(worth.shape[1]):
        if worth[i, b] > worth[i, pick]:
            pick = b
    for b in range(worth.shape[1]):
        for q in range(lists.start[b], lists.start[b + 1]):
            if lists.item[q] == i and lists.inside[q] and worth[i, b] > 0:
                pick = b
    return pick


@njit
def _forbid(lists, duals, worth, i, node, second, row):
    """First branch: session i on `node` or nowhere it has credit; second: anywhere else. No price is left
    on a session that only one node may take.
    """
    homes = 0
    for b in range(len(row)):
        worth[i, b] = -abs(row[b]) if (b == node) == second else row[b]
        homes += worth[i, b] > 0
    if homes < 2:
        duals.u[i] = 0


@njit
def _swap(row, lists, duals, out):
    """Copy what a branch changes to `row` (out), or back."""
    at = 0
    for values in (duals.u, duals.value, duals.wanted, lists.item):
        for k in range(len(values)):
            if out:
                row[at] = values[k]
            else:
                values[k] = row[at]
            at += 1
    for k in range(len(lists.inside)):
        if out:
            row[at] = lists.inside[k]
        else:
            lists.inside[k] = row[at] == 1
        at += 1
