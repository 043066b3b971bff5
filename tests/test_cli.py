"""The command line as a user meets it: what it prints, and one clear line on every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tao
from tao import cli, codec
from tao.cli import main
from tao.metrics import METRICS
from tao.model import Node, Session, Snapshot
from tao.planners import PLANNERS


def run(capsys, *argv):
    try:
        status = main(argv)
    except SystemExit as e:  # argparse's own way out
        status = e.code
    out = capsys.readouterr()
    return status, out.out, out.err


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"tao {tao.__version__}\n", "")


def test_plan_shows_planners_side_by_side_with_reasons(capsys):
    status, out, err = run(capsys, "plan", "dp_beats_short_first", "--planner", "dp", "short_first")
    assert (status, err) == (0, "")
    assert "16,791" in out
    assert "13,624" in out
    assert "constructed to match the reported totals" in out
    plan = tao.plan(tao.load("dp_beats_short_first"))
    for p in plan.placements:
        assert f"+ {p.session} on {p.node}: credit" in out
    for s in plan.deferred:
        assert f"- {s}: it needs" in out


def test_plan_json_has_the_documented_keys(capsys):
    status, out, _ = run(capsys, "plan", "session_177", "--json", "--planner", *PLANNERS)
    rows = json.loads(out)
    assert status == 0
    assert [row["planner"] for row in rows] == list(PLANNERS)
    keys = "planner problem exact reason credit ready tokens states bound gap kernel_ms admitted deferred"
    assert all(list(row) == keys.split() for row in rows)
    _, text, _ = run(capsys, "plan", "--help")
    assert all(key in text for key in keys.split())
    dp = rows[0]
    assert {"session": "177", "node": "n0"} in dp["admitted"]
    assert dp["deferred"][0]["session"] == "178"
    exhaustive = rows[-1]
    assert exhaustive["gap"] == {"credit": 0, "ready": 0, "tokens": 0}
    assert rows[1]["gap"]["ready"] is None


def test_plan_explains_on_request(capsys):
    command = ("plan", "dp_beats_short_first", "--planner", "exact", "short_first", "--explain")
    status, out, _ = run(capsys, *command)
    assert status == 0
    assert (
        "  = No plan can keep more than 16,791 tokens of credit, and this one keeps as much.\n    n0" in out
    )
    assert "this one keeps 13,624, at most 3,167 (18.9 %) less" in out
    assert (
        "  ? With 1,000 more tokens on n1 the value would change by (+834, +0, +1,832).\n  ? If busy-n1"
        in out
    )
    rows = json.loads(run(capsys, *command, "--json")[1])
    _, text, _ = run(capsys, "plan", "--help")
    for row in rows:
        extra = {"certificate", "more_room", "who_should_leave"}
        assert extra <= set(row)
        proof, room, leaving = (row[key] for key in ("certificate", "more_room", "who_should_leave"))
        assert proof["credit"] == sum(proof["nodes"].values()) == 16_791
        assert room[1]["change"] == {"credit": 834, "ready": 0, "tokens": 1_832}
        assert [w["leaver"] for w in leaving] == ["busy-n1", "busy-n0"]
        assert all(key in text for key in (*extra, *proof, *leaving[0]))


def test_plan_says_why_bfd_placed_instead_of_dp(capsys):
    _, out, _ = run(capsys, "plan", "starved_large", "--planner", "dp", "--set", "state_budget=4", "--json")
    (row,) = json.loads(out)
    assert (row["planner"], row["exact"]) == ("dp", False)
    assert row["reason"] == "dp: more than 4 states, so bfd placed"


def test_plan_reads_a_file(capsys, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(codec.to_json(tao.load("quantum_hurts")))
    assert run(capsys, "plan", str(path), "--set", "quantum_tokens=1")[0] == 0


def test_compare_and_simulate_print_every_metric(capsys):
    small = ["--workers", "3", "--tasks", "3", "--nodes", "1"]
    status, out, err = run(capsys, "compare", "--policies", "tao,sticky", "--seeds", "2", *small)
    assert (status, err) == (0, "")
    assert all(name in out for name in METRICS)
    assert "x the live contexts" in out
    assert "difference to tao, seed by seed" in out
    assert "known error" in out
    status, out, _ = run(capsys, "simulate", "--policy", "thunderagent", *small)
    assert all(name in out for name in METRICS)
    data = json.loads(run(capsys, "compare", "--seeds", "1", "--json", *small)[1])
    assert set(data["policies"][0]["ttft_s"]) == {"mean", "lo", "hi"}
    assert set(METRICS) <= set(json.loads(run(capsys, "simulate", "--json", *small)[1]))
    for command in ("compare", "simulate"):
        text = run(capsys, command, "--help")[1]
        assert all(name in text for name in METRICS)


BROKEN = {
    "truncated.json": codec.to_json(tao.load("starved_large"))[:200],
    "nan.json": '{"now_s": NaN, "nodes": [], "sessions": []}',
    "negative.json": '{"now_s": 0, "nodes": [{"id": "n", "capacity_tokens": -1}], "sessions": []}',
    "twice.json": '{"now_s": 0, "sessions": [], "nodes": '
    '[{"id": "n", "capacity_tokens": 1}, {"id": "n", "capacity_tokens": 1}]}',
    "many.json": codec.to_json(
        Snapshot(0.0, (Node("n", 9_000),), tuple(Session(f"s{i}", 100) for i in range(30)))
    ),
    "surrogate.json": '{"now_s": 0, "nodes": [], "sessions": [{"id": "\\ud800", "context_tokens": 1}]}',
    "list.json": "[]",
    "empty.json": "",
    "empty.csv": "session,turn,context_tokens,output_tokens\n",
    "columns.csv": "a,b\n1,2\n",
    "nan.csv": "session,turn,context_tokens,output_tokens\ns,0,nan,5\n",
}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["plan", "nowhere.json"],
            "no snapshot 'nowhere.json' (No such file or directory); give a JSON file, or one",
        ),
        (["plan", "{truncated.json}"], "is the file complete?"),
        (["plan", "{nan.json}"], "now_s is nan; it must be a finite number"),
        (["plan", "{negative.json}"], "capacity_tokens is -1; it must be a whole number from 0"),
        (["plan", "{twice.json}"], "'n' appears twice"),
        (["plan", "{list.json}"], "it must be a JSON object"),
        (["plan", "{empty.json}"], "not valid JSON at line 1"),
        (["plan", "."], "Is a directory"),
        (["plan", "session_177", "--planner", "best"], "'best'; it must be one of dp"),
        (["plan", "{many.json}", "--planner", "exhaustive"], "exhaustive would try 2**30 placements"),
        (
            ["plan", "session_177", "--set", "quantum=5"],
            "unknown parameter 'quantum'; it must be one of half_life_s",
        ),
        (
            ["plan", "session_177", "--set", "quantum_tokens=five"],
            "'five' is not a whole number; write NAME=VALUE",
        ),
        (
            ["plan", "session_177", "--set", "quantum_tokens=0"],
            "quantum_tokens is 0; it must be a whole number from 1",
        ),
        (["compare", "--policies", "tao,rr"], "'rr'; it must be one of tao"),
        (["compare", "--profile", "a100"], "'a100'; it must be one of qwen3"),
        (["compare", "--workload", "swe-huge"], "swe-huge"),
        (["compare", "--workload", "{empty.csv}"], "empty.csv"),
        (["compare", "--workload", "{columns.csv}"], "columns.csv"),
        (["compare", "--workload", "{nan.csv}"], "nan.csv"),
        (["compare", "--workers", "0"], "workers is 0; it must be a whole number from 1"),
        (["simulate", "--set", "plan_cost_s=1e8", "--tasks", "1"], "beyond 4,611,686 simulated seconds"),
        (["plan", "session_177", "--set", "state_budget=1000000000"], "from 1 to 100,000,000"),
        (["plan", "{surrogate.json}"], "half a character"),
        (["compare", "--nodes", "-1"], "nodes is -1"),
        (["compare", "--seeds", "0"], "seeds is 0"),
        (["compare", "--tasks", "0"], "0"),
        (["compare", "--capacity-tokens", "10"], "10"),
        (["simulate", "--policy", "rr"], "'rr'; it must be one of tao"),
        (["bench", "everything"], "everything"),
        (["fly"], "fly"),
        (["plan", "session_177", "--fast"], "--fast"),
    ],
)
def test_a_mistake_gets_one_clear_line_and_status_2(capsys, tmp_path, argv, said):
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    argv = [str(tmp_path / a[1:-1]) if a.startswith("{") else a for a in argv]
    status, out, err = run(capsys, *argv)
    assert status == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "error" in line]) == 1


def spawn(*argv, **kw):
    return subprocess.Popen(
        [sys.executable, "-m", "tao.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kw,
    )


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_in_the_middle_ends_with_one_line():
    code = (
        "import sys, tao.cli; print('up', flush=True); sys.exit(tao.cli.main(['compare', '--tasks', '300']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err.strip() == "tao: interrupted"


def test_an_interrupt_that_compiled_code_wraps_is_one_too(capsys, monkeypatch):
    def broken(args):
        raise SystemError("a kernel returned a result with an exception set") from cause

    monkeypatch.setitem(cli.RUN, "bench", broken)
    cause: BaseException = KeyboardInterrupt()
    assert run(capsys, "bench", "planner") == (130, "", "tao: interrupted\n")
    cause = ValueError()
    with pytest.raises(SystemError):
        run(capsys, "bench", "planner")


def test_a_reader_that_goes_away_is_no_error():
    process = spawn("plan", "replay_14", "--json")
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert err == ""


def test_a_full_disk_is_told_in_one_line():
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "tao.cli", "plan", "session_177"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.returncode == 2
    assert process.stderr == "tao: error: cannot write the output: No space left on device\n"


def test_compare_takes_a_recorded_file_and_says_where_the_ratio_stands(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    rows = [
        f"s{k},{t},{1000 + 200 * t},50,{'bash' if t < 3 else ''},test,0.5" for k in range(6) for t in range(4)
    ]
    path.write_text(
        "session,turn,context_tokens,output_tokens,tool,tool_class,tool_seconds\n" + "\n".join(rows)
    )
    argv = ["compare", "--workload", str(path), "--workers", "4", "--nodes", "1", "--seeds", "2"]
    _, out, _ = run(capsys, *argv)
    assert "there is room for all" in out
    assert "note: nothing here is drawn" in out
    _, out, _ = run(capsys, *argv, "--capacity-tokens", "2400")
    assert "overload" in out


def test_planners_may_be_named_with_commas_and_before_the_snapshot(capsys):
    expected = run(capsys, "plan", "session_177", "--planner", "dp", "fifo")[1]
    assert run(capsys, "plan", "--planner", "dp,fifo", "session_177")[1] == expected
    status, _, err = run(capsys, "plan", "--planner", "dp")
    assert status == 2
    assert "no snapshot named; give a JSON file, or one of" in err


def test_an_overfull_node_is_shown_as_one(capsys, tmp_path):
    path = tmp_path / "full.json"
    resident = Session("r", 9_999, resident_on="n")
    path.write_text(codec.to_json(Snapshot(0.0, (Node("n", 9_000),), (resident, Session("a", 5)))))
    assert "n 0 (over by 1,511)" in run(capsys, "plan", str(path))[1]
