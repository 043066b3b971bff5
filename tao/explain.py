"""Why: the dynamic program in plain Python, step by step, and the reasons behind a plan in words.

`recurrence` is the paper's DP as one would write it on a blackboard. Its records drive the lessons
and are held equal to the compiled kernels by tests::

    V[i, r] = max( V[i+1, r],  max over b of  value[i, b] + V[i+1, r - demand[i] * e_b] )

`certificate` says why no plan can be worth more, `more_room` and `who_should_leave` what a change of room
would be worth.
"""

from __future__ import annotations

from typing import NamedTuple

from tao import planners, readiness, valuation
from tao.model import InputError, Params, Placement, Plan, Session, Snapshot, Value
from tao.planners import Case
from tao.proof import Certificate as Certificate
from tao.proof import certificate as certificate
from tao.whatif import WhatIf as WhatIf
from tao.whatif import more_room as more_room
from tao.whatif import signed
from tao.whatif import who_should_leave as who_should_leave

Left = tuple[int, ...]  # remaining quanta per node, nodes by id
Cell = tuple[int, Left]  # (index of the session to decide, sessions by id; remaining quanta)


class Step(NamedTuple):
    """One cell of the table: what it read, what it chose (a node's index, or None: skip) and why."""

    cell: Cell
    reads: tuple[Cell, ...]
    value: Value
    choice: int | None
    message: str


def recurrence(problem: Case, most: int | None = None) -> dict[Cell, Step]:
    """Every reachable cell of the DP table, last session first; plain Python, for small snapshots.

    Raises `InputError` if there are more than `most` cells.

    >>> from tao.model import Node
    >>> snap = Snapshot(0.0, (Node("n0", 3),), (Session("a", 2), Session("b", 3)))
    >>> table = recurrence(planners.case(snap, Params(quantum_tokens=1, reserve_tokens=0)))
    >>> table[0, (3,)].message
    'a (2 quanta): skip it for (0, 1, 3); n0 gives (0, 1, 2)'
    """
    demand, free, prefer, spare = (x.tolist() for x in planners.quantize(problem))
    layers = [{tuple(free)}]
    for i in range(len(demand)):
        taken = {_take(r, b, demand[i]) for r in layers[i] for b in prefer[i] if _fits(r, b, demand[i])}
        layers.append(layers[i] | taken)
        if most is not None and sum(map(len, layers)) > most:
            quantum = problem.params.quantum_tokens
            raise InputError(
                f"in quanta of {quantum:,} tokens the table has more than {most:,} cells; "
                "choose a coarser quantum or a snapshot with fewer sessions"
            )
    last = len(demand)
    steps = {(last, r): Step((last, r), (), Value(0, 0, 0), None, "nobody is left") for r in layers[last]}
    for i in range(last - 1, -1, -1):
        for r in sorted(layers[i], reverse=True):
            nodes = [b for b in prefer[i] if _fits(r, b, demand[i])]
            nodes.sort(key=lambda b: (problem.tier[i, b], -r[b] - spare[b], b))
            steps[i, r] = decide(problem, i, r, demand[i], nodes, steps)
    return steps


def backtrack(problem: Case, steps: dict[Cell, Step]) -> list[Step]:
    """The steps that the best plan follows, from all room and the first session on."""
    demand, free, _, _ = (x.tolist() for x in planners.quantize(problem))
    left, path = tuple(free), []
    for i in range(len(demand)):
        step = steps[i, left]
        path.append(step)
        if step.choice is not None:
            left = _take(left, step.choice, demand[i])
    return path


def regret(plan: Plan, best: Plan) -> Value:
    """What `plan` gives up against `best`, component by component (0, 0, 0 where they tie)."""
    return Value(*(b - p for b, p in zip(best.value, plan.value, strict=True)))


def why_admitted(snapshot: Snapshot, plan: Plan, params: Params | None = None) -> dict[str, str]:
    """For each admitted session, the value of its place in words."""
    known = {s.id: s for s in snapshot.sessions}
    return {
        p.session: _worth(known[p.session], p, snapshot.now_s, params or Params()) for p in plan.placements
    }


def why_deferred(snapshot: Snapshot, plan: Plan, params: Params | None = None) -> dict[str, str]:
    """For each deferred session, what kept it out: its size, the node list, or better company."""
    params = params or Params()
    problem = planners.case(snapshot, params)
    true = _sizes(problem, snapshot, plan, params, 1)
    own = true
    if plan.problem == "quantized":
        own = _sizes(problem, snapshot, plan, params, params.quantum_tokens)
    reasons = {}
    for i, s in enumerate(problem.sessions):
        if s.id in plan.deferred:
            usable = [b.id for b in problem.nodes if s.eligible is None or b.id in s.eligible]
            reasons[s.id] = _kept_out(problem, i, usable, true, own, plan)
    return reasons


class _Sizes(NamedTuple):
    """Demand by session, and room by node without and with the plan, in tokens or quanta; may be below 0."""

    demand: dict[str, int]
    empty: dict[str, int]
    left: dict[str, int]


def _sizes(problem: Case, snapshot: Snapshot, plan: Plan, params: Params, unit: int) -> _Sizes:
    demand = {
        s.id: -(-tokens // unit) for s, tokens in zip(problem.sessions, problem.demand.tolist(), strict=True)
    }
    empty = {node: tokens // unit for node, tokens in snapshot.free_tokens(params).items()}
    left = dict(empty)
    for p in plan.placements:
        left[p.node] -= demand[p.session]
    return _Sizes(demand, empty, left)


def _fits(left: Left, b: int, demand: int) -> bool:
    return b >= 0 and left[b] >= demand


def _take(left: Left, b: int, demand: int) -> Left:
    return (*left[:b], left[b] - demand, *left[b + 1 :])


def decide(problem: Case, i: int, left: Left, demand: int, nodes: list[int], steps: dict[Cell, Step]) -> Step:
    """One cell of the table: skip session i, or place it on one of `nodes`, whatever is worth more."""
    skip: Cell = (i + 1, left)
    best, choice = steps[skip].value, None
    reads, offers = [skip], []
    for b in nodes:
        read = (i + 1, _take(left, b, demand))
        offer = Value.sum((problem.value(i, b), steps[read].value))
        reads.append(read)
        offers.append((offer, b))
        if offer > best or (offer == best and choice is None):
            best, choice = offer, b
    message = _message(problem, i, demand, steps[skip].value, offers, choice)
    return Step((i, left), tuple(reads), best, choice, message)


def _message(
    problem: Case, i: int, demand: int, skip: Value, offers: list[tuple[Value, int]], choice: int | None
) -> str:
    who = f"{problem.sessions[i].id} ({demand:,} {'quantum' if demand == 1 else 'quanta'})"
    if not offers:
        return f"{who}: skip it, it fits nowhere"
    given = {problem.nodes[b].id: _triple(value) for value, b in offers}
    if choice is None:
        best = f"skip it for {_triple(skip)}"
        others = [f"{node} gives {value}" for node, value in given.items()]
    else:
        node = problem.nodes[choice].id
        best = f"place it on {node} for {given.pop(node)}"
        others = [f"{node} gives {value}" for node, value in given.items()] + [f"skipping it {_triple(skip)}"]
    return f"{who}: {best}; {', '.join(others)}"


def _triple(v: Value) -> str:
    return f"({v.credit:,}, {v.ready:,}, {v.tokens:,})"


def _worth(s: Session, p: Placement, now_s: float, params: Params) -> str:
    note = s.cached.get(p.node)
    cache = "no cache there"
    if note is not None:
        cache = f"{note.tokens:,} tokens cached there {now_s - note.seen_at_s:.1f} s ago"
    if waited := valuation.ageing(s, now_s, params):
        cache += f"; {waited:,} of it for waiting"
    return (
        f"credit {p.value.credit:,} ({cache}), {readiness_words(s, now_s, params)}, {p.value.tokens:,} tokens"
    )


def readiness_words(s: Session, now_s: float, params: Params) -> str:
    """The ready bit of a session and the rule behind it, in words."""
    if s.phase != "tool":
        return "ready (its request is waiting)"
    p = readiness.predict(s.tool, now_s, params)
    state = "ready" if p.ready else "not ready"
    if p.rule == "completed":
        return f"{state} (its tool has returned)"
    if p.rule == "void":
        return f"{state} (all predictions are void)"
    if p.return_s == float("inf"):
        return f"{state} (by {p.rule}: waits for ever)"
    when = (
        f"due in {p.return_s - now_s:.1f} s"
        if p.return_s >= now_s
        else f"overdue by {now_s - p.return_s:.1f} s"
    )
    return f"{state} (by {p.rule}: {when})"


def _kept_out(problem: Case, i: int, usable: list[str], true: _Sizes, own: _Sizes, plan: Plan) -> str:
    """Why session i stays out; `own` are the sizes that the planner worked with."""
    name, quantum = problem.sessions[i].id, problem.params.quantum_tokens
    if not usable:
        return "it may use none of the nodes"
    need, most = true.demand[name], max(true.empty[node] for node in usable)
    needed = f"{need:,} tokens ({problem.params.reserve_tokens:,} of them to grow into)"
    if need > most:
        return f"it needs {needed}, more than any node it may use has free (at most {max(most, 0):,})"
    roomy = max(usable, key=lambda node: true.left[node])
    if need <= true.left[roomy]:
        return (
            f"it would still fit on {roomy} ({true.left[roomy]:,} left for its {needed}), "
            f"but in quanta of {quantum:,} it does not"
        )
    most = max(own.empty[node] for node in usable)
    if own.demand[name] > most:
        count = own.demand[name]
        return f"in quanta of {quantum:,} it needs {count} and no node it may use has more than {most}"
    short = f"it needs {needed} and {roomy} has {max(true.left[roomy], 0):,} left"
    swap = _best_swap(problem, i, usable, own, plan)
    if swap is None:
        return f"{short}; no single admitted session could make room"
    other, change = swap
    verdict = "which is worth less" if change < Value(0, 0, 0) else "but this planner does not weigh values"
    if change == Value(0, 0, 0):
        verdict = "which is worth the same"
    exchange = f"for {other.session} on {other.node} it would change the value by {signed(change)}"
    return f"{short}; {exchange}, {verdict}"


def _best_swap(
    problem: Case, i: int, usable: list[str], own: _Sizes, plan: Plan
) -> tuple[Placement, Value] | None:
    """The admitted session for which session i could move in at the best change of value."""
    index = {b.id: k for k, b in enumerate(problem.nodes)}
    need = own.demand[problem.sessions[i].id]
    swaps = [
        (Value(*(new - old for new, old in zip(problem.value(i, index[p.node]), p.value, strict=True))), p)
        for p in plan.placements
        if p.node in usable and need <= own.left[p.node] + own.demand[p.session]
    ]
    if not swaps:
        return None
    change, other = max(swaps, key=lambda swap: swap[0])
    return other, change
