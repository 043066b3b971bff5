"""What a live run says about itself, as tables and sentences; pure, no widgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tao.charts import style
from tao.history import History
from tao.metrics import COMPARED, measure
from tao.model import Snapshot
from tao.panels.table import Table
from tao.profiles import PS_PER_S

ROWS = 60  # ours: of a table that is drawn while a run goes on
PHASES = "answering", "waiting", "tool", "new", "failed", "done"  # in the order of the table

Rows = Sequence[Mapping[str, Any]]


def progress(policy: str, sessions: Rows, requests: int, over: History | None) -> str:
    """How far a run is, and if it is `over`, how that came."""
    count = Counter(row["phase"] for row in sessions)
    parts = [f"{count[phase]:,} {phase}" for phase in PHASES if count[phase] and phase != "done"]
    done = f"{count['done']:,} of {len(sessions):,} sessions done"
    said = f"{policy}: {', '.join([done, *parts])}; {requests:,} answers begun"
    if over is None:
        return f"Under way. {said}."
    return " ".join([f"Over after {over.end_ps / PS_PER_S:.1f} s. {said}.", *sentences(over.notes)])


def sentences(notes: Sequence[str]) -> list[str]:
    """The notes of a run as sentences."""
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def caveats(history: History, simulated: History) -> str:
    """How the simulation beside a run was made, and where the two are not of the same sessions."""
    said = [f"Simulated with the profile {simulated.settings['profile']}, all sessions from the start."]
    if ended := len(history.session_ids) - len(history.finished_ps):
        said.append(f"{ended:,} sessions did not come to their end in the run; the simulation goes on to it.")
    return " ".join(said + sentences([note for note in simulated.notes if note.startswith("left out")]))


def nodes(rows: Rows, banner: str) -> Table:
    """A row per node: its room, what our sessions hold of it, and whose requests it works on."""
    columns = "node", "KV tokens", "held", "sessions", "requests", "others'", "state"
    body = [
        (
            row["node"],
            row["kv_tokens"],
            row["held_tokens"],
            row["sessions"],
            row["requests"],
            "unknown" if row["others"] is None else f"{row['others']:,}",
            row["fault"] or ("left out for now" if row["out"] else "works"),
        )
        for row in rows
    ]
    return Table(f"{_mode(banner)}: load of each node; others' requests by its last report", columns, body)


def sessions(rows: Rows, banner: str) -> Table:
    """A row per session: what it does and where; those that still go on come first."""
    order = sorted(rows, key=lambda row: PHASES.index(row["phase"]))
    body = [
        (
            row["session"],
            row["failure"] or (f"tool {row['tool']}" if row["phase"] == "tool" else row["phase"]),
            row["node"] or "none",
            row["turn"],
            row["context_tokens"],
        )
        for row in order[:ROWS]
    ]
    rest = f", {ROWS} of {len(rows):,}" if len(rows) > ROWS else ""
    columns = "session", "does", "node", "turn", "context"
    return Table(f"{_mode(banner)}: sessions{rest}", columns, body)


def first_tokens(rows: Rows, banner: str) -> Table:
    """The first tokens as a table, the latest ones first."""
    body = [
        (row["session"], row["turn"], row["node"], f"{row['at_s']:.2f}", f"{row['ttft_s']:.2f}")
        for row in rows[: -ROWS - 1 : -1]
    ]
    columns = "session", "turn", "node", "at, s", "after, s"
    return Table(f"{_mode(banner)}: the latest first tokens", columns, body)


def compared(history: History, simulated: History, banner: str) -> Table:
    """The run beside `tao.simulate` of the same sessions under the same policy."""
    real, model = measure(history), measure(simulated)
    rows = []
    for name in COMPARED:
        a, b = real[name], model[name]
        change = "" if a is None or not b else style.change(a / b - 1)
        rows.append((style.words(name), _number(a), _number(b), change))
    done, model_done = (f"{len(each.finished_ps):,}" for each in (history, simulated))
    rows.append(("sessions done", done, model_done, ""))
    columns = "", f"measured, {_mode(banner)} servers", "tao.simulate", "difference"
    caption = f"{_mode(banner)}: {history.settings['policy']}, measured and simulated"
    return Table(caption, columns, rows)


def credit_rows(history: History) -> list[dict[str, Any]]:
    """The turns before which the session was placed and whose server told its cached tokens."""
    return [
        {
            "session": history.session_ids[turn.session],
            "turn": turn.turn,
            "node": history.node_ids[turn.node],
            "promised_tokens": turn.promised_tokens,
            "hit_tokens": turn.hit_tokens,
        }
        for turn in history.turns
        if turn.promised_tokens >= 0 and turn.hit_tokens >= 0
    ]


def credit(rows: Rows, banner: str) -> Table:
    """Estimate against cache, turn by turn, the latest ones first."""
    names = "session", "turn", "node", "promised_tokens", "hit_tokens"
    body = [tuple(row[name] for name in names) for row in rows[: -ROWS - 1 : -1]]
    columns = "session", "turn", "node", "estimated", "cached"
    return Table(f"{_mode(banner)}: cache credit and cached tokens", columns, body)


def credit_summary(history: History) -> str:
    """How good the estimate was, and of how many turns that can't be said."""
    turns = history.turns
    placed = [turn for turn in turns if turn.promised_tokens >= 0]
    told = [turn for turn in placed if turn.hit_tokens >= 0]
    with_credit = [turn for turn in told if turn.promised_tokens > 0]
    promised = sum(turn.promised_tokens for turn in with_credit)
    found = sum(min(turn.promised_tokens, turn.hit_tokens) for turn in with_credit)
    kept = sum(turn.hit_tokens >= turn.promised_tokens for turn in with_credit)
    said = [
        f"{len(placed):,} of {len(turns):,} turns were placed; the others stayed on their node, where "
        "nothing needs an estimate."
    ]
    if with_credit:
        said.append(
            f"{len(with_credit):,} were placed with credit: {kept:,} found at least as much in the cache, "
            f"together {found:,} of {promised:,} tokens ({found / promised:.0%})."
        )
    if unknown := len(placed) - len(told):
        said.append(f"Of {unknown:,} the server did not tell what it had cached: unknown, not 0.")
    return " ".join(said)


def residency(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the nodes' KV events say of the credit, of `Run.credit` rows; "" where there are none.

    >>> residency([{"credit_tokens": 90, "resident_tokens": 96}, {"credit_tokens": 50, "resident_tokens": 0}])
    'KV events: of 2 turns sent with credit, 1 had at least as much in the cache of their node.'
    """
    known = [row for row in rows if row["resident_tokens"] is not None and row["credit_tokens"]]
    if not known:
        return ""
    kept = sum(row["resident_tokens"] >= row["credit_tokens"] for row in known)
    return (
        f"KV events: of {len(known):,} turns sent with credit, {kept:,} had at least as much in the cache of "
        "their node."
    )


def decisions(history: History, banner: str) -> list[tuple[str, Snapshot]]:
    """The moments at which a planner decided, with what was carried out of it."""
    rows, found = history.decisions, []
    for k, (snapshot, _) in sorted(history.kept.items()):
        row = rows[k]
        placed = ", ".join(f"{who} on {node}" for who, node in row.placed) or "nobody"
        dropped = "".join(f"; not {who} ({why})" for who, _, why in row.dropped)
        name = (
            f"{_mode(banner)}, decision {k + 1:,}, at {row.at_ps / PS_PER_S:.2f} s, placed {placed}{dropped}"
        )
        found.append((name, snapshot))
    return found


def _mode(banner: str) -> str:
    return banner.partition(":")[0]


def _number(x: float | None) -> str:
    return "unknown" if x is None else style.number(x)
