"""What must hold after every event of a simulated run; checked in debug mode and by the tests."""

from __future__ import annotations

import numpy as np

from tao.cluster import Cluster
from tao.node import SimNode
from tao.policies import DONE, NEW, REASONING, TOOL, WAITING


def check(cluster: Cluster) -> None:
    """Raise `AssertionError`, saying what is wrong, unless the cluster's state is consistent."""
    for b, node in enumerate(cluster.nodes):
        _check_node(node, f"node {b} at {cluster.now_ps} ps")
    _check_sessions(cluster)
    if cluster.history.turns:
        row = cluster.history.turns[-1]
        times = (row.arrived_ps, row.submitted_ps, row.scheduled_ps, row.first_token_ps, row.finished_ps)
        if list(times) != sorted(times) or row.tool_end_ps < row.finished_ps:
            raise AssertionError(f"the times of a turn run backwards: {row}")


def _check_node(node: SimNode, where: str) -> None:
    pinned = sum(r.computed for r in node.running)
    if pinned != node.pinned_tokens:
        raise AssertionError(f"{where}: running requests hold {pinned}, counted {node.pinned_tokens}")
    in_step = sum(r.chunk for r in node.running)
    if node.pinned_tokens + node.cache.tokens + in_step > node.capacity_tokens:
        raise AssertionError(
            f"{where}: {node.pinned_tokens} pinned + {node.cache.tokens} idle + {in_step} being computed "
            f"exceed {node.capacity_tokens}"
        )
    if node.ends_ps is None and (node.waiting or node.running):
        raise AssertionError(f"{where}: idle while {len(node.waiting)} wait and {len(node.running)} run")
    if node.ends_ps is not None and not in_step:
        raise AssertionError(f"{where}: a step that computes nothing")


def _check_sessions(cluster: Cluster) -> None:
    view = cluster.view
    at_engine = [r.session for node in cluster.nodes for r in (*node.running, *node.waiting)]
    if sorted(at_engine) != np.flatnonzero(view.phase == REASONING).tolist():
        raise AssertionError(f"sessions at the engines {sorted(at_engine)} are not those that are answering")
    if set(view.tools) != set(np.flatnonzero(view.phase == TOOL).tolist()):
        raise AssertionError("running tools and sessions in a tool differ")
    for i in np.flatnonzero((view.phase == WAITING) & (view.resident >= 0)):
        raise AssertionError(f"session {i} waits although it is on node {view.resident[i]}")
    for i in np.flatnonzero(((view.phase == NEW) | (view.phase == DONE)) & (view.resident >= 0)):
        raise AssertionError(f"session {i} is not on the cluster but on node {view.resident[i]}")
    live = int(view.context_tokens[view.live].sum())
    if live != cluster._live_tokens or len(view.live) > cluster.workers:
        raise AssertionError(
            f"{len(view.live)} live sessions of {live} tokens, counted {cluster._live_tokens}"
        )
