"""What `tao bench planner` counts, and that the solvers beside the planners solve the same problem."""

from __future__ import annotations

import json
import re
import sys
from functools import partial

import pytest

import tao
from tao import bench, cli, library, planners
from tao.arguments import BENCH_KEYS
from tao.bench import browser, importing, notebooks, solvers
from tao.bench import planner as timings
from tao.families import COLD_TOKENS
from tao.model import InputError, Node, Params, Session, Snapshot, Value
from tao.workloads import snapshots

FAMILIES = ("unique", "replicated", "shared", "cold")


@pytest.fixture(params=solvers.SOLVERS)
def solver(request):
    if reason := solvers.missing(request.param):
        pytest.skip(reason)
    return request.param


def small(family, seed):
    """Up to 7 sessions on 2 nodes, or up to 5 on 3, most of which fit somewhere and not all everywhere."""
    n, nodes = (3 + seed % 5, 2) if seed % 2 else (3 + seed % 3, 3)
    return snapshots(family, n, nodes, seed, room_tokens=(25_000, 60_000)[seed % 2])


@pytest.mark.parametrize("family", FAMILIES)
def test_solvers_find_what_trying_everything_finds(solver, family):
    deferred = 0
    for seed in range(25):
        problem = planners.case(small(family, seed), Params())
        best = problem.total(planners.exhaustive(problem).choice)
        found = solvers.solve(solver, problem)
        assert found.value == found.bound == best == problem.total(found.choice)
        assert found.proven == 3
        used = [0] * len(problem.nodes)
        for i, b in enumerate(found.choice.tolist()):
            assert b < 0 or b in problem.prefer[i]
            used[b] += problem.demand[i] if b >= 0 else 0
        assert (problem.free >= used).all()
        deferred += int((found.choice < 0).sum())
    assert deferred > 10


def test_solvers_of_nothing_and_of_what_fits_nowhere(solver):
    for sessions in ((), (Session("a", 5_000),)):
        problem = planners.case(Snapshot(0.0, (Node("n", 1_000),), sessions), Params())
        found = solvers.solve(solver, problem)
        assert (found.value, found.bound, found.proven) == (Value(0, 0, 0), Value(0, 0, 0), 3)
        assert found.choice.tolist() == [-1] * len(sessions)


def test_a_solver_out_of_time_still_bounds_every_plan(solver):
    problem = planners.case(snapshots("cold", 30, 2), Params())
    found = solvers.solve(solver, problem, 0.3)
    assert found.proven < 3
    assert found.bound > found.value
    for name in ("bfd", "short_first"):
        assert found.bound >= problem.total(planners.PLANNERS[name](problem).choice)
    none = solvers.solve(solver, problem, 1e-9)
    assert none.bound >= found.value
    assert none.proven == 0


def test_solvers_print_nothing(solver, capfd):
    solvers.solve(solver, planners.case(snapshots("unique", 20, 2), Params()))
    assert capfd.readouterr() == ("", "")


def test_an_unknown_or_absent_solver_is_refused(monkeypatch):
    problem = planners.case(snapshots("unique", 3, 2), Params())
    with pytest.raises(InputError, match="solver is 'gurobi'; it must be one of cp-sat, highs"):
        solvers.solve("gurobi", problem)
    monkeypatch.setitem(solvers.SOLVERS, "highs", ("no_such_package", solvers._Highs))
    with pytest.raises(InputError, match="highs is not installed here; pip install no_such_package, or"):
        solvers.solve("highs", problem)
    few = bench.costs([bench.Size("unique", 4, 2)], ["bfd", "highs"], 1)
    assert [row["planner"] for row in few] == ["bfd", "highs"]
    assert "not installed" in few[1]["note"]


# Rows


@pytest.fixture
def tiny(monkeypatch):
    """A bench of small sizes, and only of what is quick."""
    monkeypatch.setattr(timings, "_SHORT", (bench.Size("cold", 5, 2, COLD_TOKENS),))
    monkeypatch.setitem(timings._SIZES, "unique", ((4, 2), (6, 2)))


def test_rows_say_what_the_plans_say():
    size = bench.Size("replicated", 12, 3, 60_000)
    (dp,) = bench.costs([size], ["dp"], 4)
    plans = [tao.plan(snapshots("replicated", 12, 3, seed), "dp") for seed in range(4)]
    assert (dp["family"], dp["n"], dp["nodes"], dp["snapshots"]) == ("replicated", 12, 3, 4)
    assert dp["states_worst"] == max(p.states for p in plans)
    assert dp["proven"] == sum(p.gap == (0, 0, 0) for p in plans) / 4
    gaps = sorted(p.gap.credit / p.bound.credit for p in plans)
    assert dp["gap_median"] == pytest.approx((gaps[1] + gaps[2]) / 2)
    assert 0 < dp["kernel_median_ms"] <= dp["kernel_p95_ms"] <= dp["kernel_worst_ms"]
    assert dp["plan_worst_ms"] > 0
    (beyond,) = bench.costs([bench.Size("shared", 1_000, 16, 60_000)], ["dp"], 1)
    assert beyond["fallbacks"] == 1


def test_recorded_rows_are_an_even_choice_and_solvers_take_part():
    size = bench.Size("recorded", 160, 4)
    assert timings._seeds(size, 3, False) == [50, 150, 250]
    assert timings._seeds(size, None, False) == list(range(300))
    assert timings._seeds(bench.Size("unique", 160, 4), 3, False) == [0, 1, 2]
    if not solvers.missing("cp-sat"):
        (row,) = bench.costs([size], ["cp-sat"], 3)
        assert (row["proven"], row["gap_p95"]) == (1, 0)


def run(capsys, *argv):
    status = cli.main(["bench", "planner", *argv])
    return status, *capsys.readouterr()


def test_json_has_the_documented_keys(capsys, tiny):
    status, out, err = run(capsys, "--family", "unique", "--count", "2", "--json")
    rows = json.loads(out)
    assert (status, err) == (0, "")
    assert [(r["n"], r["room_tokens"]) for r in rows if r["planner"] == "bfd"] == [
        *((4, room) for room in timings.ROOMS),
        *((6, room) for room in timings.ROOMS),
    ]
    shown = {row["planner"] for row in rows}
    assert shown == {*timings.TIMED, *solvers.SOLVERS}
    own = BENCH_KEYS.partition("keys of --json for 'import'")[0]
    lines = [line for line in own.splitlines() if re.match("  [a-z]", line)]
    documented = {key for line in lines for key in re.split("  +", line.strip())[0].split(", ")}
    assert {key for row in rows if "note" not in row for key in row} == documented - {"note"}


def test_the_short_bench_ends_with_the_yardstick(capsys, tiny):
    status, out, _ = run(capsys, "--count", "1")
    assert status == 0
    table = [line for line in out.splitlines() if line and not line.startswith("note:")]
    assert table[-1].split()[:2] == ["crowded", "yardstick"]
    assert "kernel ms" in out
    assert "recorded" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["planner", "--family", "uniq"], "family is 'uniq'; it must be one of unique, replicated, shared"),
        (["planner", "--count", "0"], "count is 0; it must be a whole number from 1"),
        (["planner", "--limit-s", "-1"], "limit_s is -1.0; it must be a finite number above 0"),
        (["simulator", "--family", "cold"], "--family is for 'bench planner'; drop it"),
    ],
)
def test_a_mistake_is_told_in_one_line(capsys, argv, said):
    assert cli.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_every_family_has_sizes():
    for family in tao.families.FAMILIES:
        chosen = bench.planner.sizes(family)
        assert chosen
        assert {size.family for size in chosen} == {family}
    assert {(s.n, s.nodes) for s in bench.planner.sizes("stress")} == set(bench.SCALING)


def test_progress_grows_to_the_end():
    shares: list[float] = []
    ask = partial(bench.costs, [bench.Size("unique", 4, 2), bench.Size("cold", 4, 2)], ["bfd", "fifo"], 1)
    ask(progress=shares.append)
    assert shares == [0, 0.25, 0.5, 0.75]


def test_the_import_bench_tells_what_it_documents():
    (row,) = importing.importing(mb=1)
    own = BENCH_KEYS.partition("keys of --json for 'import'")[2].partition("keys of --json")[0]
    lines = [line for line in own.splitlines() if re.match("  [a-z]", line)]
    documented = {key for line in lines for key in re.split("  +", line.strip())[0].split(", ")}
    assert set(row) == documented | {"what"}
    assert row["turns"] == 2_000
    assert row["times_parse"] == row["load_s"] / row["parse_s"]
    assert row["peak_mb"] >= row["base_mb"] > 1
    assert set(importing.cells(row)) == set(row)


@pytest.mark.parametrize(
    ("module", "path", "said"),
    [
        ("playwright.sync_api", "/usr/bin/chromium", "playwright is not installed here; pip install"),
        ("jupyterlab", "/usr/bin/chromium", "jupyterlab is not installed here; pip install"),
        (None, None, "no Chromium here"),
    ],
)
def test_what_a_browser_lacks_is_named_in_one_line(module, path, said, monkeypatch, capsys):
    monkeypatch.setattr(browser.shutil, "which", lambda name: path)
    if module:
        monkeypatch.setitem(sys.modules, module, None)
    else:
        for name in browser.NEEDED:
            monkeypatch.setitem(sys.modules, name, sys)
    assert cli.main(["bench", "notebooks"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_every_way_of_the_notebook_bench_leads_to_a_notebook():
    for way in notebooks.WAYS:
        assert (library.folder("notebooks") / way.notebook).is_file()
        assert len(way.presses) >= 2
        assert len(set(way.presses)) == len(way.presses)
