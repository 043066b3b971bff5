"""Stories about logs, each told of a whole kind of them and not of one file."""

import contextlib
import gzip
import json
import math
import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao.model import InputError
from tao.traces import export, load, normalized, open_workload, replay
from tao.traces.builder import Builder
from tao.traces.derive import PERSON_S

DAY = "2026-01-01T00:"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("kinds")


@pytest.fixture
def log(tmp_path):
    """A function from rows to the file that holds them, a line each."""

    def write(*rows, name="log"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def said(kind, at, content, message_id=None, usage=None, stop=None, **more):
    """A line of Claude Code's, `at` seconds after the beginning."""
    message = {"role": kind, "content": content}
    if message_id:
        message |= {"id": message_id, "usage": usage, "stop_reason": stop}
    stamp = f"{DAY}{int(at) // 60:02d}:{at % 60:06.3f}Z"
    return {"type": kind, "sessionId": "s", "message": message, "timestamp": stamp} | more


def used(prompt, output, **more):
    return {"input_tokens": prompt, "output_tokens": output} | more


def call(key="t1", name="Bash", **given):
    return [{"type": "tool_use", "id": key, "name": name, "input": given}]


def result(key="t1"):
    return [{"type": "tool_result", "tool_use_id": key, "content": "x"}]


def text(words="x"):
    return [{"type": "text", "text": words}]


# Between a tool's end and the next request: an agent at work, or a person


def claude(gap, **more):
    """A tool from 1 s to 9 s, and what the next request follows `gap` seconds later."""
    return [
        said("user", 0, "x"),
        said("assistant", 1, call(command="pytest"), "m1", used(100, 20)),
        said("user", 9, result()),
        said("user", 9 + gap, text(), **more),
        said("assistant", 20, text(), "m2", used(150, 10)),
    ]


def codex(gap):
    def row(at, kind, payload):
        return {"timestamp": f"{DAY}00:{at:06.3f}Z", "type": kind, "payload": payload}

    def counted(prompt):
        last = {"input_tokens": prompt, "output_tokens": 5, "cached_input_tokens": 0}
        return {"type": "token_count", "info": {"total_token_usage": last, "last_token_usage": last}}

    arguments = json.dumps({"command": ["bash", "-lc", "pytest"]})
    asked = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": arguments}
    return [
        row(0, "session_meta", {"id": "a"}),
        row(0, "event_msg", {"type": "user_message"}),
        row(1, "response_item", asked),
        row(1, "event_msg", counted(100)),
        row(9, "response_item", {"type": "function_call_output", "call_id": "c", "output": "x"}),
        row(9 + gap, "response_item", {"type": "message", "role": "user", "content": []}),
        row(20, "response_item", {"type": "message", "role": "assistant", "content": []}),
        row(20, "event_msg", counted(240)),
    ]


def opentelemetry(gap):
    def span(key, operation, began, ended, **told):
        told = {"operation.name": operation} | told
        return {
            "traceId": "t",
            "spanId": key,
            "startTimeUnixNano": str(10**18 + round(began * 1e9)),
            "endTimeUnixNano": str(10**18 + round(ended * 1e9)),
            "attributes": [{"key": f"gen_ai.{k}", "value": {"stringValue": v}} for k, v in told.items()],
        }

    tool = {"tool.name": "bash", "tool.call.arguments": '{"command": "pytest"}'}
    spans = [
        span("a", "chat", 0, 1),
        span("b", "execute_tool", 1.002, 9, **tool),
        span("c", "chat", 9 + gap, 20 + gap),
    ]
    for one in spans[::2]:
        for k in ("input", "output"):
            one["attributes"].append({"key": f"gen_ai.usage.{k}_tokens", "value": {"intValue": "100"}})
    return [{"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}]


def dynamo(gap):
    def event(kind, ms, **more):
        context = {"session_id": "s", "trajectory_id": "m"}
        told = {"schema": "dynamo.agent.trace.v1", "event_type": kind, "event_time_unix_ms": ms}
        return {"event": told | {"agent_context": context} | more}

    def request(key, began, ended):
        told = {"request_id": key, "input_tokens": 100, "output_tokens": 5}
        times = {"request_received_ms": began, "total_time_ms": ended - began}
        return event("request_end", ended, request=told | times)

    times = {"started_at_unix_ms": 1001, "ended_at_unix_ms": 9000, "duration_ms": 7999}
    tool = event("tool_end", 9000, tool={"tool_call_id": "c", "tool_class": "bash"} | times)
    return [request("a", 0, 1000), tool, request("b", 9000 + gap * 1000, 20000)]


def rows_of_dynamo(gap):
    row = {"session_id": "s", "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}
    told = {"delay": gap * 1000, "tool_wait_ms": 8000.0}
    told["tool_events"] = [{"tool_class": "bash", "duration_ms": 8000.0}]
    return [row | {"request_id": "a"}, row | {"request_id": "b", "wait_for": ["a"]} | told]


KINDS = [claude, codex, opentelemetry, dynamo, rows_of_dynamo]


@pytest.mark.parametrize("kind", KINDS)
@given(gap=st.integers(0, 5000).map(lambda ms: ms / 1000) | st.sampled_from([0.001, 0.999, 1.0]))
@settings(max_examples=25)
def test_only_what_takes_a_second_is_a_person(scratch, kind, gap):
    path = scratch / kind.__name__
    path.write_text("".join(json.dumps(row) + "\n" for row in kind(gap)))
    found = load(path)
    work = replay.workload(found)
    turn, (first, _) = found.turns[0], work.tasks[0].turns
    assert len(found.calls) == 1
    assert first.tool_s == pytest.approx(8 + gap, abs=1e-5)
    if gap < PERSON_S:
        assert math.isnan(turn["human_s"])
        assert turn["tool_s"] == pytest.approx(8 + gap, abs=1e-5)
        assert first.tool in ("Bash", "bash", "shell")
        assert work.notes == ()
    else:
        assert (turn["tool_s"], turn["human_s"]) == pytest.approx((8, gap), abs=1e-5)
        assert first.tool == "human"
        assert "tool calls before a person's wait, replayed as part of that wait: 1" in work.notes


@given(gap=st.integers(0, 9000).map(lambda ms: ms / 1000))
@settings(max_examples=25)
def test_what_the_client_itself_adds_after_a_result_is_no_person(scratch, gap):
    path = scratch / "meta"
    path.write_text("".join(json.dumps(row) + "\n" for row in claude(gap, isMeta=True)))
    turns = load(path).turns
    assert (turns["tool_s"][0], math.isnan(turns["human_s"][0])) == (8, True)
    assert turns["llm_s"][1] == 11


def test_what_the_client_adds_after_an_answer_begins_the_next_request(log):
    """As a hook at the end of an answer does, which makes the agent go on."""
    lines = [
        said("user", 0, "x"),
        said("assistant", 1, text(), "m1", used(100, 20)),
        said("user", 7, text(), isMeta=True),
        said("assistant", 9, text(), "m2", used(150, 10)),
    ]
    assert load(log(*lines)).turns["llm_s"].tolist() == [1, 2]


# Files


def written(path, rows, first=b"", packed=False):
    content = first + b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    return path


SILENT = [{"resourceMetrics": []}, {"type": "file-history-snapshot", "messageId": "m"}, {"a": [1]}, {}]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=15)
def test_a_log_is_recognized_whatever_stands_before_what_tells_its_kind(scratch, kind, data):
    """Lines longer than what is looked at first, hundreds of lines that tell nothing, a byte order mark."""
    rows = kind(0)
    plain = load(written(scratch / "plain", rows))
    long = [
        row | {"padding": "x" * data.draw(st.sampled_from([0, 0, 300_000, 1_500_000]))} for row in rows[:2]
    ]
    before = [data.draw(st.sampled_from(SILENT))] * data.draw(st.sampled_from([0, 1, 49, 50, 60, 5000]))
    first = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"\n"]))
    path = written(scratch / "odd", [*before, *long, *rows[2:]], first, data.draw(st.booleans()))
    found = load(path)
    assert found.report.formats == plain.report.formats
    assert found.same(plain)
    assert sum(count.times for count in found.report.skipped) == len(before)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20)
def test_of_compressed_data_that_is_cut_all_that_is_there_is_read(scratch, kind, data):
    draw = random.Random(data.draw(st.integers(0, 9)))
    rows = [row | {"padding": f"{draw.getrandbits(3996):0999x}"} for row in kind(0)]
    whole = written(scratch / "log", rows, packed=True).read_bytes()
    cut = whole[: data.draw(st.integers(20, len(whole) - 1))]
    (scratch / "log").write_bytes(cut)
    (scratch / "plain").write_bytes(zlib.decompressobj(31).decompress(cut))
    found, plain = load(scratch / "log"), load(scratch / "plain")
    assert found.same(plain)
    told = [count for count in found.report.skipped if "ends or breaks in the middle" in count.what]
    assert [count.times for count in told] == [1]
    assert found.report.unread == plain.report.unread


def test_compressed_data_that_is_damaged_is_read_up_to_there(scratch):
    zstandard = pytest.importorskip("zstandard")
    words = [f"{random.Random(k).getrandbits(8000):x}" for k in range(500)]
    rows = [said("assistant", k, text(word), f"m{k}", used(100 + k, 20)) for k, word in enumerate(words)]
    packed = bytearray(zstandard.compress(written(scratch / "log", rows).read_bytes()))
    half = len(packed) // 2
    packed[half : half + 3000] = bytes(3000)
    (scratch / "log").write_bytes(packed)
    found = load(scratch / "log")
    assert 100 < len(found.turns) < 500
    assert any("ends or breaks in the middle" in count.what for count in found.report.skipped)


def twice(path, folder):
    """Ways to name a file more than once, each with whether there is a copy to tell of."""
    copy, other = folder / "copy", folder / "inside" / "log"
    copy.write_bytes(path.read_bytes())
    other.parent.mkdir()
    other.write_bytes(path.read_bytes())
    yield (path, path), 0
    yield (path, path.parent / "." / path.name), 0
    yield (other.parent, other), 0
    yield (other, other.parent), 0
    yield (path, copy), 1
    yield (path, folder, copy), 2
    with contextlib.suppress(OSError):
        (folder / "link").symlink_to(path)
        yield (path, folder / "link"), 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_counts_once_however_often_it_is_named_or_copied(tmp_path, log, kind):
    path = log(*kind(0))
    once = load(path)
    for paths, copies in twice(path, tmp_path):
        found = load(*paths)
        assert found.same(once), paths
        assert bool(found.report.skipped) == bool(copies)
        assert found.report.files == 1 + copies


TABLES = {
    "a table": "session,turn,context_tokens,output_tokens\na,0,100,5\na,1,150,5\n",
    "a replay": "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n0,0,0,9,1,5\n",
    "requests": '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n',
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
def test_a_table_without_identities_counts_once_too(tmp_path, content):
    path = tmp_path / "log"
    path.write_text(content)
    once = load(path)
    assert len(once.turns)
    for paths, copies in twice(path, tmp_path):
        found = load(*paths)
        assert found.same(once), paths
        lines = {count.what: count.times for count in found.report.skipped}
        told = {"lines of files that are copies of another one": copies * content.count("\n")}
        assert lines == (told if copies else {})
    path.write_text(content.replace("0", "1", 1))
    assert len(load(path, tmp_path / "copy").turns) == 2 * len(once.turns)


# Claude Code: pieces of an answer, copies, sub-agents


@given(data=st.data())
@settings(max_examples=100)
def test_pieces_of_an_answer_are_one_request_until_something_comes_between(scratch, data):
    """Whatever usage each piece tells, and whether all of them tell the request id: the most of it counts."""
    rows, expected, at = [], [], 0
    constant = data.draw(st.booleans())  # a gateway's one id for all
    for answer in range(data.draw(st.integers(1, 4))):
        rows.append(said("user", at, text()))
        pieces = data.draw(st.integers(1, 4))
        grow = [data.draw(st.integers(0, 3)) for _ in range(pieces)]
        told = [
            used(100 * answer * (k > 0) + 7 * g, 3 * g, cache_read_input_tokens=50 * g)
            for k, g in enumerate(grow)
        ]
        stop = data.draw(st.booleans())
        for k, usage in enumerate(told):
            at += 1
            request = {"requestId": f"r{answer}"} if data.draw(st.booleans()) else {}
            last = "end_turn" if stop and k == pieces - 1 else None
            key = "gw" if constant else f"m{answer}"
            rows.append(said("assistant", at, [], key, usage, last, **request))
        most = max(sum(usage.values()) - usage["output_tokens"] for usage in told)
        expected.append((most, max(3 * g for g in grow), max(50 * g for g in grow), at))
        at += 1
    found = load(written(scratch / "pieces", rows))
    names = ["context_tokens", "output_tokens", "cached_tokens"]
    assert [row[:3] for row in expected] == found.turns[names].tolist()
    assert (found.turns["start_s"] + found.turns["llm_s"]).tolist() == [row[3] for row in expected]


@given(ends=st.lists(st.booleans(), min_size=1, max_size=6))
@settings(max_examples=30)
def test_each_missing_output_is_estimated_whatever_the_answers_before_it_told(scratch, ends):
    rows = []
    for k, ended in enumerate(ends):
        words = text("word " * 200)
        rows += [
            said("user", 2 * k, "x"),
            said("assistant", 2 * k + 1, words, f"m{k}", used(100, 2), "stop" if ended else None),
        ]
    found = load(written(scratch / "ends", rows)).turns
    assert found["output_tokens"].tolist() == [2 if ended else 303 for ended in ends]


def conversation(turns):
    """A session of so many requests, each but the last with a tool."""
    rows = [said("user", 0, "x", uuid="u", requestId=None)]
    for k in range(turns):
        rows += [
            said("assistant", 3 * k + 1, text(f"a{k}"), f"m{k}", used(100 + k, 20), uuid=f"a{k}"),
            said("assistant", 3 * k + 2, call(f"t{k}"), f"m{k}", used(100 + k, 20), uuid=f"b{k}"),
            said("user", 3 * k + 3, result(f"t{k}"), uuid=f"r{k}"),
        ]
    return rows


@given(data=st.data())
@settings(max_examples=60)
def test_what_a_resumed_session_inherits_counts_once(scratch, data):
    """Whether copies keep their ids, get new ones or have none, and with request ids or without."""
    kept = data.draw(st.integers(1, 4))
    first, lines = conversation(kept), data.draw(st.sampled_from(["same", "new", "none"]))
    requests = data.draw(st.booleans())
    for k, row in enumerate(first):
        if requests and row["type"] == "assistant":
            row["requestId"] = f"r{k}"
        if lines == "none":
            del row["uuid"]
    cut = data.draw(st.integers(0, len(first)))
    copied = [row | {"sessionId": "s2"} for row in first[:cut]]
    for row in copied if lines == "new" else ():
        row["uuid"] += "'"
    more = [
        said("user", 1000, "y", uuid="y", sessionId="s2"),
        said("assistant", 1007, text("z"), "z", used(300, 9), uuid="z", sessionId="s2", requestId="z"),
    ]
    with contextlib.suppress(OSError):
        (scratch / "two").mkdir()
    written(scratch / "two" / "a", first)
    written(scratch / "two" / "b", [*copied, *more])
    found, alone = load(scratch / "two"), load(scratch / "two" / "a")
    assert len(found.turns) == len(alone.turns) + 1
    assert str(found.turns[:-1].tolist()) == str(alone.turns.tolist())
    assert found.turns["llm_s"][-1] == 7
    assert len(found.calls) == kept
    told = sum(count.times for count in found.report.skipped)
    assert told == cut if lines == "same" else max(0, cut - 1) <= told <= cut


def test_sessions_that_begin_alike_at_one_moment_are_two(log):
    """A harness starts many with the same words; gateways give all answers one id."""
    for k in range(2):
        rows = [said("user", 0, "x"), said("assistant", 1 + k, text(), "gw", used(100, 20))]
        path = log(
            *(row | {"sessionId": f"s{k}", "uuid": f"{k}{j}"} for j, row in enumerate(rows)), name=f"d/{k}"
        )
    found = load(path.parent)
    assert found.turns["llm_s"].tolist() == [1, 2]
    assert found.report.skipped == ()


@given(data=st.data())
@settings(max_examples=60)
def test_a_sub_agent_is_one_whatever_lines_stand_between(scratch, data):
    rows = [
        said("user", 0, "x", uuid="u0"),
        said("assistant", 1, call(name="Task"), "m1", used(100, 20), uuid="a1"),
    ]
    parent = None
    turns = data.draw(st.integers(1, 4))
    for k in range(turns):
        more = []
        for j in range(data.draw(st.integers(0, 3))):
            kind = data.draw(st.sampled_from(["system", "progress", "attachment", "new"]))
            more.append({"type": kind, "sessionId": "s", "uuid": f"x{k}.{j}"})
        more.append(said("user", 2 + k, result(f"c{k - 1}") if k else "p", uuid=f"p{k}"))
        more.append(said("assistant", 2.5 + k, call(f"c{k}"), f"n{k}", used(50 + k, 5), uuid=f"q{k}"))
        for row in more:
            rows.append(row | {"isSidechain": True, "parentUuid": parent})
            parent = row["uuid"]
    rows.append(said("user", 9, result(), uuid="u1"))
    found = load(written(scratch / "side", rows))
    assert found.sessions == ("s1", "s1.1")
    assert found.turns["llm_s"].tolist() == [1] + turns * [0.5]


@pytest.mark.parametrize("key", ["sessionId", "session_id", None])
def test_sessions_without_our_name_for_them_stay_apart(tmp_path, key):
    for k in range(3):
        rows = [
            said("assistant", at, text(f"{at}"), f"m{k}.{at}", used(100, 20), uuid=f"{k}.{at}")
            for at in (1, 2)
        ]
        for row in rows:
            del row["sessionId"]
        written(tmp_path / f"{k}", [row | ({key: f"name {k}"} if key else {}) for row in rows])
    found = load(tmp_path)
    assert found.sessions == ("s1", "s2", "s3")
    assert len(found.turns) == 6


# Sub-agents in rows of agentic Mooncake


def request(key, session, at, **told):
    row = {"request_id": key, "session_id": session, "input_length": 600, "output_length": 10}
    return row | {"hash_ids": [1, 2], "timestamp": at * 1000.0} | told


@pytest.mark.parametrize("named", ["branches", "wait_for", "both"])
@given(children=st.integers(1, 3), rest=st.integers(0, 3000), delay=st.sampled_from([None, 12.0, 5000.0]))
@settings(max_examples=25)
def test_a_parent_waits_as_long_as_its_children_and_more(scratch, named, children, rest, delay):
    spawned = [f"c{k}" for k in range(children)]
    rows = [request("r1", "p", 0, branches=spawned if named != "wait_for" else [])]
    for k, key in enumerate(spawned):
        waits = {"wait_for": ["r1"]} if named != "branches" else {}
        rows.append(request(key, f"s{key}", 1 + k / 10, **waits))
        rows.append(request(f"d{k}", f"s{key}", 40 + k, wait_for=[key], tool_wait_ms=30000.0))
    waits = ["r1", *(f"d{k}" for k in range(children))]
    rows.append(request("r2", "p", 61, wait_for=waits, tool_wait_ms=float(rest), delay=delay))
    found = load(written(scratch / "agents", rows))
    assert found.parents.tolist() == [-1] + children * [0]
    person = 5 if delay == 5000 else 0
    assert found.turns["tool_s"][0] == pytest.approx(60 - person)
    assert np.nan_to_num(found.turns["human_s"][0]) == person
    assert found.turns["tool_s"][2::2].tolist() == children * [30]


@given(data=st.data())
@settings(max_examples=50)
def test_what_a_parent_waits_for_its_child_is_written_once(scratch, data):
    """Whoever replays the rows comes to the moments of the recording, waits and rests added up."""
    builder = Builder()
    spent = [data.draw(st.integers(1, 50)) for _ in range(6)]
    parent, child = builder.session("p"), builder.session("c", 0)
    turn = builder.turn(parent, 100, 5, None, 0.0, spent[0])
    task = builder.call(turn, "Task", began=float(spent[0]))
    at = spent[0] + spent[1]
    inner = builder.turn(child, 50, 5, None, at, at + spent[2])
    builder.result(builder.call(inner, "Bash", began=at + spent[2]), at + spent[2] + spent[3])
    at += spent[2] + spent[3]
    builder.turn(child, 70, 5, None, at, at + spent[4])
    builder.result(task, at + spent[4] + spent[5])
    builder.turn(parent, 150, 5, None, at + spent[4] + spent[5], at + 100.0)
    recording = builder.finish()
    export.write(recording, scratch / "agents", "dynamo")
    rows = {row["request_id"]: row for row in map(json.loads, (scratch / "agents").read_text().splitlines())}
    last = rows["s1:1"]
    assert last["wait_for"] == ["s1:0", "s1.1:1"]
    assert last["tool_wait_ms"] == spent[5] * 1000
    assert rows["s1.1:1"]["timestamp"] + (spent[4] + spent[5]) * 1000 == last["timestamp"]
    export.write(recording, scratch / "agents")
    assert load(scratch / "agents").same(recording)


# Tables


@given(data=st.data())
@settings(max_examples=60)
def test_a_table_and_our_own_format_wait_alike(scratch, data):
    """What is replayed of a recording between requests is the same whichever way it was written."""
    builder = Builder()
    seconds = st.sampled_from([math.nan, 0.0, 2.5, 300.0, 5e6])
    for _ in range(data.draw(st.integers(2, 6))):
        turn = builder.turn(builder.session("a"), 100, 20)
        tool_s, human_s = data.draw(seconds), data.draw(seconds)
        builder.take(turn, 1e9, tool=tool_s, human=human_s)
        if not math.isnan(tool_s) or data.draw(st.booleans()):
            builder.call(turn, "Bash", "pytest", seconds=min(tool_s, 1e6))
    recording = builder.finish()
    found = []
    for form in ("native", "csv"):
        lost = export.write(recording, scratch / "table", form)
        found.append(open_workload(scratch / "table").tasks[0].turns)
    assert "beyond 1,000,000 s" in lost
    for one, other, turn in zip(*found, recording.turns, strict=True):
        assert (one.tool, one.tool_class) == (other.tool, other.tool_class)
        if not math.isnan(turn["tool_s"]) or turn["human_s"] >= 0:
            assert one.tool_s == other.tool_s


SECRET = "hunter2"


@given(data=st.data())
@settings(max_examples=150)
def test_what_is_wrong_in_a_table_is_told_by_its_place_alone(scratch, data):
    """Secrets in any cells, names of columns among them, and lines that are torn or are no table."""
    names = [
        "session",
        "turn",
        "context_tokens",
        "output_tokens",
        "tool_seconds",
        "human_seconds",
        "cached_tokens",
    ]
    rows = [names, *(["a", str(k), "100", "20", "1.5", "", "50"] for k in range(3))]
    for _ in range(data.draw(st.integers(1, 3))):
        row = rows[data.draw(st.integers(0, 3))]
        place = data.draw(st.integers(0, len(row) - 1))
        row[place] = data.draw(
            st.sampled_from([SECRET, f"{row[place]}{SECRET}", f'"{SECRET}', f"{SECRET},1", ""])
        )
    path = scratch / "wrong"
    path.write_text("\n".join(",".join(row) for row in rows))
    told = "line"
    try:
        normalized.read(path)
    except InputError as e:
        told = str(e)
    assert "line" in told
    assert SECRET not in told
