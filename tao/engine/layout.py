"""The arrays of the compiled engine: columns, counters, and the tuples that hold them together."""

from __future__ import annotations

from typing import Any, NamedTuple

from tao.durations import Book, Floats, Ints
from tao.profiles import PS_PER_S, Profile
from tao.state import State

LAST_PS = 2**62  # as in tao.cluster
STUCK_PS = 3 * 3600 * PS_PER_S
FINISHED, PAUSE, TABLE_FULL, STUCK, ENDLESS = range(5)  # why `play` returns
ARRIVAL, APPLY, PERIOD, WAKE = range(4)  # events beside steps and tools, in the order a moment handles them

# Entries of Engine.counts.
(
    NEXT_TASK,
    DONE_TASKS,
    TURNS,
    DECISIONS,
    MOVES,
    EVENTS,
    HEAP,
    TOUCHES,  # how many entries of Engine.touched count
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

# Columns of Machine.request, one row per session, as in `tao.node.Request`. COMPUTED and EMITTED of a
# decoding request follow from BORN: it has emitted `steps of its node - BORN` tokens.
(
    PROMPT,
    OUTPUT,
    COMPUTED,
    EMITTED,
    CHUNK,
    BORN,
    AT,  # its place in Machine.running
    REUSABLE,
    SUBMITTED_PS,
    SCHEDULED_PS,
    FIRST_PS,
    HIT,
    RECOMPUTED,
    PREEMPTIONS,
    LOST,
    NEXT,  # in the node's queue, or in the queue for a tool
    ARRIVED_PS,  # from here on the host's
    PROMISED,
    ROW,  # the turn's row in the history
    STARTED_PS,
    FINISHED_PS,
) = range(21)
REQUEST_COLUMNS = 21

# Columns of Machine.inner, one row per node.
(
    ENDS_PS,  # end of the step or segment in flight, -1: none
    IDLE,  # tokens of idle prefixes
    WARM,  # 1: the shared prefix has been computed here
    HEAD,
    TAIL,
    OLDEST,
    NEWEST,
    STEPS_DONE,
    TOUCHED,
    DECODES,  # running requests that decode
    CONTEXT,  # their KV tokens
    FILLS,  # running requests that do not yet
    TAKING,  # decoding requests in the step in flight
    PARTIAL,  # 1: the token budget has left some of them out
    NEXT_DUE,  # number of the step that finishes the first of them
) = range(15)
INNER_COLUMNS = 15

NEVER = 1 << 62  # in Machine.due
OLDER, NEWER = range(2)  # Machine.links: neighbors in a node's least-recently-used list


class Law(NamedTuple):
    """`profiles.StepLaw` and the engine's limits, as compiled code takes them."""

    base: int
    per_sequence: int
    per_kv_token: int
    prefill: int
    per_prefill_token: int
    attention: int
    host: int
    max_batched_tokens: int
    max_seqs: int
    block_tokens: int
    shared_tokens: int
    lag_ps: int
    skipping: bool
    experts: Ints


class Machine(NamedTuple):
    """The nodes: n sessions, m nodes, at most r requests at a time."""

    session: Ints  # State.session
    node: Ints  # State.node
    pair: Ints  # State.pair
    request: Ints  # int64[n, REQUEST_COLUMNS]
    running: Ints  # int64[m, r], in order of admission; the first node[b, RUNNING] count
    due: Ints  # int64[m, r], for each of them the step that finishes it, NEVER before it decodes
    fills: Ints  # int64[m, r], those that do not decode yet, in order; the first inner[b, FILLS] count
    inner: Ints  # int64[m, INNER_COLUMNS]
    links: Ints  # int64[m, n, 2]
    law: Law


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
    workers: int
    open_arrivals: bool
    # Where the run stands.
    counts: Ints  # int64[COUNTERS]
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


def law_of(profile: Profile, shared_tokens: int, lag_ps: int, skipping: bool) -> Law:
    """The constants of a profile for the compiled engine."""
    law = profile.law
    return Law(
        *(law.base, law.per_sequence, law.per_kv_token, law.prefill, law.per_prefill_token),
        *(law.attention, law.host),
        *(profile.max_batched_tokens, profile.max_seqs, profile.block_tokens),
        *(shared_tokens, lag_ps),
        skipping,
        profile.experts,
    )
