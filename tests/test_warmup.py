"""After `ready`, what the lessons do finds its kernels: no signature is added, compiled or loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tao

WORK = """
import sys
sys.path.insert(0, ROOT)
import tao
from tao import _jit


def signatures():
    return {f"{k.__module__}.{k.__name__}": len(k.signatures) for k in _jit.KERNELS}


tao.ready(ASKED)
before = signatures()
WORK
print({name: count for name, count in signatures().items() if count > before[name]})
"""

PLANNERS = """
snapshot = tao.load("session_177")
for planner in tao.PLANNERS:
    if planner != "exhaustive":
        tao.explain.certificate(snapshot, tao.plan(snapshot, planner)).words
"""

SIMULATOR = """
tao.simulate("swe-lite", "thunderagent", workers=8, tasks=8)
settings = {"nodes": 1, "workers": 6, "tasks": 6, "capacity_tokens": 40_000, "keep_snapshots": True}
history = tao.simulate("swe-lite", "tao", **settings)
kept = [decision.snapshot for decision in history.decisions if decision.snapshot]
assert any(session.tool for snapshot in kept for session in snapshot.sessions)
"""

LAB = """
from tao import lab, readiness
from tao.workloads import WORKLOADS
calls = lab.ToolCalls.of_workload(WORKLOADS["swe-lite"](seed=0, tasks=4))
for statistic in ("mean", "median", "survival"):
    lab.decisions(calls, tao.Params(statistic=statistic))
readiness.timeline(tao.ToolCall("bash", 0.0, command="sleep 4", expected_s=6.0), tao.Params())
"""


@pytest.mark.parametrize(
    ("asked", "work"),
    [("", PLANNERS), ("simulator=True", SIMULATOR), ("lab=True", LAB)],
    ids=["planners", "simulator", "lab"],
)
def test_nothing_is_left_to_compile(asked, work):
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("NUMBA_DISABLE_JIT=1: nothing is compiled")
    root = Path(tao.__file__).parents[1]
    code = WORK.replace("ASKED", asked).replace("ROOT", repr(str(root)), 1).replace("WORK", work, 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, more = done.stdout.splitlines()
    assert said.startswith("tao is ready: its kernels ")
    assert more == "{}"
