"""What a moment of a run is, as tables and sentences; pure, no widgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tao.history import History
from tao.panels.table import Row, Table
from tao.playback import HOLDING, PARTS, Playback, happened, so_far
from tao.profiles import PS_PER_S
from tao.tuning import Setting

MOST_NAMES = 3  # ours: as many as fit a line


def what(setting: Setting, policy: str, seed: int) -> str:
    """The run in a sentence."""
    nodes = f"{setting.nodes} node{'s' * (setting.nodes > 1)} of {setting.capacity_tokens:,} KV tokens"
    agents = f"{setting.tasks} sessions of {setting.workload}, {setting.workers} at a time"
    return f"SIMULATED: {agents}, on {nodes}; tool delay: {setting.delay}; policy {policy}, seed {seed}."


def changes(shown: Mapping[str, Any], pending: Mapping[str, Any]) -> str:
    """What the fields say that is not shown; empty if nothing."""
    said = [f"{name} {_plain(value)}" for name, value in pending.items() if value != shown[name]]
    return ", ".join(said)


def headline(played: Playback, moment: int) -> str:
    """Who holds places and who waits, and what part of the room stands idle, at one moment."""
    sessions, tokens = (each[moment].sum(axis=0).tolist() for each in (played.sessions, played.tokens))
    reasoning, tool, queue, _ = sessions
    room = played.room_tokens * len(played.node_ids)
    return (
        f"{_seconds(played, moment)}: {reasoning} reason ({tokens[0] / room:.0%} of room), "
        f"{tool} with a tool ({tokens[1] / room:.0%}), {queue} in engine queues, "
        f"{int(played.pool[moment])} in the pool"
    )


def until_now(history: History, played: Playback, moment: int) -> str:
    """What has happened since the moment before, and what the run has come to so far."""
    times = played.times_ps.tolist()
    past = so_far(history, times[moment])
    recent = happened(history, times[moment - 1] if moment else -1, times[moment])
    news = "; ".join(f"{what}: {_names(names)}" for what, names in recent.items() if names)
    return (
        f"Since the moment before: {news or 'no placement, pause or end'}. So far: {past.done} sessions "
        f"done, {past.answers:,} answers begun, which waited {past.pool_wait_s:.1f} s in the pool and "
        f"{past.queue_wait_s:.1f} s in the queue on average; {past.again_tokens:,} tokens computed again."
    )


def nodes(played: Playback, moment: int) -> Table:
    """What every node holds at one moment, and all of them."""
    rows: list[Row] = [_row(played, moment, b) for b in range(len(played.node_ids))]
    total: Row = ["all", *(sum(int(row[k]) for row in rows) for k in range(1, len(rows[0])))]
    columns = "node", "reason", "tool runs", "in queue", "cached", "free", "over", "room"
    caption = f"Tokens of contexts at {_seconds(played, moment)}, by what holds them (simulated)"
    return Table(caption, columns, [*rows, total])


def _row(played: Playback, moment: int, b: int) -> list[str | int]:
    held = [int(n) for n in played.tokens[moment, b, : len(HOLDING)]]
    rest = (each(moment, b) for each in (played.cached, played.free, played.over))
    return [played.node_ids[b], *held, *rest, played.room_tokens]


def series(played: Playback, moment: int) -> Table:
    """The figure as a table: every moment until this one."""
    queue = played.sessions[..., PARTS.index("queue")].sum(axis=1)
    rows: list[Row] = []
    for k in range(moment + 1):
        held = [int(n) for n in played.tokens[k, :, : len(HOLDING)].sum(axis=0)]
        cached = sum(played.cached(k, b) for b in range(len(played.node_ids)))
        rows.append(
            (f"{played.times_ps[k] / PS_PER_S:.1f}", *held, cached, int(played.pool[k]), int(queue[k]))
        )
    columns = (
        *("seconds", "reason, tokens", "tool runs, tokens", "in queue, tokens", "cached, tokens"),
        *("in the pool, sessions", "in queues, sessions"),
    )
    return Table("All nodes until now, moment by moment", columns, rows)


def _seconds(played: Playback, moment: int) -> str:
    return f"{played.times_ps[moment] / PS_PER_S:,.1f} s"


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
