"""Write data/snapshots/recorded_*.jsonl.gz, what planners are timed on. Run: python data/make_recorded.py

Decisions of the `tao` policy in our simulator, evenly over the runs and whatever they are like, so that a
mean over them is one over the decisions of a cluster at the knee. Running this again writes the same files.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tao import codec
from tao.model import Params, Session, Snapshot
from tao.simulator import simulate

OUT = Path(__file__).parent / "snapshots"
TOKENS_PER_WORKER = 9_500  # ours: KV capacity that puts swe-lite at about 0.9 of its live contexts
PLANS_PER_S = 0.71  # TAO paper: at most
SEEDS = 3
RUNS = {  # (workers, nodes): profile of a node, snapshots to keep; the paper's clusters, and half of one
    (32, 2): ("deepseek-v4-flash-4xh100", 100),
    (64, 2): ("deepseek-v4-flash-4xh100", 100),
    (96, 4): ("qwen3-32b-2xh100", 100),
    (128, 4): ("qwen3-32b-2xh100", 100),
    (160, 4): ("qwen3-32b-2xh100", 300),
}
LEAST, MOST = 0.85, 1.05  # capacity over live contexts
PLACES = 3  # of seconds, to keep files small


def decisions(workers: int, nodes: int, profile: str, count: int) -> list[Snapshot]:
    """`count` decisions at the knee, evenly over the runs."""
    found = []
    for seed in range(SEEDS):
        history = simulate(
            *("swe-lite", "tao", nodes, workers),
            tasks=3 * workers,
            seed=seed,
            profile=profile,
            capacity_tokens=TOKENS_PER_WORKER * workers // nodes,
            params=Params(replan_gap_s=1 / PLANS_PER_S),
            keep_snapshots=True,
        )
        asked = (d.snapshot for d in history.decisions if d.planned and d.snapshot)
        found += [s for s in asked if len(s.sessions) == workers and usable(s)]
    assert len(found) >= count
    return [found[(2 * k + 1) * len(found) // (2 * count)] for k in range(count)]


def usable(snapshot: Snapshot) -> bool:
    """Whether capacity is near the live contexts and some session of the pool fits somewhere."""
    live = sum(s.context_tokens for s in snapshot.sessions)
    room = max(snapshot.free_tokens(Params()).values())
    fits = any(snapshot.demand_tokens(s, Params()) <= room for s in snapshot.pool)
    return fits and LEAST <= sum(n.capacity_tokens for n in snapshot.nodes) / live <= MOST


def trimmed(snapshot: Snapshot) -> dict[str, Any]:
    """What planning needs: of residents only their size and place, of all times whole milliseconds."""
    data = codec.to_dict(snapshot)
    data["sessions"] = [_trimmed(s, row) for s, row in zip(snapshot.sessions, data["sessions"], strict=True)]
    return _rounded(data)


def _trimmed(session: Session, row: dict[str, Any]) -> dict[str, Any]:
    row = {name: x for name, x in row.items() if x not in (None, {})}
    if session.resident_on is not None:
        return {name: row[name] for name in ("id", "context_tokens", "resident_on")}
    if session.tool is not None:
        row["tool"] = {name: x for name, x in row["tool"].items() if x is not None}
    return row


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _rounded(y) for name, y in x.items()}
    if isinstance(x, list):
        return [_rounded(y) for y in x]
    return round(x, PLACES) if isinstance(x, float) else x


if __name__ == "__main__":
    for (workers, nodes), (profile, count) in RUNS.items():
        kept = [trimmed(s) for s in decisions(workers, nodes, profile, count)]
        text = "".join(json.dumps(data, separators=(",", ":")) + "\n" for data in kept)
        packed = gzip.compress(text.encode(), 9, mtime=0)
        (OUT / f"recorded_{workers}x{nodes}.jsonl.gz").write_bytes(packed)
        pools = [sum("resident_on" not in s for s in data["sessions"]) for data in kept]
        print(
            f"{workers} workers on {nodes} nodes: {count} snapshots, {len(packed):,} bytes, "
            f"pools of {min(pools)} to {max(pools)}, mean {sum(pools) / count:.1f}"
        )
