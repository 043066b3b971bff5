"""A run played back: what every node holds now, and since the beginning who held places and who waited."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from tao.charts import style
from tao.playback import HOLDING, PARTS, Playback
from tao.profiles import PS_PER_S

NAMES = {
    "reasoning": "place: reasons",
    "tool": "place: its tool runs",
    "queue": "place: in the engine's queue",
    "cached": "cached of sessions outside",
    "free": "free",
    "pool": "waiting pool",
}
COLORS = {
    "reasoning": style.PALETTE["green"],
    "tool": style.GREY,
    "queue": style.PALETTE["purple"],
    "cached": style.PALETTE["sky"],
    "free": "white",
    "pool": style.PALETTE["orange"],
}
SHORT = {"reasoning": "reason", "tool": "tool", "queue": "queue", "cached": "cached", "free": "free"}
NOW, SINCE = (280, 250), (436, (150, 66))  # px: the nodes now; width and heights of the two views over time
PLACES_SIZE = 846, 360  # px of a card with all three, their titles, axes and legend
MOST_NODES = 8  # more would be too thin to read
LETTER = 6.4  # px of one at 11 px, rounded up
EXTENT: dict[str, Any] = {"minExtent": 30, "maxExtent": 30}  # px, so that views stand below each other
BARS = "node", "part", "lo", "hi", "label", "words"
LINES = "pool", "queue"


def places(played: Playback, moment: int = 0) -> alt.HConcatChart:
    """A run at one of its moments, counted from 0: left the nodes now, right everything until now.

    A node's bar may go beyond its room, which is the thick line: sessions with a place there have more
    context than it holds. The chart reads `places_value` from its parameter `player`, so that a panel can
    step through a run, or take another one, without drawing it again.

    >>> import tao
    >>> from tao.playback import playback
    >>> played = playback(tao.simulate("swe-lite", "tao", nodes=1, workers=1, tasks=1), 9)
    >>> places(played, 2).to_dict()["params"][0]["value"]["bars"][0]["words"]
    'n0: 1 session holds a place while its tool runs, 4,742 tokens'
    """
    value = places_value(played, moment)
    count = len(value["times"])
    style.few_enough("places", count * (len(PARTS) + len(LINES)))
    since = alt.vconcat(_held(count), _waiting(count), spacing=6)
    chart: alt.HConcatChart = alt.hconcat(_nodes(), since, spacing=24).resolve_scale(color="shared")
    return style.styled(
        chart.add_params(alt.param(name="player", value=value)),
        "Left: a bar per node with the tokens held now, by what the sessions do that hold them; a thick line "
        "marks the node's room. Right, above: the same for all nodes together, from the beginning until now; "
        "dashed: their room. Right, below: how many sessions are in the waiting pool (solid) and in the "
        "engines' queues (dashed).",
    )


def places_value(played: Playback, moment: int) -> dict[str, Any]:
    """The parameter of `places`: bars of now, edges of the areas and both counts up to now, and reaches."""
    nodes, times = len(played.node_ids), played.times_ps / PS_PER_S
    held = played.tokens.sum(axis=1)
    held[:, -1] = _cached(played)
    edges = np.concatenate([np.zeros((len(times), 1), np.int64), held.cumsum(axis=1)], axis=1)
    queue = played.sessions[..., PARTS.index("queue")].sum(axis=1)
    until = slice(moment + 1)
    fullest = int(played.tokens[..., : len(HOLDING)].sum(axis=2).max())
    return {
        "now": round(float(times[moment]), 3),
        "end": round(float(times[-1]), 3),
        "times": times[until].round(3).tolist() + [None] * (len(times) - moment - 1),
        "edges": edges[until].T.tolist(),
        "counts": [played.pool[until].tolist(), queue[until].tolist()],
        "room": played.room_tokens * nodes,
        "most": max(int(edges.max()), played.room_tokens * nodes),
        "crowd": max(int(played.pool.max()), int(queue.max()), 1),
        "nodes": played.node_ids,
        "node_room": played.room_tokens,
        "reach": max(fullest, played.room_tokens),
        "bars": [bar for b in range(nodes) for bar in _bars(played, moment, b, fullest)],
    }


def _cached(played: Playback) -> Any:
    """All that is cached for sessions outside, as far as there is room, at every moment."""
    used = played.tokens[..., : len(HOLDING)].sum(axis=2)
    room = np.maximum(played.room_tokens - used, 0)
    return np.minimum(played.tokens[..., -1], room).sum(axis=1)


def _bars(played: Playback, moment: int, b: int, fullest: int) -> list[dict[str, Any]]:
    """The segments of one node: who holds how much, what is cached, what is free."""
    tokens, sessions = played.tokens[moment, b].tolist(), played.sessions[moment, b].tolist()
    tokens[-1] = played.cached(moment, b)
    parts = [*zip(PARTS, tokens, sessions, strict=True), ("free", played.free(moment, b), 0)]
    lo, rows = 0, []
    for part, size, count in parts:
        width = NOW[0] * size / max(fullest, played.room_tokens)
        texts = f"{SHORT[part]} {size:,}", SHORT[part]
        label = next((text for text in texts if LETTER * len(text) + 6 <= width), "")
        words = said(played.node_ids[b], part, size, count)
        found = played.node_ids[b], part, lo, lo + size, label, words
        rows += [dict(zip(BARS, found, strict=True))] if size else []
        lo += size
    return rows


def said(node: str, part: str, tokens: int, sessions: int) -> str:
    """One segment in words.

    >>> said("n0", "tool", 12_000, 2)
    'n0: 2 sessions hold a place while their tools run, 12,000 tokens'
    """
    one = sessions == 1
    who = f"{sessions} session{'' if one else 's'}"
    doing = {
        "reasoning": f"{who} reason{'s' * one}",
        "tool": f"{who} hold{'s' * one} a place while {'its tool runs' if one else 'their tools run'}",
        "queue": f"{who} wait{'s' * one} in the engine's queue",
        "cached": f"cached of {who} outside",
        "free": "free",
    }
    return f"{node}: {doing[part]}, {tokens:,} tokens"


def _color(field: str) -> alt.Color:
    parts = list(COLORS)
    labels = " : ".join(f"datum.value == '{part}' ? {NAMES[part]!r}" for part in parts)
    shown = [part for part in parts if part != "free"]  # white, and said in the bars
    look: dict[str, Any] = {"orient": "bottom", "columns": 5, "symbolType": "square", "symbolSize": 110}
    legend = alt.Legend(title=None, values=shown, labelExpr=f"{labels} : ''", **look)
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=parts, range=list(COLORS.values())), legend=legend)


def _tokens_axis(count: int, **extent: Any) -> alt.Axis:
    return alt.Axis(labelExpr="datum.value ? format(datum.value, '~s') : '0'", tickCount=count, **extent)


def _nodes() -> alt.LayerChart:
    """A bar per node, from `lo` to `hi` per part, and the node's room."""
    reach = alt.Scale(domain=[0, alt.ExprRef("player.reach")], nice=False)
    names = alt.Scale(type="band", domain=alt.ExprRef("player.nodes"), paddingInner=0.25, paddingOuter=0.1)
    axis = alt.Axis(labelFontSize=12, ticks=False, domain=False, labelLimit=60)
    y = alt.Y("node:N", scale=names, axis=axis, title=None)
    x = alt.X("lo:Q", scale=reach, axis=_tokens_axis(5), title="tokens of contexts, now")
    width, height = NOW
    base = (
        alt.Chart(alt.sequence(0, MOST_NODES * (len(PARTS) + 1), as_="i"))
        .transform_filter("datum.i < length(player.bars)")
        .transform_calculate(
            **{name: f"player.bars[datum.i].{name}" for name in BARS},
            middle="(player.bars[datum.i].lo + player.bars[datum.i].hi) / 2",
        )
    )
    bars = base.mark_bar(stroke=style.LINE, strokeWidth=0.6).encode(
        x=x, x2="hi:Q", y=y, color=_color("part"), description="words:N", tooltip="words:N", order="i:Q"
    )
    texts = base.mark_text(aria=False, color=style.INK, fontSize=11).encode(
        x=alt.X("middle:Q", scale=reach), y=y, text="label:N"
    )
    room = (
        alt.Chart(alt.sequence(0, MOST_NODES, as_="i"))
        .transform_filter("datum.i < length(player.nodes)")
        .transform_calculate(node="player.nodes[datum.i]", lo="player.node_room")
    )
    end = room.mark_tick(color=style.INK, thickness=3, opacity=1, aria=False).encode(x=x, y=y)
    layers = [bars, end, texts]
    return alt.LayerChart(layer=layers, width=width, height=height, title="each node now")


def _x(axis: alt.Axis | None) -> alt.X:
    scale = alt.Scale(domain=[0, alt.ExprRef("player.end")], nice=False)
    return alt.X("at:Q", scale=scale, axis=axis, title="seconds since the run began" if axis else None)


def _now(axis: alt.Axis | None) -> alt.Chart:
    at = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(at="player.now", room="player.room")
    rule: alt.Chart = at.mark_rule(color=style.INK, strokeWidth=1.5, aria=False).encode(x=_x(axis))
    return rule


def _series(names: tuple[str, ...], count: int, **fields: str) -> alt.Chart:
    """A row for each of `names` and moment so far; in `fields`, k is the name's place and j the moment."""
    found: alt.Chart = (
        alt.Chart(alt.sequence(0, len(names) * count, as_="i"))
        .transform_calculate(k=f"floor(datum.i / {count})", j=f"datum.i % {count}")
        .transform_filter("datum.j < length(player.edges[0])")
        .transform_calculate(part=f"{list(names)}[datum.k]", at="player.times[datum.j]", **fields)
    )
    return found


def _held(count: int) -> alt.LayerChart:
    scale = alt.Scale(domain=[0, alt.ExprRef("player.most")], nice=False)
    y = alt.Y("lo:Q", scale=scale, axis=_tokens_axis(4, **EXTENT), title="tokens")
    edges = {"lo": "player.edges[datum.k][datum.j]", "hi": "player.edges[datum.k + 1][datum.j]"}
    areas = _series(PARTS, count, **edges).mark_area(
        interpolate="step-after", stroke=style.LINE, strokeWidth=0.4, aria=False
    )
    drawn = areas.encode(x=_x(None), y=y, y2="hi:Q", color=_color("part"))
    room = alt.Chart(alt.sequence(0, 1, as_="i")).transform_calculate(lo="player.room")
    line = room.mark_rule(color=style.INK, strokeDash=[6, 4], strokeWidth=1.5, aria=False).encode(y=y)
    width, (height, _) = SINCE
    title = "all nodes until now (dashed: their room)"
    return alt.LayerChart(layer=[drawn, line, _now(None)], width=width, height=height, title=title)


def _waiting(count: int) -> alt.LayerChart:
    scale = alt.Scale(domain=[0, alt.ExprRef("player.crowd")], nice=False)
    y = alt.Y("sessions:Q", scale=scale, axis=alt.Axis(tickCount=3, format="d", **EXTENT), title="sessions")
    rows = _series(LINES, count, sessions="player.counts[datum.k][datum.j]")
    dash = alt.Scale(domain=list(LINES), range=[style.SOLID, style.DASHED])
    lines = rows.mark_line(interpolate="step-after", strokeWidth=2, aria=False).encode(
        x=_x(alt.Axis(tickCount=8)),
        y=y,
        color=_color("part"),
        strokeDash=alt.StrokeDash("part:N", scale=dash, legend=None),
    )
    width, (_, height) = SINCE
    title = "who waits: in the pool (solid), in the engines' queues (dashed)"
    return alt.LayerChart(layer=[lines, _now(alt.Axis(tickCount=8))], width=width, height=height, title=title)
