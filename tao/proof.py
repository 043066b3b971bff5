"""Why no plan can do better, in words: prices prove the credit, counting proves the rest (ours)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tao import planners
from tao.exact import Problem, as_one_room, beside, root
from tao.model import Params, Plan, Snapshot, Value
from tao.planners import Case, Ints

LISTED = 4  # ours: nodes and prices named one by one; the others are summed up


class Certificate(NamedTuple):
    """Prices of sessions, what each node keeps at most after paying them (tokens of credit), and the words.

    All prices and all nodes together, `credit`, are no less than the credit of any plan.
    """

    prices: dict[str, int]
    nodes: dict[str, int]
    words: str

    @property
    def credit(self) -> int:
        """The credit that no plan exceeds, by these prices."""
        return sum(self.prices.values()) + sum(self.nodes.values())


def certificate(snapshot: Snapshot, plan: Plan, params: Params | None = None) -> Certificate:
    """Why no plan is worth more than this one, or how much more one could be worth; for any planner's plan.

    Prices as in `tao.exact`: whoever takes a session that several nodes want pays its price, so that each
    node can decide by itself (Fisher, Jaikumar and Van Wassenhove 1986). `params` as the plan's.

    >>> from tao.model import CacheNote, Node, Session
    >>> snap = Snapshot(0.0, (Node("n0", 10_000),), (
    ...     Session("a", 5_500, cached={"n0": CacheNote(5_000, 0.0)}),
    ...     Session("b", 6_500, cached={"n0": CacheNote(6_000, 0.0)}), Session("c", 2_000)))
    >>> for line in certificate(snap, planners.plan(snap, "exact")).words.splitlines()[:4]: print(line)
    No plan can keep more than 6,000 tokens of credit, and this one keeps as much.
    n0 (room for 10,000) keeps at most 6,000.
    All nodes together: 6,000.
    All room as one takes at most 2 ready sessions, and the plan has as many.
    """
    problem = planners.case(snapshot, Params() if params is None else params)
    price, most = root(*problem.searched())
    prices = {s.id: u for s, u in zip(problem.sessions, price.tolist(), strict=True) if u}
    proof = Certificate(prices, dict(zip([b.id for b in problem.nodes], most.tolist(), strict=True)), "")
    loose = planners.upper_bound(problem)
    lines = _credit(problem, plan, proof, loose)
    if plan.value.credit == min(proof.credit, plan.bound.credit):
        lines += _rest(problem, plan, loose)
    return proof._replace(words="\n".join(dict.fromkeys(lines)))


def _credit(problem: Case, plan: Plan, proof: Certificate, loose: Value) -> list[str]:
    has, most = plan.value.credit, min(proof.credit, plan.bound.credit)
    if most == 0:
        return ["No session earns credit on a node that it fits on, so every plan keeps 0."]
    lines = [f"No plan can keep more than {most:,} tokens of credit, and this one keeps as much."]
    if most > has:
        less = math.ceil(1000 * (most - has) / most) / 10
        lines = [
            f"No plan can keep more than {most:,} tokens of credit; this one keeps {has:,}, "
            f"at most {most - has:,} ({less} %) less; readiness and tokens are therefore open."
        ]
    lines += [*_prices(problem, plan, proof), _nodes(problem, proof)]
    lines.append(f"{'Prices and nodes' if proof.prices else 'All nodes'} together: {proof.credit:,}.")
    if loose.credit == most < proof.credit:
        lines.append(f"All room as one takes {most:,} at most, even if one session could be cut.")
    elif most < proof.credit:
        lines.append(f"What lies between was ruled out by {_search(plan)}.")
    return lines


def _prices(problem: Case, plan: Plan, proof: Certificate) -> list[str]:
    """The highest prices, and who takes these sessions if the prices prove the plan."""
    at = plan.node_of() if proof.credit == plan.value.credit else {}
    index = {s.id: i for i, s in enumerate(problem.sessions)}
    words, rest = [], sum(proof.prices.values())
    for name, price in _highest(proof.prices):
        i, rest = index[name], rest - price
        homes = [problem.nodes[b].id for b in problem.prefer[i] if b >= 0 and problem.credit[i, b] > 0]
        who = " and ".join(sorted(homes)) if len(homes) < 3 else f"{len(homes)} nodes"
        takes = (
            f"; at a price of {price:,} {at[name]} takes it" if name in at else f": its price is {price:,}"
        )
        words.append(f"{who} want {name}{takes}.")
    if others := len(proof.prices) - len(words):
        words.append(f"The prices of {counted(others, 'more session')} are {rest:,} together.")
    return words


def _nodes(problem: Case, proof: Certificate) -> str:
    """What each node keeps at most; the greatest if there are many, and the others together."""
    room = dict(zip(proof.nodes, problem.free.tolist(), strict=True))
    named = proof.nodes if len(room) <= LISTED else dict(_highest(proof.nodes))
    keeps = [f"{node} (room for {room[node]:,}) at most {most:,}" for node, most in named.items()]
    if others := len(room) - len(named):
        rest = sum(proof.nodes.values()) - sum(named.values())
        keeps.append(f"{counted(others, 'more node')} at most {rest:,}")
    words = ", ".join(keeps).replace(") at", ") keeps at", 1)
    return f"{'After prices ' if proof.prices else ''}{words}."


def _rest(problem: Case, plan: Plan, loose: Value) -> list[str]:
    """Readiness and tokens of a plan whose credit is proven."""
    choice = _choice(problem, plan)
    if not ((problem.prefer >= 0).any(axis=1) & (choice < 0)).any():
        return ["Every session that fits on any node is in: there is nothing to add."]
    left, more, most = _beside(problem, plan, choice)
    lines, counting = [], False
    search, among = (
        _search(plan),
        f" if {counted(more.ready, 'ready session')} {'is' if more.ready == 1 else 'are'} among them",
    )
    for part, unit in (("ready", "ready session"), ("tokens", "token of context")):
        has, bound, one, x, y = (getattr(v, part) for v in (plan.value, plan.bound, loose, more, most))
        first = part == "ready"
        if bound > has:
            known = f"Of plans with that credit{'' if first else ' and readiness'}"
            rest = "; tokens are therefore open" if first else ""
            lines.append(f"{known} none has more than {counted(bound, unit)}; this one has {has:,}{rest}.")
            break
        if one == has:
            lines.append(f"All room as one takes at most {counted(has, unit)}, and the plan has as many.")
            continue
        counting = True
        takes = f"{left} takes at most {counted(y, f'more {unit}')}{'' if first or not more.ready else among}"
        if not left:
            lines.append("Beside the sessions that keep credit nobody else fits.")
        elif x == y:
            lines.append(f"{takes}, and the plan has as many.")
        else:
            lines.append(f"{takes}; divided among nodes it takes {x:,}, by {search}.")
    if counting and plan.value.credit:
        lines.append(f"No other choice of the same credit leaves better room, by {search}.")
    return lines


def _beside(problem: Case, plan: Plan, choice: Ints) -> tuple[str, Value, Value]:
    """Beside the sessions that earn credit: the room left in words ("": nobody fits), what the plan has
    there, and what it could have at most if all room were one.
    """
    p = problem
    earning = [b >= 0 and p.credit[i, b] > 0 for i, b in enumerate(choice.tolist())]
    by_size = np.argsort(-p.demand, kind="stable")
    inner = Problem(p.demand, p.free, p.credit, p.ready, p.tokens, p.prefer, by_size, p.limited)
    room, items, ready, tokens = beside(inner, np.where(earning, choice, -1))
    more = Value(0, plan.value.ready - ready, plan.value.tokens - tokens)
    if not len(items):
        return "", more, more
    total, most_ready, most_tokens = as_one_room(inner, items, room, more.ready)
    who = "beside the sessions that keep credit" if any(earning) else "that somebody fits into"
    return f"The room {who}, {total:,} tokens,", more, Value(0, int(most_ready), int(most_tokens))


def _choice(problem: Case, plan: Plan) -> Ints:
    index = {b.id: k for k, b in enumerate(problem.nodes)}
    at = plan.node_of()
    return np.array([index[at[s.id]] if s.id in at else -1 for s in problem.sessions], np.int64)


def _search(plan: Plan) -> str:
    if plan.planner == "exhaustive":
        return "trying every placement"
    return f"a search of {counted(plan.states, 'state')}"


def _highest(amounts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(amounts.items(), key=lambda item: -item[1])[:LISTED]


def counted(n: int, noun: str) -> str:
    """A number with its noun, such as "1 node" or "2,000 tokens of context"."""
    first, _, rest = noun.partition(" of ")
    return f"{n:,} {first}{'' if n == 1 else 's'}{' of ' + rest if rest else ''}"
