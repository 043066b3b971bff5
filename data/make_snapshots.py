"""Write data/snapshots/: the constructed presets and the recorded replays. Run: python data/make_snapshots.py

Constructed presets are ours. `dp_beats_short_first` and `session_177` are built to match totals that
the TAO paper reports for two snapshots it does not publish; they are not its snapshots. The replays
are decisions of the `tao` policy in our simulator, so running this again writes the same files.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from tao import codec
from tao.model import CacheNote, Node, Params, Session, Snapshot, ToolCall
from tao.planners import plan
from tao.simulator import simulate
from tao.valuation import power_of_half

OUT = Path(__file__).parent / "snapshots"
NOW_S = 100.0


def cached(credit: int, age_s: float) -> CacheNote:
    """The smallest note that is worth exactly `credit` tokens at the age of `age_s`."""
    tokens = math.ceil(credit / power_of_half(age_s / Params().half_life_s))
    return CacheNote(tokens, NOW_S - age_s)


def resident(name: str, node: str, tokens: int) -> Session:
    """Sessions already on a node, lumped into one, so that `tokens` of it (reserve included) are taken."""
    return Session(name, tokens - Params().reserve_tokens, "reasoning", 9, node)


def dp_beats_short_first() -> Snapshot:
    """Credit 16,791 for DP (the optimum in true tokens too) and 13,624 for short-first."""
    for seed in range(100_000):
        rng = random.Random(seed)
        free = {"n0": rng.randrange(24_000, 34_000), "n1": rng.randrange(18_000, 30_000)}
        pool = [_drawn_session(rng, i) for i in range(8)]
        snapshot = _with_free(free, pool)
        optimum, short = plan(snapshot, "exhaustive"), plan(snapshot, "short_first")
        lift, drop = 16_791 - optimum.value.credit, 13_624 - short.value.credit
        if max(abs(lift), abs(drop)) > 1500:
            continue
        moved = _shift_credit(snapshot, optimum.node_of(), short.node_of(), lift, drop)
        if moved is None:
            continue
        values = [plan(moved, p).value.credit for p in ("dp", "exhaustive", "short_first")]
        if values == [16_791, 16_791, 13_624] and len(plan(moved).placements) < len(pool):
            return moved
    raise AssertionError("no seed gives the reported totals")


def _drawn_session(rng: random.Random, i: int) -> Session:
    tokens = round(math.exp(rng.gauss(math.log(9_000), 0.45)))
    home = rng.choice(["n0", "n1"])
    age_s = rng.choice([2.5, 5.0, 10.0, 15.0, 20.0])
    seen = CacheNote(round(tokens * rng.uniform(0.85, 0.98)), NOW_S - age_s)
    tool = None
    if rng.random() < 0.5:
        command = rng.choice(["pytest -q tests", "grep -rn parse src", "sleep 3", "python reproduce.py"])
        tool = ToolCall("bash", NOW_S - age_s, None, command, None, rng.choice([0.5, 3.0, 12.0, None]))
    phase = "waiting" if tool is None else "tool"
    since_s = NOW_S - age_s if tool is None else None
    return Session(f"s{i + 1:02}", tokens, phase, rng.randrange(2, 30), None, since_s, {home: seen}, tool)


def _shift_credit(
    snapshot: Snapshot, best: dict[str, str], short: dict[str, str], lift: int, drop: int
) -> Snapshot | None:
    """Change two notes so that the optimum gains `lift` and short-first `drop` tokens of credit."""
    both = [s for s in snapshot.pool if best.get(s.id) == short.get(s.id) and best.get(s.id) in s.cached]
    only = [s for s in snapshot.pool if best.get(s.id) in s.cached and best.get(s.id) != short.get(s.id)]
    if not both or not only:
        return None
    changed = {}
    for s, change in ((both[0], drop), (only[0], lift - drop)):
        node = best[s.id]
        age_s = NOW_S - s.cached[node].seen_at_s
        was = math.floor(s.cached[node].tokens * power_of_half(age_s / 10.0))
        note = cached(was + change, age_s) if was + change > 0 else None
        if note is None or note.tokens > s.context_tokens:
            return None
        changed[s.id] = Session(
            s.id, s.context_tokens, s.phase, s.turn, None, s.waiting_since_s, {node: note}, s.tool
        )
    sessions = tuple(changed.get(s.id, s) for s in snapshot.sessions)
    return Snapshot(snapshot.now_s, snapshot.nodes, sessions)


def _with_free(free: dict[str, int], pool: list[Session], capacity: int = 310_000) -> Snapshot:
    nodes = tuple(Node(name, capacity) for name in free)
    inside = [resident(f"busy-{name}", name, capacity - tokens) for name, tokens in free.items()]
    return Snapshot(NOW_S, nodes, (*pool, *inside))


def session_177() -> Snapshot:
    """DP admits 7 sessions, 177 among them; short-first spreads six short ones so that 177 fits nowhere."""
    short = [("171", 2_310), ("172", 2_460), ("173", 2_590), ("174", 2_740), ("175", 2_880), ("176", 3_050)]
    pool = [
        Session(name, tokens, "waiting", 4, None, NOW_S - 4.0 + k / 2, {"n1": cached(tokens // 2, 6.0)})
        for k, (name, tokens) in enumerate(short)
    ]
    pool.append(Session("177", 21_400, "waiting", 31, None, NOW_S - 1.0, {"n0": cached(9_800, 10.0)}))
    pool.append(Session("178", 13_900, "waiting", 12, None, NOW_S - 0.5, {"n1": cached(800, 40.0)}))
    return _with_free({"n0": 22_800, "n1": 22_600}, pool)


def two_nodes_trap() -> Snapshot:
    """Each session would take n0 for itself; only together it shows that one of them has to use n1."""
    pool = [
        Session("anna", 9_000, cached={"n0": cached(8_000, 0.0), "n1": cached(7_600, 0.0)}),
        Session("ben", 9_000, cached={"n0": cached(7_900, 0.0)}),
    ]
    return _with_free({"n0": 10_240, "n1": 10_240}, pool)


def starved_large() -> Snapshot:
    """4 x 4,000 and 1 x 9,000 tokens on two nodes of 10,000: nobody admits the large one."""
    pool = [Session(f"small-{k}", 4_000, waiting_since_s=NOW_S - k) for k in range(1, 5)]
    pool.append(Session("large", 9_000, waiting_since_s=NOW_S - 60.0))
    return Snapshot(NOW_S, (Node("n0", 10_000), Node("n1", 10_000)), tuple(pool))


def quantum_hurts() -> Snapshot:
    """Two sessions fill 10,000 tokens exactly; rounded to quanta of 1,024 they need ten of nine."""
    pool = [Session(name, 4_488, cached={"n0": cached(3_000, 5.0)}) for name in ("left", "right")]
    return Snapshot(NOW_S, (Node("n0", 10_000),), tuple(pool))


def replays(count: int = 24) -> list[Snapshot]:
    """Decisions of `tao` on swe-lite, 48 workers on 2 nodes, capacity 0.85 to 1.05 of the live contexts."""
    history = simulate(
        "swe-lite", "tao", 2, 48, tasks=160, seed=1, capacity_tokens=230_000, keep_snapshots=True
    )
    kept: dict[tuple[str, ...], Snapshot] = {}  # the first decision on each composition of the pool
    for decision in history.decisions:
        snapshot = decision.snapshot
        if snapshot and 0.85 <= capacity_over_live(snapshot) <= 1.05:
            kept.setdefault(tuple(s.id for s in snapshot.pool), snapshot)
    # Two thirds with a crowded pool, the rest as they come, both evenly over the run.
    crowded = [s for s in kept.values() if len(s.pool) >= 8 and plan(s).deferred]
    other = [s for s in kept.values() if len(s.pool) < 8]
    chosen = _evenly(crowded, 2 * count // 3) + _evenly(other, count - 2 * count // 3)
    return sorted(chosen, key=lambda s: s.now_s)


def capacity_over_live(snapshot: Snapshot) -> float:
    """Capacity of all nodes over the contexts of all sessions, at this moment."""
    return sum(n.capacity_tokens for n in snapshot.nodes) / sum(s.context_tokens for s in snapshot.sessions)


def _evenly(items: list[Snapshot], count: int) -> list[Snapshot]:
    return [items[(2 * k + 1) * len(items) // (2 * count)] for k in range(count)]


def write(name: str, snapshot: Snapshot) -> None:
    """One session a line, so that files can be read and compared."""
    assert all(note.tokens <= s.context_tokens for s in snapshot.sessions for note in s.cached.values())
    data = codec.to_dict(snapshot)
    rows = ",\n  ".join(json.dumps(row) for row in data.pop("sessions"))
    head = json.dumps(data)[:-1]
    (OUT / f"{name}.json").write_text(f'{head}, "sessions": [\n  {rows}\n]}}\n', "utf-8")
    values = [f"{p} {tuple(plan(snapshot, p).value)}" for p in ("dp", "short_first", "bfd", "worst_fit")]
    ratio = capacity_over_live(snapshot)
    print(f"{name:22} pool {len(snapshot.pool):2}  C/live {ratio:.2f}  {'  '.join(values)}")


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for make in (dp_beats_short_first, session_177, two_nodes_trap, starved_large, quantum_hurts):
        write(make.__name__, make())
    for k, snapshot in enumerate(replays(), 1):
        write(f"replay_{k:02}", snapshot)
