"""The life of a session in the compiled engine: request, answer, tool, and so on until it is done."""

from __future__ import annotations

from tao import durations, state, valuation
from tao._jit import njit
from tao.engine import batch, cache
from tao.engine import layout as at
from tao.engine.heap import push
from tao.engine.layout import (
    BUSY_PS,
    CHANGED,
    DONE_TASKS,
    EVENTS,
    IDLE_SERVERS,
    NEXT_TASK,
    TOOL_HEAD,
    TOOL_TAIL,
    TOOLS,
    TOUCHES,
    TURNS,
)
from tao.profiles import PS_PER_S
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
)


@njit
def touch(e, b):
    """Node b may have to begin a step at the end of this moment."""
    if not e.inner[b, at.TOUCHED]:
        e.inner[b, at.TOUCHED] = 1
        e.touched[e.counts[TOUCHES]] = b
        e.counts[TOUCHES] += 1


@njit
def start_task(e):
    """The next session comes onto the cluster."""
    i = e.counts[NEXT_TASK]
    e.counts[NEXT_TASK] += 1
    e.request[i, at.STARTED_PS] = e.clock[NOW_PS]
    state.start(e.state, i)
    arrive(e, i)


@njit
def arrive(e, i):
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
    e.counts[CHANGED] = 1
    if s[i, RESIDENT] >= 0:
        submit(e, i)
        return
    show(e)
    b = e.route(e.state, i)
    if b != HOLD:
        place(e, i, b)


@njit
def place(e, i, b):
    """Session i becomes resident on node b; a waiting request goes there at once."""
    pair, now_ps = e.pair, e.clock[NOW_PS]
    promised = 0
    if pair[i, b, NOTED]:
        age_s = now_ps / PS_PER_S - pair[i, b, NOTED_PS] / PS_PER_S
        promised = valuation.decayed(pair[i, b, NOTED], age_s, e.state.settings.half_life_s)
    e.request[i, at.PROMISED] = promised
    state.move(e.state, i, b)
    if e.session[i, PHASE] == WAITING:
        submit(e, i)


@njit
def submit(e, i):
    """Session i's request goes to its node."""
    s, node, request = e.session, e.node, e.request
    b, turn = s[i, RESIDENT], e.first[i] + s[i, TURN]
    request[i, at.PROMPT], request[i, at.OUTPUT] = e.prompt[turn], e.output[turn]
    request[i, at.REUSABLE] = e.pair[i, b, NOTED]
    s[i, PHASE] = REASONING
    node[b, INFLIGHT] += 1
    node[b, PREFILLING] += s[i, CHARGE]
    if batch.submit(e.machine, b, i, e.clock[NOW_PS]):
        push(e.counts, e.heap_ps, e.heap_id, e.heap_at, b, e.inner[b, at.ENDS_PS])
    if e.inner[b, at.ENDS_PS] < 0:
        touch(e, b)


@njit
def finish(e, b, i):
    """An answer is complete: note what is cached, record the turn, call the tool or end the session."""
    s, pair, node, request = e.session, e.pair, e.node, e.request
    now_ps, turn = e.clock[NOW_PS], e.first[i] + s[i, TURN]
    last = turn + 1 == e.first[i + 1]
    state.resize(e.state, i, e.prompt[turn] + e.output[turn])
    s[i, STREAMED] = 0
    pair[i, b, NOTED], pair[i, b, NOTED_PS] = request[i, at.COMPUTED], now_ps
    s[i, LAST_NODE] = b
    node[b, INFLIGHT] -= 1
    record_turn(e, i, b, turn)
    e.counts[CHANGED] = 1
    s[i, PHASE] = TOOL
    if not last:
        s[i, TOOL_PS], s[i, TOOL_DUE_PS] = now_ps, -1
        s[i, KIND], e.asks_s[i] = e.kind[turn], e.asked_s[turn]
        e.counts[TOOLS] += 1
        call_tool(e, i)
    e.on_finish(e.state, i)
    if s[i, LEAVING] or last:
        s[i, LEAVING] = 0
        state.move(e.state, i, HOLD)
    if last:
        state.end(e.state, i)
        request[i, at.FINISHED_PS] = now_ps
        e.counts[DONE_TASKS] += 1
        if not e.open_arrivals and e.counts[NEXT_TASK] < len(s):
            start_task(e)


@njit
def record_turn(e, i, b, turn):
    """Enter a row of `history.TurnRow`; the tool's end is entered when it comes."""
    request, row = e.request, e.turns[e.counts[TURNS]]
    request[i, at.ROW] = e.counts[TURNS]
    e.counts[TURNS] += 1
    row[0], row[1], row[2] = i, e.session[i, TURN], b
    row[3], row[4], row[5] = (
        request[i, at.ARRIVED_PS],
        request[i, at.SUBMITTED_PS],
        request[i, at.SCHEDULED_PS],
    )
    row[6], row[7], row[8] = request[i, at.FIRST_PS], e.clock[NOW_PS], e.clock[NOW_PS]
    row[9], row[10], row[11] = request[i, at.PROMPT], e.prefix[turn], request[i, at.HIT]
    row[12], row[13] = request[i, at.OUTPUT], request[i, at.RECOMPUTED]
    row[14], row[15] = request[i, at.PREEMPTIONS], request[i, at.PROMISED]
    request[i, at.PROMISED] = -1


@njit
def call_tool(e, i):
    """Run the tool of session i, or queue it where all servers are busy."""
    count, request = e.counts, e.request
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
def tool_end(e, i):
    """Session i's tool returns: learn how long it took, and go on with the next turn."""
    s, count, now_ps = e.session, e.counts, e.clock[NOW_PS]
    count[EVENTS] += 1
    count[TOOLS] -= 1
    count[BUSY_PS] = now_ps
    count[IDLE_SERVERS] += 1
    if count[TOOL_HEAD] >= 0:
        first = count[TOOL_HEAD]
        count[TOOL_HEAD] = e.request[first, at.NEXT]
        call_tool(e, first)
    e.turns[e.request[i, at.ROW], 8] = now_ps
    lasted_s = (now_ps - s[i, TOOL_PS]) / PS_PER_S
    durations.learn(e.book, s[i, KIND], lasted_s, e.state.settings.statistic)
    s[i, TURN] += 1
    arrive(e, i)


@njit
def show(e):
    """Before a policy decides, as far as it looks: answers in progress, and what caches hold by now."""
    now_ps, machine = e.clock[NOW_PS], e.machine
    if e.counts_streamed:
        for b in range(len(machine.node)):
            for k in range(machine.node[b, state.RUNNING]):
                i = machine.running[b, k]
                machine.session[i, STREAMED] = batch.emitted(machine, b, i, now_ps)
            i = machine.inner[b, at.HEAD]
            while i >= 0:  # preempted ones have emitted as well
                machine.session[i, STREAMED] = machine.request[i, at.EMITTED]
                i = machine.request[i, at.NEXT]
    if e.sees_cache:
        for b in range(len(machine.node)):
            cache.evict_pending(machine, b, now_ps)
