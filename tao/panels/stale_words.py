"""A plan made on an old snapshot, followed until it is applied, as rows, tables and sentences; pure."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from tao import changes, planners
from tao.charts.stale import PLANNER, WORLD
from tao.model import Params, Placement, Plan, Snapshot, Value
from tao.panels.table import Table
from tao.readiness import session_ready
from tao.valuation import value
from tao.worker import Proposal, Verdict, revalidate

Row = tuple[str, str, float, float, str, str]
COLUMNS = ["lane", "part", "begin_s", "end_s", "words", "note"]


class Moment(NamedTuple):
    """Seconds since the plan was asked for, what happens then, and the cluster from then on."""

    at_s: float
    words: str
    live: Snapshot


class Story(NamedTuple):
    """A frozen snapshot, the plan made on it, and what happened until the plan was applied."""

    snapshot: Snapshot
    proposal: Proposal
    happening: tuple[str, ...]
    delay_s: float
    look: bool  # revalidate before applying
    params: Params

    @property
    def moments(self) -> list[Moment]:
        """Asked for, every change before the plan is there, made, and applied."""
        what = [(0.0, "the snapshot is frozen, the plan is asked for")]
        known = changes.CHANGES
        what += [
            (c.at_s, c.words) for n, c in known.items() if n in self.happening and c.at_s <= self.delay_s
        ]
        how = "what still holds is applied" if self.look else "all of it is applied without a look"
        what += [(self.delay_s, "the plan is made"), (self.delay_s, how)]
        return [Moment(at, words, changes.world(self.snapshot, self.happening, at)) for at, words in what]

    @property
    def live(self) -> Snapshot:
        """The cluster when the plan is made, before anything of it is applied."""
        return changes.world(self.snapshot, self.happening, self.delay_s)

    @property
    def verdict(self) -> Verdict:
        """What is applied and what is dropped; without a look all is applied."""
        if self.look:
            return revalidate(self.proposal, self.live, self.params)
        return Verdict(self.proposal.plan.placements, ())

    @property
    def after(self) -> Snapshot:
        """The cluster with the placements applied."""
        return changes.placed(self.live, self.verdict.applied)

    @property
    def overfull(self) -> dict[str, int]:
        """Nodes that hold more than fits, and how many tokens too many."""
        return {node: -free for node, free in self.after.free_tokens(self.params).items() if free < 0}

    @property
    def fresh(self) -> Plan:
        """The plan that would be made on the live state."""
        return planners.plan(self.live, self.proposal.plan.planner, self.params)

    @property
    def worth(self) -> Value:
        """What is applied is worth in the live state, of sessions that are still there."""
        now_s, params = self.live.now_s, self.params
        there = {s.id: s for s in self.live.pool}
        kept = [(there[p.session], p.node) for p in self.verdict.applied if p.session in there]
        return Value.sum(value(s, b, session_ready(s, now_s, params), now_s, params) for s, b in kept)


def lane(p: Placement) -> str:
    """The name of a placement in the figure."""
    return f"{p.session} to {p.node}"


def rows(story: Story, step: int) -> pd.DataFrame:
    """What `charts.stale_plan` draws at one of the moments (from 1)."""
    moments = story.moments
    now_s, done = moments[step - 1].at_s, step == len(moments)
    found: list[Row] = [
        (WORLD, "event", m.at_s, m.at_s, f"{m.at_s:.1f} s: {m.words}", "")
        for m in moments[1 : min(step, len(moments) - 2)]
    ]
    found.append((PLANNER, "planning", 0.0, now_s, f"plans on the frozen snapshot until {now_s:.1f} s", ""))
    reasons = _reasons(story, step)
    for p in story.proposal.plan.placements:
        found += _lane(p, [(m.at_s, r.get(p.session, "")) for m, r in reasons], now_s)
        if done:
            dropped = {d.placement.session: d.reason for d in story.verdict.dropped}
            fate, why = ("dropped", f": {dropped[p.session]}") if p.session in dropped else ("applied", "")
            found.append((lane(p), fate, now_s, now_s, f"{lane(p)} {fate}{why}", ""))
    found.append(("", "now", now_s, now_s, f"now, {now_s:.1f} s", ""))
    return pd.DataFrame(found, columns=COLUMNS)


def _reasons(story: Story, step: int) -> list[tuple[Moment, dict[str, str]]]:
    """At each moment so far, why placements would be dropped if the plan were there already."""
    found = []
    for moment in story.moments[:step]:
        dropped = revalidate(story.proposal, moment.live, story.params).dropped
        found.append((moment, {d.placement.session: str(d.reason) for d in dropped}))
    return found


def _lane(p: Placement, told: list[tuple[float, str]], now_s: float) -> list[Row]:
    """The bars of a placement: one per stretch with the same objection, the last one's as a note."""
    starts = [k for k, (_, why) in enumerate(told) if k == 0 or why != told[k - 1][1]]
    found: list[Row] = []
    for k, end in zip(starts, [*starts[1:], None], strict=True):
        at, why = told[k]
        until = now_s if end is None else told[end][0]
        part, because = ("void", f", {why}") if why else ("holds", "")
        words = f"{lane(p)} {part} from {at:.1f} to {until:.1f} s{because}"
        found.append((lane(p), part, at, until, words, why if end is None else ""))
    return found


def placements(story: Story, step: int) -> Table:
    """Every placement of the plan, and how it stands."""
    moments = story.moments
    done, now = step == len(moments), _reasons(story, step)[-1][1]
    dropped = {d.placement.session for d in story.verdict.dropped}
    table = []
    for p in story.proposal.plan.placements:
        why = now.get(p.session, "")
        stands = ("dropped" if p.session in dropped else "applied") if done else "void" if why else "holds"
        table.append((p.session, p.node, p.value.credit, stands, why))
    caption = "Applied and dropped" if done else "The plan so far"
    return Table(caption, ("session", "node", "credit", "stands", "objection"), table)


def nodes(story: Story, step: int) -> Table:
    """The room on every node: when the plan was asked for, now, and with the plan applied."""
    moments, params = story.moments, story.params
    then, now = story.snapshot.free_tokens(params), moments[step - 1].live.free_tokens(params)
    after = story.after.free_tokens(params) if step == len(moments) else {}
    table = [(node, then[node], now[node], f"{after[node]:,}" if after else "not yet") for node in then]
    return Table("Free tokens", ("node", "frozen", "now", "with the plan applied"), table)


def headline(story: Story, step: int) -> str:
    """The moment in one line."""
    m = story.moments[step - 1]
    void = len(_reasons(story, step)[-1][1])
    total = len(story.proposal.plan.placements)
    if step < len(story.moments):
        return f"At {m.at_s:.1f} s: {m.words}; {total - void} of {total} placements hold."
    applied = len(story.verdict.applied)
    return f"At {m.at_s:.1f} s: {m.words}, {applied} of {total} placements. {overflow(story)}".rstrip()


def overflow(story: Story) -> str:
    """Which nodes are overfull in the end; empty where none is."""
    told = (f"{node} is overfull by {tokens:,} tokens" for node, tokens in story.overfull.items())
    return " and ".join(told) + "!" if story.overfull else ""


def outcome(story: Story, step: int) -> str:
    """In the end: what was kept, and what a plan on the live state would be worth."""
    if step < len(story.moments):
        late = [n for n in story.happening if changes.CHANGES[n].at_s > story.delay_s]
        return f"After the plan is applied, too late to matter here: {', '.join(late)}." if late else ""
    told = f"What is applied is now worth {_triple(story.worth)}."
    if story.overfull:
        return f"{told} But it does not fit: the node must throw caches out, or let requests queue."
    if story.worth == story.fresh.value:
        return f"{told} A plan made now would be worth the same."
    return f"{told} A plan made now would be worth {_triple(story.fresh.value)}."


def _triple(v: Value) -> str:
    return f"credit {v.credit:,}, ready {v.ready:,}, tokens {v.tokens:,}"
