"""Ten agents on two real servers under several policies, again and again: run it as a program.

    python tests/real_load.py URL URL [--words 540] [--repeats 5] [--policies tao,sticky,gate:3]

The policies rotate, so that none always comes first; every run has caches of its own. Times are measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys

import numpy as np

from tao.live import Ask, Client, Sleep, run
from tao.metrics import measure
from tao.model import Params
from tao.policies import HOLD, Decision
from tao.profiles import PS_PER_S

WORDS = [
    "open",
    "read",
    "file",
    "error",
    "test",
    "path",
    "line",
    "def",
    "class",
    "return",
    "import",
    "value",
    "list",
    "dict",
    "str",
    "int",
    "none",
    "true",
    "false",
    "build",
    "run",
    "pass",
    "fail",
]
SESSIONS, TURNS, ANSWER = 10, 7, 16


class Gate:
    """Each session keeps to its node; at most so many are let in there at a time."""

    period_s, gap_s = None, 0.0

    def __init__(self, most):
        self.most = most

    def route(self, view, i):
        b = i % len(view.node_ids)
        return b if view.residents[b] < self.most else HOLD

    def on_finish(self, view, i):
        pass

    def tick(self, view):
        placed, room = [], self.most - view.residents
        for i in sorted(view.pool, key=lambda i: view.waiting_since_ps[i]):
            b = int(i) % len(view.node_ids)
            if room[b] > 0:
                placed.append((int(i), b))
                room[b] -= 1
        return Decision(placed)


def agent(k, words):
    """A conversation that grows by so many words a turn, with tools of 0.2 to 1.2 s."""

    def script():
        rng = random.Random(1000 * words + k)
        messages = [{"role": "system", "content": f"agent {k}"}]
        for _ in range(TURNS):
            text = " ".join(rng.choice(WORDS) for _ in range(words))
            messages = [*messages, {"role": "user", "content": text}]
            options = {"max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
            reply = yield Ask(messages, options=options)
            messages = [*messages, {"role": "assistant", "content": reply.text}]
            yield Sleep(rng.uniform(0.2, 1.2), "bash")

    return script


def one(clients, policy, words, params):
    """The figures of one run."""
    made = Gate(int(policy.partition(":")[2])) if policy.startswith("gate") else policy
    agents = {f"agent-{k}": agent(k, words) for k in range(SESSIONS)}
    history = run(clients, agents, made, params=params).wait(600)
    if history.failed:
        raise SystemExit(f"sessions failed: {history.failed}")
    sent = (history.column("first_token_ps") - history.column("submitted_ps")) / PS_PER_S
    values = measure(history)
    return {
        "policy": policy,
        "wall_s": history.end_ps / PS_PER_S,
        "job_s": values["task_latency_s"],
        "ttft_sent_s": float(sent.mean()),
        "ttft_p95_s": float(np.quantile(sent, 0.95)),
        "ttft_s": values["ttft_s"],
        "hit": values["prefix_hit_rate"],
        "pauses": values["pauses"],
        "prompt_tokens": int(history.column("prompt_tokens").sum()),
        "lag_s": history.settings["loop_lag_s"],
    }


def main(argv):
    """Print a line of JSON per run, then medians with the least and the most."""
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--words", type=int, default=540)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--policies", default="tao,sticky,gate:3,gate:4")
    parser.add_argument("--params", default="{}", help="JSON of tao.Params")
    args = parser.parse_args(argv)
    policies, rows = args.policies.split(","), []
    params = Params(**json.loads(args.params))
    clients = [Client(url) for url in args.urls]
    for repeat in range(args.repeats):
        for k in range(len(policies)):
            rows.append(one(clients, policies[(k + repeat) % len(policies)], args.words, params))
            print(json.dumps(rows[-1]), flush=True)
    for policy in policies:
        mine = [row for row in rows if row["policy"] == policy]
        cells = []
        for name in ("wall_s", "job_s", "ttft_sent_s", "ttft_s", "hit"):
            values = [row[name] for row in mine]
            cells.append(f"{name} {statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]")
        print(f"{policy:8} " + "  ".join(cells))
    for client in clients:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
