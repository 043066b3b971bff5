"""What must hold after every event of a simulated run; checked in debug mode and by the tests."""

from __future__ import annotations

import numpy as np

from tao import state
from tao.cluster import TOOL_END, Cluster
from tao.history import History, TurnRow
from tao.node import Request, SessionCache, SimNode
from tao.policies import REASONING, TOOL, WAITING

_TIMES = [k for k, name in enumerate(TurnRow._fields) if name.endswith("_ps")]


def check(cluster: Cluster) -> None:
    """Raise `AssertionError`, saying what is wrong, unless the cluster's state is consistent."""
    when = f"at {cluster.now_ps} ps"
    for b, node in enumerate(cluster.nodes):
        _check_node(node, f"node {b} {when}")
    _check_sessions(cluster, when)
    _check_lists(cluster.view.state, when)
    _check_sums(cluster, when)
    if cluster._heap and cluster._heap[0][0] < cluster.now_ps:
        raise AssertionError(f"an event of {cluster._heap[0][0]} ps is still to come {when}")
    if cluster.done:
        _check_times(cluster.history)


def _check_node(node: SimNode, where: str) -> None:
    """One node: what its requests hold, its room, and that it works while there is work."""

    def own(tokens: int) -> int:
        return max(tokens - node.shared_tokens, 0)

    pinned = sum(own(r.computed) for r in node.running)
    if pinned != node.pinned_tokens:
        raise AssertionError(f"{where}: running requests hold {pinned}, counted {node.pinned_tokens}")
    filled = sum(own(r.computed + r.chunk) for r in node.running)
    if node.shared_tokens + filled + node.cache.tokens > node.capacity_tokens:
        raise AssertionError(
            f"{where}: {node.shared_tokens} shared + {filled} pinned once the step is over + "
            f"{node.cache.tokens} idle exceed {node.capacity_tokens}"
        )
    if isinstance(node.cache, SessionCache):
        twice = [r.session for r in node.running if node.cache.held(r.session)]
        if twice:
            raise AssertionError(f"{where}: running requests of sessions {twice} have idle tokens as well")
    computing = sum(r.chunk for r in node.running)
    if len(node.running) > node.profile.max_seqs or computing > node.profile.max_batched_tokens:
        raise AssertionError(f"{where}: {len(node.running)} requests, {computing} tokens in one batch")
    if node.ends_ps is None and (node.waiting or node.running):
        raise AssertionError(f"{where}: idle while {len(node.waiting)} wait and {len(node.running)} run")
    if node.ends_ps is not None and not computing:
        raise AssertionError(f"{where}: a step that computes nothing")


def _check_sessions(cluster: Cluster, when: str) -> None:
    """Each session is in one place, the one that its phase says."""
    view = cluster.view
    at_engine = sorted((r.session, b) for b, node in enumerate(cluster.nodes) for r in _requests(node))
    answering = np.flatnonzero(view.phase == REASONING)
    if at_engine != [(i, int(view.resident[i])) for i in answering.tolist()]:
        raise AssertionError(f"sessions at the engines {at_engine} are not those that are answering {when}")
    running = [index for _, kind, index in cluster._heap if kind == TOOL_END]
    if sorted([*running, *cluster._tool_queue]) != np.flatnonzero(view.phase == TOOL).tolist():
        raise AssertionError(f"running and queued tools are not those of sessions in a tool {when}")
    if cluster._idle_servers < 0 or (cluster._idle_servers and cluster._tool_queue):
        raise AssertionError(
            f"{len(cluster._tool_queue)} tools wait, {cluster._idle_servers} are free {when}"
        )
    on_cluster = (view.phase >= WAITING) & (view.phase <= TOOL)
    for i in np.flatnonzero((view.resident >= 0) & ((view.phase == WAITING) | ~on_cluster)):
        raise AssertionError(f"session {i} of phase {view.phase[i]} is on node {view.resident[i]} {when}")
    for i in np.flatnonzero((view.leaving != 0) & (view.phase != REASONING)):
        raise AssertionError(f"session {i} is to leave, but it is not answering {when}")
    if cluster.arrivals_ps is None and on_cluster.sum() > cluster.workers:
        raise AssertionError(f"{on_cluster.sum()} sessions for {cluster.workers} workers {when}")


def _requests(node: SimNode) -> list[Request]:
    return [*node.running, *node.waiting]


def _check_lists(s: state.State, when: str) -> None:
    """The lists of the cluster and of the pool hold whom they should, and each knows where it stands."""
    phase, resident = s.session[:, state.PHASE], s.session[:, state.RESIDENT]
    on_cluster = (phase >= WAITING) & (phase <= TOOL)
    for name, items, entry, column, expected in (
        ("cluster", s.live, state.LIVE, state.LIVE_AT, on_cluster),
        ("pool", s.pool, state.POOL, state.POOL_AT, on_cluster & (resident < 0)),
    ):
        listed = items[: s.clock[entry]]
        if sorted(listed.tolist()) != np.flatnonzero(expected).tolist():
            raise AssertionError(f"the list of the {name} holds {listed.tolist()} {when}")
        at = np.full(len(phase), -1)
        at[listed] = np.arange(len(listed))
        if (at != s.session[:, column]).any():
            raise AssertionError(f"a session is not where it stands in the list of the {name} {when}")


def _check_sums(cluster: Cluster, when: str) -> None:
    """The columns of each node are what a recount finds, and so are the contexts of the sessions."""
    s = cluster.view.state
    for b, node in enumerate(cluster.nodes):
        inside = s.session[:, state.RESIDENT] == b
        requests = _requests(node)
        prefilling = [r.session for r in requests if not r.emitted]
        recount = {
            "RESIDENTS": int(inside.sum()),
            "USED": int(s.session[inside, state.CONTEXT].sum()),
            "INFLIGHT": len(requests),
            "PREFILLING": int(s.session[prefilling, state.CHARGE].sum()),
            "RUNNING": len(node.running),
            "QUEUED": len(node.waiting),
            "PINNED": node.pinned_tokens,
        }
        for name, count in recount.items():
            counted = int(s.node[b, getattr(state, name)])
            if counted != count:
                raise AssertionError(f"node {b}: {name} is {counted}, a recount gives {count} {when}")
    for i, row in enumerate(s.session.tolist()):
        expected = 0
        if WAITING <= row[state.PHASE] <= TOOL:
            turn = cluster.workload.tasks[i].turns[row[state.TURN]]
            expected = turn.context_tokens if row[state.PHASE] == TOOL else turn.prompt_tokens
        if row[state.CONTEXT] != expected:
            raise AssertionError(f"session {i} has {row[state.CONTEXT]} tokens, not {expected} {when}")


def _check_times(history: History) -> None:
    """No turn's times run backwards, and none found its whole prompt in the cache."""
    rows = history.turn_rows.array
    backwards = (np.diff(rows[:, _TIMES], axis=1) < 0).any(axis=1)
    if backwards.any():
        raise AssertionError(f"the times of a turn run backwards: {TurnRow(*rows[backwards][0].tolist())}")
    if (history.column("hit_tokens") >= history.column("prompt_tokens")).any():
        raise AssertionError("a prompt was found in the cache as a whole")
