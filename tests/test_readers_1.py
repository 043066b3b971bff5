"""Stories about logs of Codex, TraceLab, Dynamo, OpenTelemetry, ATIF and terminal recordings."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import math
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tao.traces import READERS, Flag, load, otel
from tao.traces.builder import Builder
from tao.traces.files import Source
from tao.traces.report import Ledger

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared")) / "traces"
NAN = math.nan


def sample(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is absent: samples are no part of the project; TAO_SHARED may name their folder")
    return path


@pytest.fixture
def log(tmp_path):
    """A function from rows (JSON values, or text) to what is read from files that hold them."""

    def read(*files, **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for k, rows in enumerate(files):
            text = rows if isinstance(rows, str) else "\n".join(json.dumps(row) for row in rows)
            (folder / f"{k}.log").write_text(text + "\n")
        return load(folder, **options)

    return read


def seconds(column):
    return [None if math.isnan(x) else round(float(x), 3) for x in column]


def told(counts):
    return {count.what: count.times for count in counts}


def skipped(recording, words):
    return sum(n for what, n in told(recording.report.skipped).items() if words in what)


def repaired(recording, words):
    return sum(n for what, n in told(recording.report.repaired).items() if words in what)


def sane(recording):
    str(recording.report)
    for name in ("context_tokens", "new_tokens", "prefix_tokens", "output_tokens", "cached_tokens"):
        assert (recording.turns[name] >= -1).all(), name
    for name in ("start_s", "llm_s", "tool_s", "human_s"):
        assert not (recording.turns[name] < 0).any(), name
    assert not (recording.calls["seconds"] < 0).any()
    assert not (recording.calls["asked_s"] < 0).any()
    assert (recording.parents < len(recording)).all()
    assert (np.diff(recording.turns["session"]) >= 0).all()
    return recording


# --- samples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title", "rows", "sessions", "turns", "calls"),
    [
        ("codex_rollout_0.114.jsonl", "Codex rollout", 72, 1, 9, 10),
        ("tracelab_round_trace.jsonl", "TraceLab rounds", 19, 2, 19, 19),
        ("tracelab_replay_session.csv", "TraceLab replay table", 11, 1, 11, 10),
        ("dynamo_agent_trace.synthetic.jsonl", "Dynamo agent trace", 3, 1, 2, 1),
        ("terminal_bench_mini_agent.cast", "asciinema cast", 102, 1, 8, 8),
        ("atif_v1.6.synthetic.json", "ATIF trajectory", 1, 1, 2, 1),
    ],
)
def test_a_sample_is_recognized_and_counted(name, title, rows, sessions, turns, calls):
    found = sane(load(sample(f"raw/{name}")))
    report = found.report
    assert told(report.formats) == {title: 1}
    assert (report.rows, report.sessions, report.turns, report.calls) == (rows, sessions, turns, calls)
    assert not report.unread


def test_turns_in_common_with_the_normalized_file_are_equal():
    with gzip.open(sample("norm/tracelab_examples.csv.gz"), "rt") as stream:
        norm = list(csv.DictReader(stream))
    for name, wanted in (
        ("tracelab_round_trace.jsonl", norm),
        ("codex_rollout_0.114.jsonl", [row for row in norm if row["session"] == "tl_codex"]),
    ):
        turns = load(sample(f"raw/{name}")).turns
        for column, theirs in (
            ("context_tokens", "context_tokens"),
            ("output_tokens", "output_tokens"),
            ("cached_tokens", "cached_tokens"),
            ("new_tokens", "new_prompt_tokens"),
        ):
            assert turns[column].tolist() == [int(row[theirs]) for row in wanted], (name, column)
        for column in ("tool_s", "llm_s"):
            theirs = column.replace("_s", "_seconds")
            assert seconds(turns[column]) == [float(row[theirs]) if row[theirs] else None for row in wanted]


def test_the_sampled_cast_has_the_times_between_its_markers():
    found = load(sample("raw/terminal_bench_mini_agent.cast"))
    assert seconds(found.turns["tool_s"])[:3] == [0.013, 30.021, 0.015]
    assert (found.turns["flags"] & Flag.CONTEXT_ESTIMATED).all()
    assert (found.turns["output_tokens"] == -1).sum() == 7  # whose text was not kept in the sample
    assert found.turns["output_tokens"].max() == 310


def test_of_a_trajectory_only_the_asked_wait_is_known():
    found = load(sample("raw/atif_v1.6.synthetic.json"))
    assert found.turns["cached_tokens"].tolist() == [0, 1600]
    assert seconds(found.calls["seconds"]) == [None]
    assert found.calls["asked_s"].tolist() == [15.0]


# --- Codex -----------------------------------------------------------------------------------------------


def at(second):
    return f"2026-03-01T00:{int(second) // 60:02}:{second % 60:06.3f}Z"


def meta(session="a", second=0.0, **more):
    payload = {"id": session, "timestamp": at(second), **more}
    return {"timestamp": at(second), "type": "session_meta", "payload": payload}


def item(second, kind, **more):
    return {"timestamp": at(second), "type": "response_item", "payload": {"type": kind, **more}}


def event(second, kind, **more):
    return {"timestamp": at(second), "type": "event_msg", "payload": {"type": kind, **more}}


def usage(prompt, output, cached=0):
    return {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": output}


def count(second, total, last=None):
    info = {"total_token_usage": usage(*total)} | ({"last_token_usage": usage(*last)} if last else {})
    return event(second, "token_count", info=info)


def said(second):
    return item(second, "message", role="assistant", content=[])


def ask(second, call, name="exec_command", **given):
    return item(second, "function_call", name=name, call_id=call, arguments=json.dumps(given))


def back(second, call, output=""):
    return item(second, "function_call_output", call_id=call, output=output)


def test_codex_times_are_the_tools_own_where_it_tells_them(log):
    found = log(
        [
            meta(),
            event(1, "user_message"),
            ask(3, "c1", cmd="sleep 2; ls"),
            ask(4, "c2", command=["bash", "-lc", "pytest"], yield_time_ms=1000),
            count(4.1, (100, 20), (100, 20)),
            back(5, "c2", "Wall time: 0.7500 seconds\nProcess exited with code 1\n"),
            back(6.5, "c1", '{"output": "x", "metadata": {"exit_code": 0}}'),
            ask(8, "c3", name="write_stdin", chars="", yield_time_ms=5000),
            count(8, (250, 30), (150, 10)),
            back(13, "c3", "Wall time: 5.0 seconds\nProcess running with session ID 7"),
            said(15),
            count(15, (410, 35), (160, 5)),
        ]
    )
    assert found.turns["context_tokens"].tolist() == [100, 150, 160]
    assert seconds(found.turns["llm_s"]) == [3.0, 1.5, 2.0]
    assert seconds(found.turns["tool_s"]) == [2.5, 5.0, None]  # overlapping calls count once
    assert seconds(found.calls["seconds"]) == [3.5, 0.75, 5.0]
    assert seconds(found.calls["asked_s"]) == [2.0, None, 5.0]
    assert [found.classes[k] for k in found.calls["tool_class"]] == ["sleep", "test", "other"]
    assert found.turns["flags"].tolist() == [Flag.ERROR, Flag.BACKGROUND, 0]


@pytest.mark.parametrize("length", [0, 1_900, 3_000, 100_000])
@pytest.mark.parametrize("code", [0, 1, -9, None])
@pytest.mark.parametrize("shape", ["text", "object", "text in an object"])
def test_codex_reads_an_older_shells_times_after_a_text_of_any_length(log, length, code, shape):
    result = {
        "output": "Wall time: 9 seconds\n" + "y" * length,
        "metadata": {"exit_code": code, "duration_seconds": 1.5},
    }
    shapes = {
        "text": json.dumps(result),
        "object": result,
        "text in an object": {"content": json.dumps(result), "success": True},
    }
    found = log([meta(), ask(1, "c", name="shell", command=["ls"]), back(40, "c", shapes[shape]), said(42)])
    assert seconds(found.calls["seconds"]) == [1.5]
    assert bool(found.turns["flags"][0] & Flag.ERROR) == (code not in (0, None))


@pytest.mark.parametrize(
    "text", ['{"metadata": 1}', '{"metadata": {"a": 1}', 'say "metadata": {}', '{"metadata": []}']
)
def test_a_codex_result_that_only_looks_like_an_older_shells_is_a_text(log, text):
    wall = "Wall time: 2.5 seconds\nExit code: 1\n"
    found = log([meta(), ask(1, "c"), back(40, "c", wall + text), said(42)])
    assert seconds(found.calls["seconds"]) == [2.5]
    assert found.turns["flags"][0] & Flag.ERROR


def test_codex_totals_that_repeat_are_no_request_and_totals_that_fall_begin_anew(log):
    found = log(
        [
            meta(),
            event(0, "user_message"),
            said(1),
            count(1, (100, 10, 5)),
            count(1.2, (100, 10, 5)),
            event(1.3, "token_count", info=None),
            event(2, "user_message"),
            said(3),
            count(3, (230, 30, 95)),
            event(4, "user_message"),
            said(5),
            count(5, (90, 7)),
        ]
    )
    assert found.turns[["context_tokens", "output_tokens", "cached_tokens"]].tolist() == [
        (100, 10, 5),
        (130, 20, 90),
        (90, 7, 0),
    ]
    assert skipped(found, "repeat") == 1
    assert skipped(found, "rate limits") == 1
    assert repaired(found, "fell") == 1
    assert seconds(found.turns["human_s"]) == [1.0, 1.0, None]


def test_a_codex_request_that_left_only_its_count_is_a_turn(log):
    found = log([meta(), said(1), count(1, (10, 1), (10, 1)), count(2, (30, 3), (20, 2))])
    assert found.turns["context_tokens"].tolist() == [10, 20]


def test_a_codex_answer_without_a_count_has_unknown_tokens(log):
    found = log([meta(), ask(1, "c"), back(2, "c"), said(3)])
    assert found.turns["context_tokens"].tolist() == [-1, -1]
    assert seconds(found.calls["seconds"]) == [1.0]


def test_codex_compaction_costs_the_cache(log):
    found = log(
        [
            meta(),
            said(1),
            count(1, (1000, 10), (1000, 10)),
            {"timestamp": at(2), "type": "compacted", "payload": {"message": "x"}},
            event(3, "user_message"),
            said(4),
            count(4, (1950, 20), (950, 10)),
        ]
    )
    assert found.turns["flags"].tolist() == [0, Flag.CTX_DROP]
    assert found.turns["new_tokens"].tolist() == [1000, 0]


V7 = "{:08x}-{:04x}-7000-8000-000000000000"


def uuid(second):
    ms = int((1772323200 + second) * 1000)  # since 1970, of 2026-03-01
    return V7.format(ms >> 16, ms & 0xFFFF)


@pytest.mark.parametrize("ids", [True, False], ids=["ids that tell the time", "other ids"])
@pytest.mark.parametrize("stamped", [True, False], ids=["stamped anew", "old stamps"])
def test_a_codex_child_does_not_count_its_parents_history_again(log, ids, stamped):
    parent = [
        meta("p"),
        event(0, "task_started", turn_id=uuid(0) if ids else "t1"),
        event(0, "user_message"),
        said(5),
        count(5, (100, 10), (100, 10)),
        event(10, "task_started", turn_id=uuid(10) if ids else "t2"),
        event(10, "user_message"),
        ask(15, "c", cmd="ls"),
        count(15, (250, 30), (150, 20)),
        back(16, "c"),
        said(30),
        count(30, (450, 40), (200, 10)),
    ]
    copied = [copy.deepcopy(row) for row in parent[:9]]
    for k, row in enumerate(copied if stamped else ()):
        row["timestamp"] = at(
            20 + k * (0.5 if ids else 0.1)
        )  # a slow copy only ids that tell the time give away
    child = [
        meta("k", 20, source={"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}),
        *copied,
        event(24.5, "task_started", turn_id=uuid(24.5) if ids else "t3"),
        event(24.5, "user_message"),
        said(25),
        count(25, (430, 44), (180, 14)),
        event(26, "user_message"),
        said(27),
        count(27, (620, 50)),
    ]
    found = log(parent, child)
    assert found.sessions == ("s1", "s1.1")
    assert found.turns["context_tokens"].tolist() == [100, 150, 200, 180, 190]
    assert found.turns["output_tokens"].tolist() == [10, 20, 10, 14, 6]
    assert skipped(found, "copie") == 9
    alone = log(child)
    assert alone.turns["context_tokens"].tolist() == [180, 190]


def test_a_codex_fork_without_task_lines_drops_what_was_written_at_once(log):
    found = log(
        [
            meta("k", 20, forked_from_id="p"),
            count(20.1, (100, 9), (100, 9)),
            said(30),
            count(30, (250, 12), (150, 3)),
        ]
    )
    assert found.turns["context_tokens"].tolist() == [150]


def test_a_codex_session_in_two_files_is_counted_once(log):
    old = [meta(), event(0, "user_message"), said(1), count(1, (100, 10), (100, 10))]
    found = log(old, [*old, event(5, "user_message"), said(7), count(7, (210, 20), (110, 10))])
    assert len(found) == 1
    assert found.turns["context_tokens"].tolist() == [100, 110]


# --- TraceLab --------------------------------------------------------------------------------------------


def tick(second, kind, **more):
    return {"event_type": kind, "timestamp": at(second), **more}


def round_(index, prompt, *events, session="s", tools=(), **more):
    return {
        "session_id": session,
        "round_index": index,
        "input_tokens_total": prompt,
        "prefix_tokens": 0,
        "output_tokens": 10,
        "timing_events": list(events),
        "tools": list(tools),
        **more,
    }


def test_tracelab_results_may_stand_in_the_next_round(log):
    found = log(
        [
            round_(
                0,
                100,
                tick(0, "user_message"),
                tick(2, "tool_call", tool_call_id="a", tool_name="Bash"),
                tools=[{"tool_call_id": "a", "tool_name": "Bash", "emitted_at": at(2)}],
            ),
            round_(
                1,
                150,
                tick(5, "tool_result", tool_call_id="a", is_error=True),
                tick(6, "tool_call", tool_call_id="b"),
            ),
        ]
    )
    assert seconds(found.calls["seconds"]) == [3.0, None]
    assert seconds(found.turns["tool_s"]) == [3.0, None]
    assert found.turns["flags"].tolist() == [Flag.ERROR, Flag.NO_RESULT]


def test_tracelab_keys_repeat_and_lines_are_out_of_order(log):
    late = round_(0, 300, tick(30, "user_message"), tick(31, "text"))
    found = log(
        [
            late,
            round_(0, 100, tick(0, "user_message"), tick(1, "text")),
            round_(0, 200, tick(10, "user_message"), tick(11, "text")),
            late,
        ]
    )
    assert found.turns["context_tokens"].tolist() == [100, 200, 300]
    assert (
        found.turns["flags"].tolist() == [0, 0, Flag.OUT_OF_ORDER]
        or found.turns["flags"][0] & Flag.OUT_OF_ORDER
    )
    assert skipped(found, "copies") == 1


def test_tracelab_internal_latency_prevails_and_a_negative_one_is_0(log):
    tools = [
        {
            "tool_call_id": k,
            "tool_name": "Bash",
            "emitted_at": at(2),
            "result_at": at(5),
            "tool_wall_latency_ms": wall,
            "tool_internal_latency_ms": inner,
        }
        for k, wall, inner in (("a", 3000, 2500), ("b", 3000, None), ("c", -40, None), ("d", "soon", None))
    ]
    found = log([round_(0, 100, tick(0, "user_message"), tick(2, "text"), tools=tools)])
    assert seconds(found.calls["seconds"]) == [2.5, 3.0, 0.0, 3.0]
    assert found.turns["flags"][0] & Flag.NEGATIVE
    assert repaired(found, "no number") == 1


def test_tracelab_without_times_leaves_them_open(log):
    found = log([round_(k, 100 + k, tools=[{"tool_name": "Bash", "tool_call_id": str(k)}]) for k in (1, 0)])
    assert found.turns["context_tokens"].tolist() == [100, 101]
    assert seconds(found.turns["tool_s"]) == seconds(found.calls["seconds"]) == [None, None]
    assert found.report.clock_s is None


def test_a_replay_table_adds_prefix_and_input_and_tells_a_rewound_prefix(log):
    table = "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    found = log(
        table + "7,0,50,50,10,\n7,1,100,40,10,0\n7,2,140,60,10,1500\n7,3,100,130,5,-3\n7,4\n",
        table + "7,0,1,2,3,4",
    )
    assert found.turns["context_tokens"].tolist() == [100, 140, 200, 230, 3]
    assert found.turns["prefix_tokens"].tolist() == [0, 110, 150, 100, 0]
    assert seconds(found.turns["tool_s"]) == [None, 0.0, 1.5, 0.0, 0.004]
    assert found.turns["flags"].tolist() == [0, 0, 0, Flag.NEGATIVE, 0]
    assert len(found) == 2  # numbers of sessions begin anew in each file
    assert skipped(found, "cells") == 1


# --- Dynamo ----------------------------------------------------------------------------------------------


def dynamo(kind, ms, who="main", wrap=True, parent=None, **more):
    context = {"session_id": "run", "trajectory_id": who} | (
        {"parent_trajectory_id": parent} if parent else {}
    )
    found = {
        "schema": "dynamo.agent.trace.v1",
        "event_type": kind,
        "event_time_unix_ms": 1_777_000_000_000 + ms,
        "agent_context": context,
        **more,
    }
    return {"timestamp": ms, "event": found} if wrap else found


def answer(ms, length, blocks=(), took=1000.0, calls=(), wrap=True, who="main", parent=None, **more):
    request = {
        "request_id": f"{who}{ms}",
        "output_tokens": 10,
        "request_received_ms": 1_777_000_000_000 + ms - int(took),
        "total_time_ms": took,
        "finish_reason_metadata": {"tool_calls": [{"id": c, "name": "bash"} for c in calls]},
        "replay": {"trace_block_size": 64, "input_length": length, "input_sequence_hashes": list(blocks)},
        **more,
    }
    return dynamo("request_end", ms, who, wrap, parent, request=request)


def tool(kind, ms, call, **more):
    return dynamo(kind, ms, tool={"tool_call_id": call, "tool_class": "bash", **more})


def test_dynamo_tools_go_to_the_request_that_asked_for_them(log):
    found = log(
        [
            tool("tool_end", 3000, "b", duration_ms=2000.0),  # out of order, its start lost
            answer(1000, 100, calls=["a", "b", "c", "d"]),
            tool("tool_start", 1010, "a"),
            tool("tool_error", 1500, "a"),
            tool("tool_start", 5500, "c"),
            answer(5000, 200, wrap=False, cached_tokens=64),
            tool("tool_end", 5200, "e", duration_ms=2100.0),
            tool("tool_end", 5800, "f", duration_ms=300.0),
            dynamo("request_start", 0),
        ]
    )
    assert seconds(found.turns["llm_s"]) == [1.0, 1.0]
    assert seconds(found.turns["tool_s"]) == [4.2, 0.8]
    assert found.calls["turn"].tolist() == [0] * 5 + [1]
    assert sorted(seconds(found.calls["seconds"]), key=str) == [0.3, 0.49, 2.0, 2.1, None, None]
    assert found.turns["flags"].tolist() == [Flag.ERROR, 0]
    assert found.turns["cached_tokens"].tolist() == [-1, 64]
    assert repaired(found, "start is lost") == 3
    assert skipped(found, "other than") == 1


def test_dynamo_block_hashes_tell_what_a_rewritten_prompt_keeps(log):
    found = log(
        [
            answer(1000, 256, [1, 2, 3, 4]),
            answer(3000, 330, [1, 2, 3, 4, 5, 6]),
            answer(5000, 320, [1, 2, 8, 9, 10]),
            answer(7000, 400, [1]),
        ]
    )
    assert found.turns["prefix_tokens"].tolist() == [0, 266, 128, 330]
    assert found.turns["flags"].tolist() == [0, 0, Flag.CTX_DROP, 0]
    assert repaired(found, "do not cover") == 1


def test_dynamo_children_and_copies(log):
    rows = [answer(1000, 100), answer(2000, 50, who="kid", parent="main"), answer(3000, 140)]
    found = log(rows, rows)
    assert found.sessions == ("s1", "s1.1")
    assert found.turns["context_tokens"].tolist() == [100, 140, 50]
    assert skipped(found, "copies") == 3


def test_a_negative_dynamo_duration_is_0(log):
    found = log([answer(1000, 100), tool("tool_end", 1500, "a", duration_ms=-20.0)])
    assert seconds(found.calls["seconds"]) == [0.0]
    assert found.turns["flags"][0] & Flag.NEGATIVE


def older(row):
    """The same event as earlier versions of the schema name its agent."""
    names = {
        "session_id": "workflow_id",
        "trajectory_id": "program_id",
        "parent_trajectory_id": "parent_program_id",
    }
    row = copy.deepcopy(row)
    event = row.get("event", row)
    event["agent_context"] = {names[k]: v for k, v in event["agent_context"].items()}
    return row


@given(
    turns=st.lists(st.tuples(st.booleans(), st.sampled_from(["main", "kid"]), st.booleans()), max_size=8),
    old=st.booleans(),
    cuts=st.lists(st.integers(0, 24), max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_a_dynamo_trace_tells_the_same_in_older_names_and_in_any_number_of_files(
    tmp_path_factory, turns, old, cuts
):
    rows, at = [answer(1000, 100, who="main")], 2000
    for k, (asked, who, wrap) in enumerate(turns):
        at += 10_000
        parent = "main" if who == "kid" else None
        rows.append(answer(at, 100 + k, calls=[f"c{k}"] if asked else [], who=who, parent=parent, wrap=wrap))
        event = {"tool_call_id": f"c{k}", "tool_class": "bash", "duration_ms": 3000.0}
        rows.append(dynamo("tool_end", at + 3005, who, wrap, parent, tool=event))
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    rotated(whole, rows, [])
    rotated(parts, [older(row) for row in rows] if old else rows, [c for c in cuts if c < len(rows)])
    one, many = sane(load(whole)), sane(load(parts))
    assert len(one.turns) == len(turns) + 1
    assert seconds(one.calls["seconds"]) == [3.0] * len(turns)
    assert one.same(many)
    assert told(one.report.repaired) == told(many.report.repaired)


def test_dynamo_tool_calls_before_any_request_are_told_by_their_file(log):
    found = log([answer(1000, 100)], [tool("tool_end", -500, "a", duration_ms=20.0)])
    assert [c.places for c in found.report.skipped] == [("file 2",)]


# --- OpenTelemetry ---------------------------------------------------------------------------------------

BASE_NS = 1_777_000_000 * 10**9


def span(key, operation, began, ended, parent="", trace="t", code=0, **told):
    names = {
        "prompt": "gen_ai.usage.input_tokens",
        "output": "gen_ai.usage.output_tokens",
        "chat": "gen_ai.conversation.id",
        "cached": "gen_ai.usage.cache_read.input_tokens",
        "tool": "gen_ai.tool.name",
        "args": "gen_ai.tool.call.arguments",
        "old": "gen_ai.usage.prompt_tokens",
    }
    pairs = {"gen_ai.operation.name": operation} if operation else {}
    pairs |= {names[k]: v for k, v in told.items()}
    attributes = [
        {"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for k, v in pairs.items()
    ]
    return {
        "traceId": trace,
        "spanId": key,
        "parentSpanId": parent,
        "name": "x",
        "attributes": attributes,
        "startTimeUnixNano": str(BASE_NS + round(began * 1e9)),
        "endTimeUnixNano": BASE_NS + round(ended * 1e9),
        "status": {"code": code},
    }


def otlp(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


RUN = (
    span("c2", "chat", 6, 8, "a", prompt=150, output=5, cached=96),
    span("x1", "execute_tool", 2, 4.5, "a", tool="bash", args='{"command": "pytest -q"}'),
    span("x2", "execute_tool", 2, 6, "a", tool="secret", code=2),
    span("c1", "chat", 0, 2, "a", old=100, output=20),
    span("a", "invoke_agent", 0, 8, chat="k"),
    span("h", "GET", 0, 1),
)


@pytest.mark.parametrize("indent", [None, 2])
def test_spans_become_turns_and_overlapping_calls(log, indent):
    found = log(json.dumps(otlp(*RUN), indent=indent))
    assert found.turns["context_tokens"].tolist() == [100, 150]
    assert found.turns["cached_tokens"].tolist() == [-1, 96]
    assert seconds(found.turns["llm_s"]) == [2.0, 2.0]
    assert seconds(found.turns["tool_s"]) == [4.0, None]
    assert seconds(found.calls["seconds"]) == [2.5, 4.0]
    assert [found.classes[k] for k in found.calls["tool_class"]] == ["test", "other"]
    assert "secret" not in found.tools
    assert found.turns["flags"].tolist() == [Flag.ERROR, 0]
    assert skipped(found, "neither") == 1


def test_spans_may_come_in_batches_and_twice(log):
    found = log([otlp(row) for row in RUN], [otlp(*RUN)])
    assert found.turns["context_tokens"].tolist() == [100, 150]
    assert skipped(found, "copies") == len(RUN)


def test_agents_within_agents_are_sessions_of_their_own(log):
    found = log(
        [
            otlp(
                span("a", "invoke_agent", 0, 20, chat="k"),
                span("c1", "chat", 0, 2, "a", prompt=100, output=5),
                span("t", "execute_tool", 2, 9, "a", tool="Task"),
                span("b", "invoke_agent", 2, 9, "t"),
                span("c2", "chat", 3, 5, "b", prompt=50, output=5),
                span("c3", "chat", 3.1, 4.9, "c2", prompt=60, output=5),
                span("t2", "execute_tool", 5, 6, "b", tool="bash"),
                span("c4", "chat", 9, 10, "a", prompt=120, output=5),
                span("a2", "invoke_agent", 60, 70, trace="u", chat="k"),
                span("c5", "chat", 60, 61, "a2", "u", prompt=140, output=1),
            )
        ]
    )
    assert found.sessions == ("s1", "s1.1")
    assert found.turns["context_tokens"].tolist() == [100, 120, 140, 50]
    assert seconds(found.turns["tool_s"]) == [7.0, None, None, 1.0]
    assert seconds(found.turns["human_s"])[1] == 50.0
    assert skipped(found, "inside") == 1


def test_spans_that_end_before_they_begin_take_0(log):
    wrapped = span("x", "execute_tool", 5, 6, "")
    wrapped["endTimeUnixNano"] = 2**64 - 7
    found = log([otlp(span("c", "chat", 2, 1.5, prompt=10), span("y", "execute_tool", 4, 3.5), wrapped)])
    assert seconds(found.turns["llm_s"]) == [0.0]
    assert seconds(found.calls["seconds"]) == [0.0, None]
    assert seconds(found.turns["tool_s"]) == [2.0]
    assert found.turns["flags"][0] & Flag.NEGATIVE
    assert repaired(found, "below zero") == 2


def test_a_prompt_told_without_its_cached_part_is_completed(log):
    found = log([otlp(span("c", "chat", 0, 1, prompt=10, cached=500, output=3))])
    assert found.turns["context_tokens"].tolist() == [510]
    assert repaired(found, "cached") == 1


def rotated(folder, rows, cuts):
    """The same rows as one log that was cut at these places into files."""
    bounds = [0, *sorted(cuts), len(rows)]
    for k, (start, end) in enumerate(pairwise(bounds)):
        if start < end:
            (folder / f"{k:03d}").write_text("".join(json.dumps(row) + "\n" for row in rows[start:end]))


@st.composite
def traced(draw):
    """Spans of nested runs, each in a row of its own, in any order."""
    spans, number = [], 0
    for trace in range(draw(st.integers(1, 3))):
        at, inside = 100 * trace, [("", 0)]
        for _ in range(draw(st.integers(1, 8))):
            number, at = number + 1, at + 1
            kind = draw(st.sampled_from(["chat", "execute_tool", "invoke_agent", None, "GET"]))
            parent, depth = draw(st.sampled_from(inside))
            told = {"prompt": number, "output": 5} if kind in ("chat", None) else {}
            told |= {"chat": draw(st.sampled_from("xy"))} if draw(st.booleans()) else {}
            spans.append(span(f"{number}", kind, at, at + 0.5, parent, f"t{trace}", **told))
            if kind not in ("chat", None):
                inside.append((f"{number}", depth + 1))
    return draw(st.permutations(spans))


@given(spans=traced(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_spans_tell_the_same_in_any_order_and_in_any_number_of_files(tmp_path_factory, spans, data):
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    (whole / "log").write_text(json.dumps(otlp(*sorted(spans, key=lambda s: s["startTimeUnixNano"]))))
    cuts = data.draw(st.lists(st.integers(0, len(spans)), max_size=4))
    rotated(parts, [otlp(one) for one in spans], cuts)
    one, many = sane(load(whole)), sane(load(parts))
    assert told(one.report.skipped) == told(many.report.skipped)
    one.turns["flags"] &= ~Flag.OUT_OF_ORDER
    many.turns["flags"] &= ~Flag.OUT_OF_ORDER
    assert one.same(many)


TOKEN_NAMES = [(a, b) for a in otel.ATTRIBUTES["input"] for b in otel.ATTRIBUTES["output"]]


@pytest.mark.parametrize("names", TOKEN_NAMES, ids=" ".join)
@pytest.mark.parametrize("value", ["intValue", "stringValue", "doubleValue", "number"])
@pytest.mark.parametrize("operation", [None, "chat"])
def test_spans_with_tokens_are_requests_whatever_the_tokens_are_called(log, names, value, operation):
    row = span("c", operation, 0, 1)
    typed = {"intValue": str, "stringValue": str, "doubleValue": float, "number": int}[value]
    kind = "intValue" if value == "number" else value
    row["attributes"] += [
        {"key": key, "value": {kind: typed(n)}} for key, n in zip(names, (120, 7), strict=True)
    ]
    found = log([otlp(row)])
    assert found.turns[["context_tokens", "output_tokens"]].tolist() == [(120, 7)]
    assert not found.report.repaired


def test_a_span_without_an_operation_that_sums_up_its_requests_is_none(log):
    rows = [
        span("run", None, 0, 9, prompt=250, output=10),
        span("c1", "chat", 0, 1, "run", prompt=100, output=5),
        span("x", None, 2, 4, "run", prompt=150, output=5),
        span("e", "embeddings", 5, 6, "run", prompt=99),
    ]
    found = log([otlp(*rows)])
    assert found.turns["context_tokens"].tolist() == [100, 150]
    assert skipped(found, "neither") == 2


@pytest.mark.parametrize("who", ["chats", "root", "first chat"])
def test_a_trace_in_which_one_conversation_is_named_is_all_of_that_conversation(log, who):
    named = {"chats": "c1 c2", "root": "r", "first chat": "c1"}[who].split()
    rows = [
        span(k, kind, a, b, up, t, **({"chat": "k"} if k in named else {}), **more)
        for k, kind, a, b, up, t, more in [
            ("r", "invoke_agent" if who == "root" else "GET", 0, 9, "", "t", {}),
            ("c1", "chat", 0, 1, "r", "t", {"prompt": 10}),
            ("x", "execute_tool", 1, 2, "r", "t", {"tool": "bash"}),
            ("c2", "chat", 3, 4, "r", "t", {"prompt": 20}),
            ("other", "chat", 5, 6, "", "u", {"prompt": 30}),
        ]
    ]
    found = log([otlp(*rows)])
    assert found.turns["session"].tolist() == [0, 0, 1]
    assert seconds(found.calls["seconds"]) == [1.0]


def test_a_trace_with_two_conversations_gives_its_nameless_spans_to_neither(log):
    rows = [span(k, "chat", n, n + 1, prompt=9, **more) for n, (k, more) in enumerate(
        [("a", {"chat": "x"}), ("b", {"chat": "y"}), ("c", {})])]  # fmt: skip
    assert log([otlp(*rows)]).turns["session"].tolist() == [0, 1, 2]


def test_spans_are_kept_in_few_bytes_until_the_last_is_read(tmp_path):
    def peak(turns):
        rows = (
            otlp(
                span(f"{k}c", "chat", k, k + 0.4, trace=f"{k // 40}", prompt=100, output=5),
                span(f"{k}x", "execute_tool", k + 0.4, k + 1, trace=f"{k // 40}", tool="bash",
                     args=json.dumps({"command": f"pytest -q tests/test_{k}.py # {'x' * 200}"})),
            )
            for k in range(turns)
        )  # fmt: skip
        (tmp_path / "log").write_text("".join(json.dumps(row) + "\n" for row in rows))
        tracemalloc.start()
        try:
            assert len(load(tmp_path / "log").calls) == turns
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, more = peak(5_000), peak(11_000)  # commands are cached up to 4,096
    assert (more - few) / 6_000 < 400  # with all texts it is three times that


def test_what_is_left_out_in_the_end_is_told_by_its_file(log):
    nothing = otlp(span("g", "GET", 0, 1))
    early = otlp(span("x", "execute_tool", 0, 1, trace="u", tool="bash"))
    found = log([nothing, otlp(span("c", "chat", 0, 1, prompt=9))], [early], [nothing])
    assert {c.what.split(" ")[-1]: c.places for c in found.report.skipped} == {
        "call": ("file 1",),
        "session": ("file 2",),
        "one": ("file 3",),
    }


# --- asciinema -------------------------------------------------------------------------------------------

WAIT = "\r\u280b Waiting for the LM to respond..."


def cast(*events, version=2):
    header = {"version": version, "width": 80, "height": 24, "timestamp": 1_755_000_000}
    return [header, *([t, "o", text] for t, text in events)]


SESSION = (
    (1.0, WAIT),
    (3.0, "\r\r\nmini-swe-agent (st"),
    (3.0, "ep 1, $0.01):\r\n"),
    (3.0, "\x1b[1mTHOUGHT: x\r\n\r\n```bash\r\nsleep 3 && make\r\n```\r\n"),
    (7.5, "\r\n\x1b[32mUser:\x1b[0m\r\n"),
    (7.5, "o" * 330 + "\r\n"),
    (7.6, WAIT),
    (9.0, "\r\nmini-swe-agent (step 2, $0.02):\r\nText\r\nmini-swe-agent (step 1, $0.01):\r\n"),
    (8.5, "\r\nUser:\r\nbye\r\n"),
    (11.0, "\r\nmini-swe-agent (step 3, $0.02):\r\ndone\r\n"),
)


def test_the_marks_of_a_cast_tell_answers_and_tools(log):
    found = log(cast(*SESSION))
    assert seconds(found.turns["llm_s"]) == [2.0, 1.5, 2.5]
    assert seconds(found.turns["tool_s"]) == [4.5, 0.0, None]
    assert found.turns["flags"][1] & Flag.NEGATIVE  # the clock stepped back
    assert seconds(found.calls["seconds"]) == [4.5, 0.0]
    assert seconds(found.calls["asked_s"]) == [3.0, None]
    assert found.classes[found.calls["tool_class"][0]] in ("sleep", "build")
    context, output = found.turns["context_tokens"].tolist(), found.turns["output_tokens"].tolist()
    assert context[0] == 1250
    assert context[1] == context[0] + output[0] + 100


def test_casts_with_relative_times_and_of_other_agents(log):
    events = [(0.5, WAIT), (2.0, "\nmini-swe-agent (step 1, $0.01):\n"), (1.5, "User:\n")]
    assert seconds(log(cast(*events, version=3)).calls["seconds"]) == [1.5]
    back = [(9.0, WAIT), (10.0, "\nmini-swe-agent (step 1, $0.01):\nab\n"), (11.0, "User:\nc\n")]
    late = log(
        cast(
            *back,
            (6.0, "\nmini-swe-agent (step 2, $0.01):\nab\n"),
            (8.0, "User:\nc\n"),
            (8.5, "\nmini-swe-agent (step 3, $0.01):\nab\n"),
        )
    )
    assert seconds(late.turns["tool_s"]) == [1.0, 2.0, None]
    other = log(cast((0.0, "$ ls\r\n"), (1.0, "User:\r\n")))
    assert len(other.turns) == 0
    assert skipped(other, "step lines") == 1


def test_the_same_cast_twice_is_counted_once(log):
    found = log(cast(*SESSION), cast(*SESSION))
    assert len(found.turns) == 3
    assert len(found.calls) == 2
    assert skipped(found, "copies") == 3


@pytest.mark.parametrize("version", [2, 3])
@given(
    runs=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    ends=st.lists(st.sampled_from(["User:", "$ exit", ""]), min_size=4, max_size=4),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_run_in_a_cast_is_a_session(log, version, runs, ends):
    def shown(lengths):
        events, step_s = [], 1.0 if version == 3 else None
        for length, end in zip(lengths, ends, strict=False):
            for number in range(1, length + 1):
                for text in (
                    WAIT,
                    f"\r\nmini-swe-agent (step {number}, $0.01):\r\n```bash\r\nls\r\n```\r\n",
                    f"\r\n{'User:' if number < length else end}\r\n",
                ):
                    events.append((step_s or float(len(events)), text))
        return cast(*events, version=version)

    found, alone = log(shown(runs)), [log(shown([length])) for length in runs]
    assert np.diff(found.first).tolist() == runs
    assert seconds(found.turns["llm_s"]) == [1.0 if k == 0 else 2.0 for n in runs for k in range(n)]
    firsts = found.turns["context_tokens"][found.first[:-1]].tolist()
    assert firsts == [one.turns["context_tokens"][0] for one in alone]
    assert not found.report.skipped


def test_a_step_line_that_comes_again_without_a_request_is_counted(log):
    found = log(cast(*SESSION))
    assert skipped(found, "quoted") == 1


# --- ATIF ------------------------------------------------------------------------------------------------


def step(number, second=None, source="agent", prompt=None, **more):
    metrics = {"metrics": {"prompt_tokens": prompt, "completion_tokens": 5}} if prompt else {}
    time = {} if second is None else {"timestamp": at(second)}
    return {"step_id": number, "source": source, **metrics, **time, **more}


def trajectory(*steps, session="s", **more):
    return {"schema_version": "ATIF-v1.7", "session_id": session, "agent": {}, "steps": list(steps), **more}


def called(*calls):
    asked = [
        {"tool_call_id": c, "function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
        for c, _ in calls
    ]
    results = [{"source_call_id": c, "extra": {"duration_ms": ms}} for c, ms in calls]
    return {"tool_calls": asked, "observation": {"results": results}}


def test_measured_durations_of_a_trajectory_are_taken(log):
    found = log(
        [
            trajectory(
                step(1, prompt=10, **called(("a", 1500))),
                step(2, prompt=30, **called(("b", None), ("c", 10))),
            )
        ]
    )
    assert seconds(found.turns["tool_s"]) == [1.5, None]
    assert seconds(found.calls["seconds"]) == [1.5, None, 0.01]
    assert seconds(found.turns["start_s"]) == [None, None]


def test_copied_steps_sums_and_subagents_of_a_trajectory(log):
    kid = trajectory(step(1, 3, prompt=7), session="kid")
    first = trajectory(step(1, 0, "user"), step(2, 2, prompt=10), subagent_trajectories=[kid])
    more = trajectory(
        step(2, 2, prompt=10, is_copied_context=True),
        step(3, 9, prompt=90, llm_call_count=3),
        step(4, 10, llm_call_count=0),
        session="more",
    )
    found = log(json.dumps(first, indent=1), [more], [first])
    assert found.sessions == ("s1", "s1.1", "s2")
    assert found.turns["context_tokens"].tolist() == [10, 7, -1]
    assert skipped(found, "copies") >= 3
    assert skipped(found, "without a request") == 1
    assert repaired(found, "sum up") == 1


@given(
    timed=st.booleans(),
    named=st.booleans(),
    numbers=st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True),
    kids=st.integers(0, 2),
    copies=st.integers(1, 3),
    apart=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_step_of_a_trajectory_is_counted_once_with_or_without_times(
    tmp_path_factory, timed, named, numbers, kids, copies, apart
):
    """Sub-agents that share their parent's session id, and its numbers of steps, are none of its copies."""
    steps = [step(n, n if timed else None, prompt=100 + n) for n in sorted(numbers)]
    session = "s" if named else None
    inner = [
        trajectory(
            *[step(n, 20 + 10 * kid + n if timed else None, prompt=100 + n) for n in numbers], session=session
        )
        for kid in range(kids)
    ]
    document = trajectory(*steps, session=session, subagent_trajectories=inner)
    once, often = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("often")
    rotated(once, [document], [])
    rotated(often, [document] * copies, range(copies) if apart else [])
    one, many = sane(load(once)), sane(load(often))
    assert len(one.turns) == len(numbers) * (1 + kids)
    assert len(many.turns) == len(one.turns) * (1 if named else copies)
    assert not named or one.same(many)


# --- whatever stands in a field --------------------------------------------------------------------------

ROWS = {
    "codex": [
        meta("k", 0, forked_from_id="p"),
        event(0, "task_started", turn_id=uuid(0)),
        event(0, "user_message"),
        ask(1, "c", cmd="ls"),
        count(1, (9, 1), (9, 1)),
        back(2, "c", "Wall time: 1.0 seconds"),
        said(3),
        count(3, (20, 2)),
    ],
    "tracelab": [
        round_(
            0,
            100,
            tick(0, "user_message"),
            tick(2, "tool_call", tool_call_id="a"),
            tools=[
                {
                    "tool_call_id": "b",
                    "tool_name": "Bash",
                    "emitted_at": at(2),
                    "result_at": at(3),
                    "tool_wall_latency_ms": 3,
                }
            ],
        ),
        round_(1, 150, tick(5, "tool_result", tool_call_id="a"), tick(6, "text")),
    ],
    "dynamo": [
        answer(1000, 256, [1, 2, 3, 4], calls=["a"]),
        tool("tool_end", 1500, "a", duration_ms=3),
        answer(3000, 320, [1, 2, 8, 9, 10]),
    ],
    "opentelemetry": [otlp(*RUN)],
    "asciinema": cast(*SESSION),
    "atif": [
        trajectory(
            step(1, 0, "user"),
            step(2, 2, prompt=10, **called(("a", 4))),
            subagent_trajectories=[trajectory(step(1, 3, prompt=7))],
        )
    ],
}

odd = st.sampled_from(
    [
        None,
        True,
        -1,
        10**400,
        -(10**400),
        1e308,
        NAN,
        math.inf,
        "",
        "x",
        "\ud800",
        [],
        {},
        [[]],
        [{}],
        {"a": 1},
        "9" * 5000,
        0,
        2**63,
        2**64 - 5,
        -5.5,
        "NaN",
        [1, 2],
        at(3),
        BASE_NS,
    ]
)


def places(value, path=()):
    """The paths of all values within a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


@pytest.mark.parametrize("name", ROWS)
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_may_stand_anywhere(tmp_path, name, data):
    rows = copy.deepcopy(ROWS[name])
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(list(places(rows))))
        inside = rows
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = copy.deepcopy(data.draw(odd))
    file = tmp_path / "log"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    sane(load(file))
    into = Builder(Ledger())
    READERS[name].read(Source(file, into.ledger), into)
    sane(into.finish())


@given(
    cells=st.lists(
        st.sampled_from(["", "1", "-1", "nan", "inf", "1e999", "9" * 5000, '"', "x", "\x00", ";", "3.5"]),
        max_size=24,
    )
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cell_may_stand_in_a_table(tmp_path, cells):
    file = tmp_path / "log"
    lines = [",".join(cells[k : k + 6]) for k in range(0, len(cells), 6)]
    file.write_text(
        "\n".join(["session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms", *lines])
    )
    found = sane(load(file))
    assert len(found.turns) + sum(c.times for c in found.report.skipped) == found.report.rows
