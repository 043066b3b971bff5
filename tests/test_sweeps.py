"""Sweeps over grids: what a table holds, and that it is the same whatever carries out the runs."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from tao import executors, jobs
from tao.executors import CHUNK, _play
from tao.jobs import Arm
from tao.metrics import METRICS, measure
from tao.model import InputError, Params
from tao.policies import Decision
from tao.profiles import PROFILES
from tao.simulator import simulate
from tao.sweeps import sweep
from tao.traces import open_workload
from tao.workloads import WORKLOADS

GRID = {"policy": ["tao", "sticky"], "workers": [2, 4], "half_life_s": [5.0, 20.0], "seed": range(3)}
SMALL = {"workload": "swe-lite", "tasks": 4, "nodes": 2}


class RoundRobin:
    """A policy of one's own that can be imported; it counts what it routed."""

    period_s, gap_s = None, 0.0

    def __init__(self, params):
        self.routed = 0

    def route(self, view, i):
        self.routed += 1
        return (self.routed - 1) % len(view.node_ids)

    def on_finish(self, view, i):
        pass

    def tick(self, view):
        return Decision()


class Fatal(RoundRobin):
    """A policy that kills whatever runs it, but not the process of the tests."""

    def route(self, view, i):
        if os.getpid() != int(os.environ["TESTS_PID"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().route(view, i)


@pytest.fixture(scope="module")
def serial():
    """The table that all executors have to give."""
    return sweep(GRID, **SMALL)


# --- what a table holds -------------------------------------------------------------------------


def test_a_table_has_a_row_per_point_in_the_order_of_the_product(serial):
    assert list(serial.columns) == [*GRID, "sessions", *METRICS]
    assert [tuple(row) for row in serial[list(GRID)].itertuples(index=False)] == list(product(*GRID.values()))
    assert (serial["sessions"] == 4).all()
    assert {str(kind) for kind in serial.dtypes[list(METRICS)]} == {"float64"}


def test_a_row_holds_what_simulate_and_measure_give(serial):
    for row in serial.iloc[[0, 7, 13, 23]].to_dict("records"):
        names = {name: row[name] for name in ("policy", "workers", "seed")}
        params = Params(half_life_s=row["half_life_s"])
        alone = measure(simulate(**SMALL, **names, params=params))
        assert [row[name] for name in METRICS] == pytest.approx(
            [np.nan if x is None else x for x in alone.values()], nan_ok=True, rel=0
        )


def test_everything_may_vary():
    work = open_workload("terminal-bench", 5, 3)
    table = sweep(
        {
            "workload": ["swe-lite", work],
            "profile": ["qwen3-32b-2xh100", PROFILES["qwen3-32b-2xh100"]],
            "policy": ["sticky", RoundRobin, Arm("held", "tao", Params(plan_cost_s=0.2))],
            "tool_servers": [None, 1],
        },
        tasks=3,
        nodes=1,
        workers=2,
    )
    assert table["workload"].unique().tolist() == ["swe-lite", "terminal-bench"]
    assert table["policy"].unique().tolist() == ["sticky", "RoundRobin", "held"]
    assert (table["seed"] == 0).all()
    latency = table.groupby(["profile", "tool_servers"], dropna=False)["task_latency_s"].mean()
    assert latency.nunique() == 2  # a profile by name and itself are the same
    waits = table.groupby("policy")["pool_wait_s"].mean()
    assert waits["sticky"] == 0.0 < waits["held"]


def test_sessions_are_drawn_as_the_point_says():
    table = sweep({"extra_delay_s": [(0, 0), (9, 9)], "output_scale": [0.65, 2.0]}, policy="sticky", **SMALL)
    plain, longer, later, both = table["task_latency_s"]
    assert plain < min(longer, later) < max(longer, later) < both
    table = sweep({"rate_per_s": [0.001, 10.0]}, arrivals="poisson", policy="sticky", **SMALL)
    assert table["ttft_s"].is_monotonic_increasing


def test_sessions_that_outgrow_a_node_are_left_out_point_by_point():
    peaks = sorted(task.peak_tokens for task in open_workload("swe-lite", 0, 4).tasks)
    table = sweep({"capacity_tokens": peaks}, reserve_tokens=0, **SMALL)
    assert table["sessions"].tolist() == [1, 2, 3, 4]


def test_seeds_is_short_for_the_seeds_from_0():
    short = sweep({"workers": [1, 2]}, seeds=3, **SMALL)
    assert_frame_equal(short, sweep({"workers": [1, 2], "seed": [0, 1, 2]}, **SMALL))
    assert_frame_equal(short, sweep({"workers": [1, 2], "seeds": range(3)}, **SMALL))
    assert sweep({}, seeds=[7], **SMALL)["seed"].tolist() == [7]
    assert sweep({}, **SMALL)["seed"].tolist() == [0]


def test_numbers_of_numpy_are_numbers():
    grid = {"workers": np.arange(1, 3), "half_life_s": np.array([5.0]), "decay": np.array([True, False])}
    assert sweep(grid, **SMALL).shape[0] == 4


def test_a_policy_that_is_an_object_begins_each_run_as_it_was_given():
    mine = RoundRobin(None)
    table = sweep({"policy": [mine, RoundRobin], "seed": [0, 0]}, **SMALL)
    assert table["ttft_s"].nunique() == 1
    assert mine.routed == 0


@pytest.mark.parametrize(
    ("grid", "base", "message"),
    [
        ({"wrokers": [1]}, {}, "there is no 'wrokers' to vary; it must be one of workload, seed"),
        ({}, {"half_life": 3}, "there is no 'half_life' to vary"),
        ({"workers": 4}, {}, "workers in the grid is 4; it must be a list of values"),
        ({"policy": "tao"}, {}, "policy in the grid is 'tao'; it must be a list of values"),
        ({"policy": ["rr"]}, {}, "policy is 'rr'; it must be one of tao"),
        ({"workers": []}, {}, "workers in the grid has no values"),
        ({"nodes": [1]}, {}, "nodes is in the grid and given for all points; give it once"),
        ({"seed": [1]}, {"seeds": 3}, "both seed and seeds are given"),
        ([("workers", [1])], {}, "grid is .*; it must be a dict of names and lists of values"),
        ({"workers": [1, 0], "seed": [3]}, {}, r"workers is 0; .* \(at workers=0, seed=3\)$"),
        ({"decay": [True]}, {"params": {"decay": 2}}, "params is {.decay.: 2}; it must be a Params"),
        ({"half_life_s": [0.0]}, {}, r"half_life_s is 0.0; .* \(at half_life_s=0.0\)$"),
        ({"output_scale": [-1.0]}, {"seed": 3}, r"output_scale is -1.0; .* \(at output_scale=-1.0\)$"),
        ({"capacity_tokens": [10]}, {}, r"none of 4 sessions fits: .* \(at capacity_tokens=10\)$"),
    ],
)  # fmt: skip
def test_unusable_grids_are_refused_and_the_point_is_named(grid, base, message):
    with pytest.raises(InputError, match=message):
        sweep(grid, **({k: v for k, v in SMALL.items() if k not in grid or k == "nodes"} | base))


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = tmp_path / "runs.csv.gz"
    for tokens in (100, 2_000):
        lines = ["session,turn,context_tokens,output_tokens", f"a,0,{tokens},5"]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        table = sweep({"workload": [path]}, policy="sticky", nodes=1)
        assert table["workload"].tolist() == [str(path)]
        (used,) = {t.prompt_tokens for t in simulate(path, "sticky", 1).turns}
        assert used == tokens
        alone = measure(simulate(path, "sticky", 1))
        assert table["ttft_s"].tolist() == [alone["ttft_s"]]


def test_a_workload_is_drawn_once_however_its_runs_are_ordered(monkeypatch):
    drawn = []

    def counted(seed, tasks, **how):
        drawn.append(seed)
        return swe_lite(seed=seed, tasks=tasks, **how)

    swe_lite = WORKLOADS["swe-lite"]
    monkeypatch.setitem(WORKLOADS, "swe-lite", counted)
    grid = {"policy": ["sticky", "llmd"], "capacity_tokens": [60_000, 90_000], "seed": range(9)}
    sweep(grid, **SMALL)
    assert drawn == list(range(9))


# --- who carries it out -------------------------------------------------------------------------


def test_processes_and_threads_give_the_table_of_a_single_core(serial):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert_frame_equal(sweep(GRID, executor=pool, **SMALL), serial, check_exact=True)
        mine = {"policy": [RoundRobin]}  # it can be imported there
        assert_frame_equal(sweep(mine, executor=pool, **SMALL), sweep(mine, **SMALL), check_exact=True)
    with ThreadPoolExecutor(2) as pool:
        assert_frame_equal(sweep(GRID, executor=pool, **SMALL), serial, check_exact=True)


class Killing:
    """Progress that kills a worker as soon as some runs are done."""

    def __init__(self):
        self.shares, self.killed = [], 0

    def __call__(self, share):
        self.shares.append(share)
        if not self.killed:
            self.killed = multiprocessing.active_children()[0].pid
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.parametrize("own", [True, False])
def test_a_worker_may_die_and_nothing_is_lost(own):
    grid = {"workers": [1, 2, 3, 4], "seed": range(2 * CHUNK)}
    expected = sweep(grid, policy="sticky", **SMALL)
    progress = Killing()
    if own:
        table = sweep(grid, executor=2, progress=progress, policy="sticky", **SMALL)
    else:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            table = sweep(grid, executor=pool, progress=progress, policy="sticky", **SMALL)
    assert_frame_equal(table, expected, check_exact=True)
    assert progress.killed
    assert progress.shares == sorted(progress.shares)
    assert progress.shares[-1] == 1.0


def test_runs_that_kill_every_worker_end_with_a_message(monkeypatch):
    monkeypatch.setenv("TESTS_PID", str(os.getpid()))
    monkeypatch.setattr(executors, "POOLS", 1)
    with pytest.raises(InputError, match=r"died before finishing any run \(the next one: policy='Fatal'\)"):
        sweep({"policy": [Fatal]}, executor=1, **SMALL)


class Recording(ThreadPoolExecutor):
    """A pool that remembers what it was given."""

    def __init__(self):
        super().__init__(1)
        self.futures: list[Future] = []

    def submit(self, *call, **named):
        self.futures.append(super().submit(*call, **named))
        return self.futures[-1]


@pytest.mark.parametrize("reason", ["Ctrl-C", "an unusable point"])
def test_what_has_not_begun_is_cancelled(reason):
    def interrupt(share):
        raise KeyboardInterrupt

    with Recording() as pool:
        if reason == "Ctrl-C":
            with pytest.raises(KeyboardInterrupt):
                sweep({"seed": range(20)}, executor=pool, progress=interrupt, **SMALL)
        else:
            with pytest.raises(InputError, match=r"none of 4 sessions fits.* \(at capacity_tokens=10, seed="):
                sweep({"capacity_tokens": [10], "seed": range(20)}, executor=pool, **SMALL)
        assert sum(future.cancelled() for future in pool.futures) >= 10
        assert pool.submit(len, ()).result() == 0  # the pool is somebody else's and lives on


def test_a_policy_from_a_notebook_runs_in_threads_but_is_refused_by_processes(monkeypatch):
    class Local(RoundRobin):
        pass

    said = "Local.* cannot be sent to another process .* define it in a file and import it, or use threads"
    with pytest.raises(InputError, match=said):
        sweep({"policy": [Local]}, executor=1, **SMALL)
    with ThreadPoolExecutor(1) as pool:
        assert len(sweep({"policy": [Local]}, executor=pool, **SMALL)) == 1
    unknown = b"cnowhere\nLocal\n."  # as it comes to a worker that does not know the class
    with pytest.raises(InputError, match="a policy cannot be sent to another process"):
        _play(unknown)


def test_workers_keep_a_few_workloads_only():
    for cached in (jobs._sessions, jobs._fitting):
        assert cached.cache_info().maxsize == 4


@pytest.mark.long
def test_a_local_dask_cluster_gives_the_same_table(serial):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert_frame_equal(sweep(GRID, executor=client.get_executor(), **SMALL), serial, check_exact=True)


@pytest.mark.long
def test_a_sweep_of_480_runs_takes_half_a_minute_on_two_cores():
    grid = {
        "policy": ["tao", "thunderagent", "sticky", "llmd", "dynamo_kv"],
        "workers": range(16, 112, 8),
        "seed": range(8),
    }
    begin = os.times()
    table = sweep(grid, executor=2, workload="swe-lite")
    end = os.times()
    assert isinstance(table, pd.DataFrame)
    assert len(table) == 480
    used = end.user + end.children_user - begin.user - begin.children_user
    assert used < 60  # seconds of both cores together; 41 on a machine of 2024
