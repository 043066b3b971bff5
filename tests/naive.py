"""Plain-Python twins of valuation, readiness and the planners: slow, short and written apart from them.

They follow `design.md` section 5 and share only the types of `tao.model` with what they check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal

from tao.model import CacheNote, Params, Session, Snapshot, ToolCall, Value

SleepSeconds = Callable[[str], float | None]  # command -> how long it sleeps; inf = for ever, None = no idea
NodeOf = dict[str, str]  # session id -> id of the node it is admitted to; whoever is absent is deferred

PRECISE = Context(prec=60)


# Valuation


def power(age_s: float, half_life_s: float) -> Decimal:
    """2**(-age/half-life) to 60 digits, exact where the two times divide evenly."""
    half_lives = PRECISE.divide(Decimal(age_s), Decimal(half_life_s))
    return PRECISE.power(Decimal(2), -half_lives)


def decayed_tokens(note: CacheNote, now_s: float, params: Params) -> Decimal:
    """The note's tokens after decay, before rounding down to whole ones."""
    return PRECISE.multiply(Decimal(note.tokens), power(now_s - note.seen_at_s, params.half_life_s))


def credit(note: CacheNote, now_s: float, params: Params) -> int:
    """The whole cached tokens that a note is still worth."""
    return math.floor(decayed_tokens(note, now_s, params))


def on_edge(note: CacheNote, now_s: float, params: Params) -> bool:
    """Whether the credit is so close to a whole number, yet not equal, that float rounding may move it."""
    exact = decayed_tokens(note, now_s, params)
    distance = abs(exact - round(exact))
    return round(exact) > 0 and 0 < distance < exact * Decimal("1e-12")


def cache_credit(session: Session, node: str, now_s: float, params: Params) -> int:
    """The credit of the session's note on that node, 0 without a note."""
    note = session.cached.get(node)
    return 0 if note is None else credit(note, now_s, params)


def ageing_credit(session: Session, now_s: float, params: Params) -> int:
    """The extra credit that waiting earns, the same on every node."""
    wait_s = 0.0 if session.waiting_since_s is None else now_s - session.waiting_since_s
    return math.floor(params.ageing_tokens_per_s * wait_s)


def values(snapshot: Snapshot, params: Params, sleep_seconds: SleepSeconds) -> dict[tuple[str, str], Value]:
    """What each pool session is worth on each node that it may use."""
    worth = {}
    for session in waiting_pool(snapshot):
        extra = ageing_credit(session, snapshot.now_s, params)
        is_ready = int(ready(session, snapshot.now_s, params, sleep_seconds))
        for node in eligible_nodes(snapshot, session):
            kept = cache_credit(session, node, snapshot.now_s, params)
            worth[session.id, node] = Value(kept + extra, is_ready, session.context_tokens)
    return worth


def total(worth: dict[tuple[str, str], Value], node_of: NodeOf) -> Value:
    """The value of a whole plan: the component-wise sum over its placements."""
    placed = [worth[pair] for pair in node_of.items()]
    return Value(sum(v.credit for v in placed), sum(v.ready for v in placed), sum(v.tokens for v in placed))


# Readiness


def ready(session: Session, now_s: float, params: Params, sleep_seconds: SleepSeconds) -> bool:
    """Whether the session needs the GPU within the horizon, by the strongest evidence that is not void."""
    tool = session.tool
    if session.phase != "tool" or tool is None or tool.finished_s is not None:
        return True
    for due_s in due_times(tool, params, sleep_seconds):
        if not is_void(due_s, tool.started_s, now_s, params):
            return due_s - params.horizon_s <= now_s <= due_s + params.probe_s
    return False


def due_times(tool: ToolCall, params: Params, sleep_seconds: SleepSeconds) -> list[float]:
    """The predicted moments of return, strongest evidence first, margin included."""
    slept_s = None if tool.command is None else sleep_seconds(tool.command)
    due = []
    if tool.deadline_s is not None:
        due.append(tool.deadline_s)
    if slept_s is not None:
        due.append(tool.started_s + slept_s)
    if tool.expected_s is not None:
        due.append(tool.started_s + tool.expected_s)
    due.append(tool.started_s + params.fallback_s)
    return [moment + params.margin_s for moment in due]


def is_void(due_s: float, started_s: float, now_s: float, params: Params) -> bool:
    """Whether a prediction is too old to be believed, counted from its due time or from its making."""
    counted_from_s = due_s if params.stale_from == "due" else started_s
    return now_s >= counted_from_s + params.stale_s


# Sizes


def waiting_pool(snapshot: Snapshot) -> list[Session]:
    """The sessions that no node holds, by id."""
    return sorted((s for s in snapshot.sessions if s.resident_on is None), key=lambda s: s.id)


def eligible_nodes(snapshot: Snapshot, session: Session) -> list[str]:
    """The ids of the nodes that the session may use, lowest first."""
    known = sorted(node.id for node in snapshot.nodes)
    return known if session.eligible is None else [node for node in known if node in session.eligible]


def prefix_tokens(snapshot: Snapshot, params: Params) -> int:
    """The tokens charged once per node instead of once per session."""
    return snapshot.shared_prefix_tokens if params.share_prefix else 0


def true_demand(snapshot: Snapshot, params: Params, session: Session) -> int:
    """The tokens that the session takes on a node: its unshared context and the reserve."""
    unshared = session.context_tokens - prefix_tokens(snapshot, params)
    return max(unshared, 0) + params.reserve_tokens


def true_room(snapshot: Snapshot, params: Params, node: str) -> int:
    """The tokens that the residents leave free on a node, negative where it is overfull."""
    capacity = next(n.capacity_tokens for n in snapshot.nodes if n.id == node)
    held = [true_demand(snapshot, params, s) for s in snapshot.sessions if s.resident_on == node]
    return capacity - prefix_tokens(snapshot, params) - sum(held)


def demands(snapshot: Snapshot, params: Params, quantized: bool) -> dict[str, int]:
    """Per pool session its demand, in tokens or in quanta rounded up."""
    size = {s.id: true_demand(snapshot, params, s) for s in waiting_pool(snapshot)}
    if not quantized:
        return size
    return {session: -(-tokens // params.quantum_tokens) for session, tokens in size.items()}


def rooms(snapshot: Snapshot, params: Params, quantized: bool) -> dict[str, int]:
    """Per node its room, in tokens or in quanta rounded down; negative where the node is overfull."""
    room = {node.id: true_room(snapshot, params, node.id) for node in snapshot.nodes}
    if not quantized:
        return room
    return {node: tokens // params.quantum_tokens for node, tokens in room.items()}


# The best plan, by trying them all


def assignments(snapshot: Snapshot, params: Params, quantized: bool) -> Iterator[NodeOf]:
    """Every feasible way to skip or place each pool session."""
    size = demands(snapshot, params, quantized)

    def extend(pool: Sequence[Session], room: dict[str, int]) -> Iterator[NodeOf]:
        if not pool:
            yield {}
            return
        first, rest = pool[0], pool[1:]
        yield from extend(rest, room)
        for node in eligible_nodes(snapshot, first):
            left = room[node] - size[first.id]
            if left >= 0:
                for others in extend(rest, room | {node: left}):
                    yield {first.id: node} | others

    yield from extend(waiting_pool(snapshot), rooms(snapshot, params, quantized))


def best_value(snapshot: Snapshot, params: Params, sleep_seconds: SleepSeconds, quantized: bool) -> Value:
    """The greatest value of any feasible plan."""
    worth = values(snapshot, params, sleep_seconds)
    return max(total(worth, node_of) for node_of in assignments(snapshot, params, quantized))


def canonical_best(
    snapshot: Snapshot, params: Params, sleep_seconds: SleepSeconds, quantized: bool
) -> NodeOf:
    """The one optimal plan that the rule for ties picks: each session in turn gets its first choice."""
    worth = values(snapshot, params, sleep_seconds)
    feasible = [(total(worth, node_of), node_of) for node_of in assignments(snapshot, params, quantized)]
    best = max(value for value, _ in feasible)
    optimal = [node_of for value, node_of in feasible if value == best]
    size, room = demands(snapshot, params, quantized), rooms(snapshot, params, quantized)
    for session in waiting_pool(snapshot):
        preferred = preferred_nodes(snapshot, params, session)
        # Of nodes that tie in credit and last visit, the one with more room left comes first.
        preferred.sort(key=lambda node: (*tie_rank(snapshot, params, session, node)[:2], -room[node], node))
        for choice in [*preferred, None]:
            completions = [node_of for node_of in optimal if node_of.get(session.id) == choice]
            if completions:
                optimal = completions
                if choice is not None:
                    room[choice] -= size[session.id]
                break
    return optimal[0]


def preferred_nodes(snapshot: Snapshot, params: Params, session: Session) -> list[str]:
    """The session's eligible nodes in the order of the rule for ties."""
    nodes = eligible_nodes(snapshot, session)
    return sorted(nodes, key=lambda node: tie_rank(snapshot, params, session, node))


def tie_rank(snapshot: Snapshot, params: Params, session: Session, node: str) -> tuple[int, bool, str]:
    """The rule for ties as a sort key: more credit, then the node of the last visit, then the lower id."""
    kept = cache_credit(session, node, snapshot.now_s, params)
    return -kept, node != last_node(session), node


def last_node(session: Session) -> str | None:
    """The node of the session's latest cache note, None if it has no note."""
    return min(session.cached, key=lambda node: (-session.cached[node].seen_at_s, node), default=None)


def is_feasible(snapshot: Snapshot, params: Params, node_of: NodeOf, quantized: bool) -> str | None:
    """None for a plan that can be carried out, otherwise a sentence on what is wrong with it."""
    size, room = demands(snapshot, params, quantized), rooms(snapshot, params, quantized)
    by_id = {session.id: session for session in snapshot.sessions}
    for session, node in node_of.items():
        if session not in by_id:
            return f"session {session!r} is not in the snapshot"
        if by_id[session].resident_on is not None:
            return f"session {session!r} is resident on {by_id[session].resident_on!r} already"
        if node not in eligible_nodes(snapshot, by_id[session]):
            return f"session {session!r} may not use node {node!r}"
    for node in sorted(set(node_of.values())):
        placed = sum(size[session] for session, at in node_of.items() if at == node)
        if placed > room[node]:
            unit = "quanta" if quantized else "tokens"
            return f"node {node!r} overflows: {placed} {unit} placed where {room[node]} are free"
    return None


# The heuristics, on true sizes


def short_first(snapshot: Snapshot, params: Params) -> NodeOf:
    """Smallest session first, each to the node with most room left."""
    size = demands(snapshot, params, quantized=False)
    order = sorted(waiting_pool(snapshot), key=lambda s: (size[s.id], s.id))
    return one_by_one(snapshot, params, order, most_room_first=True)


def worst_fit(snapshot: Snapshot, params: Params) -> NodeOf:
    """Largest session first, each to the node with most room left."""
    size = demands(snapshot, params, quantized=False)
    order = sorted(waiting_pool(snapshot), key=lambda s: (-size[s.id], s.id))
    return one_by_one(snapshot, params, order, most_room_first=True)


def bfd(snapshot: Snapshot, params: Params) -> NodeOf:
    """Largest session first, each to the node with least room left that it fits on."""
    size = demands(snapshot, params, quantized=False)
    order = sorted(waiting_pool(snapshot), key=lambda s: (-size[s.id], s.id))
    return one_by_one(snapshot, params, order, most_room_first=False)


def fifo(snapshot: Snapshot, params: Params) -> NodeOf:
    """Longest wait first and unknown waits last, each to the node with most room left."""

    def arrival(session: Session) -> tuple[float, str]:
        since_s = session.waiting_since_s
        return math.inf if since_s is None else since_s, session.id

    order = sorted(waiting_pool(snapshot), key=arrival)
    return one_by_one(snapshot, params, order, most_room_first=True)


def one_by_one(snapshot: Snapshot, params: Params, order: Sequence[Session], most_room_first: bool) -> NodeOf:
    """Place the sessions in this order where they fit, and skip those that fit nowhere."""
    size, room = demands(snapshot, params, quantized=False), rooms(snapshot, params, quantized=False)
    node_of: NodeOf = {}
    for session in order:
        preferred = preferred_nodes(snapshot, params, session)
        fitting = [node for node in preferred if size[session.id] <= room[node]]
        if fitting:
            pick = max if most_room_first else min  # the first of equals, so ties follow the preference
            node = pick(fitting, key=room.__getitem__)
            node_of[session.id] = node
            room[node] -= size[session.id]
    return node_of
