"""The bench of live runs counts what is there; how long that takes is never asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tao import cli
from tao.checks import InputError
from tao.live import bench, loop
from tao.live.double.app import STAMP, stamped

SMALL = [bench.Load("4 streams", 4, 100), bench.Load("4 streams, busy", 4, 50, in_phase=True, busy=True)]
KEYS = {"what", "lag_p50_ms", "lag_p95_ms", "lag_max_ms", "worst_p95_ms", "step_ms", "client_cores"}
KEYS |= {"bare_lag_p95_ms", "bare_client_cores"}


@pytest.fixture
def short(monkeypatch):
    for name, value in {"REPEATS": 1, "WINDOW_S": 0.4, "OPEN": 40, "SEATS": 4, "LOADS": SMALL}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "start_up", lambda: {"what": "start"})
    before = len(loop._users)
    yield
    assert len(loop._users) <= before  # fewer, where what another test has left ends meanwhile


@pytest.mark.long
def test_every_row_counts_what_was_there(short, capsys):
    assert cli.main(["bench", "live", "--json"]) == 0
    *lags, many, _ = json.loads(capsys.readouterr().out)
    for row, load in zip(lags, SMALL, strict=True):
        assert set(row) - {"server_cores", "other_cores"} == KEYS
        assert row["what"] == load.what
        assert 0 < row["lag_p50_ms"] <= row["lag_p95_ms"] <= row["lag_max_ms"]
        assert row["step_ms"] > 20  # no token comes twice
    assert (many["running"], many["queued"], many["ended"]) == (16, 24, 40)
    assert many["until_open_s"] <= many["until_ended_s"]


def test_memory_is_that_of_both_processes(short):
    if not os.path.exists("/proc/self/statm"):  # noqa: PTH110
        pytest.skip("memory is read from /proc")
    row = bench.memory(0.05, streams=4)
    assert row["turns"] >= 4
    assert 20 < row["client_mb"] < 2000
    assert 20 < row["server_mb"] < 2000


def test_a_stamp_is_the_time_at_which_a_part_is_sent():
    for part in (STAMP, b"x" + STAMP + b"y", STAMP * 2):
        before = time.monotonic()
        told = [float(stamped(part).strip(b"xy")[k:][:20]) for k in (0, 20)[: part.count(STAMP)]]
        assert all(before - 1e-6 <= at <= time.monotonic() + 1e-6 for at in told)
    lags = bench.Lags()
    lags.take(1, stamped(STAMP))
    assert (len(lags.ms), lags.begun) == (0, {1})  # it was not on
    lags.on = True
    lags.take(2, "x" + stamped(STAMP).decode())
    assert 0 <= lags.ms[0] < 10_000


LIMITED = """
import resource
from tao.live import bench
resource.setrlimit(resource.RLIMIT_NOFILE, (64, HARD))
try:
    bench.allow_files(1000)
finally:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_too_few_files_are_explained_before_anything_starts():
    pytest.importorskip("resource")
    run = lambda hard: subprocess.run(  # noqa: E731
        [sys.executable, "-c", LIMITED.replace("HARD", hard)], capture_output=True, text=True, check=False
    )
    assert run("2000").stdout == "1100\n"
    few = run("200")
    assert few.stdout == "64\n"
    assert "1,000 streams need 1,100 open files and this process may have 200" in few.stderr
    assert "ulimit -n 1100" in few.stderr


@pytest.mark.parametrize("words", ["planner --minutes 1", "live --family cold", "live --minutes -1"])
def test_options_that_do_not_fit_are_refused(words, capsys):
    assert cli.main(["bench", *words.split()]) == 2
    assert "tao: error: " in capsys.readouterr().err


def test_what_does_not_begin_is_given_up():
    with pytest.raises(InputError, match="did not begin"):
        bench._until(lambda: False, within_s=0)
