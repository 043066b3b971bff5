"""From a workload and a compiled policy to a `History`, through the compiled engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tao import engine, state
from tao.engine import Engine, Machine, layout
from tao.engine.layout import Law
from tao.history import History, Rows, TurnRow
from tao.model import InputError
from tao.policies import Compiled
from tao.policies.base import idle
from tao.profiles import PS_PER_S, Profile
from tao.state import Ints, State
from tao.view import View
from tao.workloads import Workload

EVENTS_AT_ONCE = 200_000  # ours: tens of milliseconds between two looks at Ctrl-C and progress


class Run:
    """A run of the compiled engine, prepared; the arguments are those of `tao.cluster.Cluster`.

    `skipping=False` takes every step of a node as an event of its own, as the stepper does.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Compiled,
        nodes: int,
        workers: int,
        profile: Profile,
        capacity_tokens: int,
        arrivals_ps: Ints | None = None,
        tool_servers: int | None = None,
        skipping: bool = True,
    ) -> None:
        self.workload = workload
        self.view, self.engine = prepare(
            workload, policy, nodes, workers, profile, capacity_tokens, arrivals_ps, tool_servers, skipping
        )

    def finish(self, progress: Callable[[float], None] | None = None) -> History:
        """Play it to the end; raises `InputError` if it cannot go on."""
        while (stopped := engine.play(self.engine, EVENTS_AT_ONCE)) != engine.FINISHED:
            e = self.engine
            if stopped == engine.TABLE_FULL:
                self.engine = e._replace(decisions=_larger(e.decisions), moves=_larger(e.moves))
            elif stopped == engine.STUCK:
                raise InputError(self.view.stuck())
            elif stopped == engine.ENDLESS:
                raise InputError(endless())
            elif progress is not None:
                progress(int(e.counts[layout.DONE_TASKS]) / len(self.workload.tasks))
        return _history(self.workload, self.view, self.engine)


def prepare(
    workload: Workload,
    policy: Compiled,
    nodes: int,
    workers: int,
    profile: Profile,
    capacity_tokens: int,
    arrivals_ps: Ints | None,
    tool_servers: int | None,
    skipping: bool,
) -> tuple[View, Engine]:
    """All arrays of a run, before its first event."""
    n, script, shared = len(workload.tasks), workload.script, workload.shared_prefix_tokens
    ids, room = workload.ids, workload.calls_of_kind
    view = View(ids, [capacity_tokens] * nodes, policy.params, workload.kinds, room, shared, workload.seed)
    s = view.state
    at_once = min(n if arrivals_ps is not None else min(workers, n), profile.max_seqs)
    machine = _machine(s, at_once, engine.law_of(profile, shared, policy.lag_ps, skipping))
    count = np.zeros(layout.COUNTERS, np.int64)
    for entry in (layout.TICKED_PS, layout.WAKE_PS, layout.TOOL_HEAD, layout.TOOL_TAIL):
        count[entry] = -1
    count[layout.IDLE_SERVERS] = n if tool_servers is None else tool_servers
    events = nodes + n + 4
    return view, Engine(
        s,
        machine,
        *(s.session, s.node, s.pair, s.clock, s.asked_s, s.book, machine.request, machine.inner),
        *script,
        np.zeros(0, np.int64) if arrivals_ps is None else arrivals_ps,
        *policy.pointers,
        -1 if policy.period_s is None else round(policy.period_s * PS_PER_S),
        round(policy.gap_s * PS_PER_S),
        *(policy.counts_streamed, policy.sees_cache, policy.sees_tools),
        policy.tick_kernel is not idle,
        workers,
        arrivals_ps is not None,
        count,
        *(np.zeros(events, np.int64), np.zeros(events, np.int64), np.full(events, -1, np.int64)),
        np.zeros(nodes, np.int64),
        *(np.zeros((n, 2), np.int64), np.zeros((n, 7), np.int64), np.zeros(n, np.int64)),
        np.zeros((len(script.prompt), len(TurnRow._fields)), np.int64),
        *(np.zeros((1024, 5), np.int64), np.zeros((1024 + 8 * n, 4), np.int64)),
    )


def _machine(s: State, at_once: int, law: Law) -> Machine:
    """Nodes on which nothing has run yet."""
    n, m = len(s.session), len(s.node)
    request = np.zeros((n, layout.REQUEST_COLUMNS), np.int64)
    request[:, layout.PROMISED] = -1
    inner = np.zeros((m, layout.INNER_COLUMNS), np.int64)
    for column in (layout.ENDS_PS, layout.HEAD, layout.TAIL, layout.OLDEST, layout.NEWEST):
        inner[:, column] = -1
    inner[:, layout.NEXT_DUE] = layout.NEVER
    running, due, fills = (np.zeros((m, at_once), np.int64) for _ in range(3))
    links = np.zeros((m, n, 2), np.int64)
    return Machine(s.session, s.node, s.pair, request, running, due, fills, inner, links, law)


def endless() -> str:
    """What to say when simulated time would not fit 64 bits."""
    return (
        f"the run would go on beyond {engine.LAST_PS / PS_PER_S:,.0f} simulated seconds; "
        "shorten its tools or plan costs, or run fewer sessions at a time"
    )


def _larger(table: Ints) -> Ints:
    return np.concatenate([table, np.zeros_like(table)])


def _history(workload: Workload, view: View, e: Engine) -> History:
    count, request = e.counts, e.machine.request
    decisions, moves = e.decisions[: count[layout.DECISIONS]], e.moves[: count[layout.MOVES]]
    return History(
        {},
        view.session_ids,
        view.node_ids,
        Rows(len(TurnRow._fields), e.turns),
        Rows(5, decisions),
        Rows(4, moves),
        {},
        dict(enumerate(request[:, layout.STARTED_PS].tolist())),
        dict(enumerate(request[:, layout.FINISHED_PS].tolist())),
        int(e.machine.inner[:, layout.STEPS_DONE].sum()),
        int(count[layout.EVENTS]),
        int(e.state.clock[state.NOW_PS]),
        list(workload.notes),
    )
