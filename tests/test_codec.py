"""Snapshots survive the trip through JSON unchanged, and nothing that is not one gets through."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
import strategies
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tao
from tao import codec, library
from tao.model import CacheNote, InputError, Node, Params, Session, Snapshot, ToolCall

many = settings(max_examples=1000, suppress_health_check=list(HealthCheck))

NAMED = {path.stem: path for path in sorted((library.folder("data") / "snapshots").glob("*.json"))}

FULL = Snapshot(
    5.0,
    (Node("n0", 1000),),
    (
        Session(
            *("a", 300, "tool", 2, None, 0.5, {"n0": CacheNote(200, 1.0)}),
            ToolCall("bash", 1.0, "sleep", "sleep 4", deadline_s=6.0, expected_s=2.5),
            ("n0",),
        ),
    ),
    20,
)


def refusal(data):
    """The message with which this text, or the JSON of this data, is refused: one line, naming the source."""
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(InputError) as caught:
        codec.from_json(text, "my.json")
    message = str(caught.value)
    assert message.startswith("my.json: ")
    assert message.isprintable()
    assert len(message) < 400
    return message


def changed(path, value):
    """The full snapshot as plain data with the value at `path` replaced (or dropped: `...`)."""
    data = codec.to_dict(FULL)
    *way, last = path
    inner = data
    for step in way:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


# There and back


@many
@given(strategies.cases())
def test_the_round_trip_is_exact(case):
    snapshot, _ = case
    text = codec.to_json(snapshot)
    back = codec.from_json(text)
    assert back == snapshot
    assert repr(back) == repr(snapshot)  # to the last bit, and 1 stays 1 while 1.0 stays 1.0
    assert codec.to_json(back) == text
    assert codec.from_json(codec.to_json(snapshot, indent=2)) == snapshot


@many
@given(st.floats(-1e14, 1e14), st.floats(-1e14, 1e14), st.text(min_size=1), st.text())
@example(-0.0, 5e-324, "\U0001d54f", "\ud800\0\u2028")
def test_any_float_and_any_text_survive(now_s, earlier_s, name, command):
    tool = ToolCall(name, min(now_s, earlier_s), command, command, deadline_s=earlier_s)
    snapshot = Snapshot(now_s, (Node(name, 1),), (Session(name, 1, tool=tool, resident_on=name),))
    assert repr(codec.from_json(codec.to_json(snapshot))) == repr(snapshot)


@pytest.mark.parametrize("name", NAMED)
def test_the_files_in_the_package_say_the_same_when_written_again(name):
    data = json.loads(NAMED[name].read_text("utf-8"))
    assert codec.to_dict(tao.load(name)) == data


def test_the_field_names_are_those_of_the_design():
    data = codec.to_dict(FULL)
    session = data["sessions"][0]
    assert list(data) == ["schema", "now_s", "shared_prefix_tokens", "nodes", "sessions"]
    assert set(data["nodes"][0]) == {"id", "capacity_tokens"}
    assert set(session) == {
        *("id", "context_tokens", "phase", "turn", "resident_on", "waiting_since_s"),
        *("cached", "tool", "eligible"),
    }
    assert set(session["cached"]["n0"]) == {"tokens", "seen_at_s"}
    assert set(session["tool"]) == {
        *("name", "command_class", "command", "started_s"),
        *("deadline_s", "expected_s", "finished_s"),
    }


def test_what_has_a_default_may_be_left_out():
    text = """{"now_s": 3, "nodes": [{"id": "n0", "capacity_tokens": 9}], "sessions": [
        {"id": "a", "context_tokens": 5},
        {"id": "b", "context_tokens": 5, "tool": {"name": "ls", "started_s": 1}}]}"""
    assert codec.from_json(text) == Snapshot(
        3, (Node("n0", 9),), (Session("a", 5), Session("b", 5, tool=ToolCall("ls", 1)))
    )


# What is refused


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1], 1.5, True])
def test_another_version_is_refused(schema):
    assert refusal(changed(["schema"], schema)) == (
        f"my.json: schema is {schema!r}; this version of tao reads schema 1"
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (["now_s"], "snapshot: field 'now_s' is missing; add it"),
        (["nodes"], "snapshot: field 'nodes' is missing; add it"),
        (["sessions"], "snapshot: field 'sessions' is missing; add it"),
        (["nodes", 0, "capacity_tokens"], "nodes[0]: field 'capacity_tokens' is missing; add it"),
        (["sessions", 0, "id"], "sessions[0]: field 'id' is missing; add it"),
        (
            ["sessions", 0, "cached", "n0", "tokens"],
            "sessions[0].cached['n0']: field 'tokens' is missing; add it",
        ),
        (["sessions", 0, "tool", "name"], "sessions[0].tool: field 'name' is missing; add it"),
    ],
)
def test_a_missing_field_is_named_with_its_place(path, message):
    assert refusal(changed(path, ...)) == f"my.json: {message}"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (["now"], "snapshot"),
        (["nodes", 0, "capacity"], "nodes[0]"),
        (["sessions", 0, "ContextTokens"], "sessions[0]"),
        (["sessions", 0, "tool", "duration_s"], "sessions[0].tool"),
        (["sessions", 0, "cached", "n0", "age_s"], "sessions[0].cached['n0']"),
    ],
)
def test_an_unknown_field_is_answered_with_the_list(path, place):
    message = refusal(changed(path, 1))
    assert message.startswith(f"my.json: {place}: unknown field {path[-1]!r}; allowed: ")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["nodes"], {}, "nodes is {}; it must be a JSON array"),
        (["sessions"], None, "sessions is None; it must be a JSON array"),
        (["nodes", 0], "n0", "nodes[0] is 'n0'; it must be a JSON object"),
        (["sessions", 0], [1], "sessions[0] is [1]; it must be a JSON object"),
        (["sessions", 0, "cached"], [], "sessions[0].cached is []; it must be a JSON object"),
        (["sessions", 0, "cached", "n0"], 5, "sessions[0].cached['n0'] is 5; it must be a JSON object"),
        (["sessions", 0, "tool"], "bash", "sessions[0].tool is 'bash'; it must be a JSON object"),
        (
            ["sessions", 0, "eligible"],
            "n0",
            "sessions[0].eligible is 'n0'; it must be a list of node ids or null",
        ),
        (
            ["sessions", 0, "eligible"],
            [0],
            "sessions[0].eligible is [0]; it must be a list of node ids or null",
        ),
        (
            ["sessions", 0, "context_tokens"],
            -1,
            "session 'a': context_tokens is -1; it must be a whole number",
        ),
        (
            ["sessions", 0, "context_tokens"],
            1.0,
            "session 'a': context_tokens is 1.0; it must be a whole number",
        ),
        (["sessions", 0, "id"], 7, "session id is 7; it must be a string that is not empty"),
        (
            ["sessions", 0, "phase"],
            "idle",
            "session 'a': phase is 'idle'; it must be one of 'reasoning', 'tool'",
        ),
        (
            ["sessions", 0, "resident_on"],
            "x",
            "session 'a' is resident on node 'x', which is not in this snapshot",
        ),
        (["shared_prefix_tokens"], None, "snapshot: shared_prefix_tokens is None; it must be a whole number"),
    ],
)
def test_a_wrong_type_or_value_is_refused_with_its_place(path, value, message):
    assert refusal(changed(path, value)).startswith(f"my.json: {message}")


@pytest.mark.parametrize("data", [None, [], 5, 1.5, "snapshot", True])
def test_a_file_that_holds_no_object_is_no_snapshot(data):
    assert refusal(json.dumps(data)).endswith(f"snapshot is {data!r}; it must be a JSON object")


@pytest.mark.parametrize(
    "path", [["now_s"], ["sessions", 0, "tool", "started_s"], ["nodes", 0, "capacity_tokens"]]
)
@pytest.mark.parametrize("literal", [float("nan"), float("inf"), float("-inf")])
def test_not_a_number_and_infinity_are_refused(path, literal):
    assert f"{path[-1]} is {literal!r}; it must be " in refusal(changed(path, literal))


def test_not_a_number_is_never_written():
    with pytest.raises(InputError):
        Snapshot(float("nan"), (), ())
    assert "NaN" not in codec.to_json(FULL)


@pytest.mark.parametrize(
    "text",
    [
        '{"now_s": 1, "now_s": 2, "nodes": [], "sessions": []}',
        '{"now_s": 1, "nodes": [{"id": "n", "id": "n", "capacity_tokens": 1}], "sessions": []}',
        '{"now_s": 1, "nodes": [], "sessions": [{"id": "a", "context_tokens": 1, "cached": {"": 1, "": 1}}]}',
    ],
)
def test_a_key_that_appears_twice_is_refused(text):
    assert "appears twice in one JSON object; keep one" in refusal(text)


@pytest.mark.parametrize("digits", [16, 400, 4000, 5000, 200_000])
@pytest.mark.parametrize("path", [["now_s"], ["nodes", 0, "capacity_tokens"], ["schema"], ["sessions"]])
def test_numbers_of_any_length_are_refused(path, digits):
    text = json.dumps(changed(path, "HERE")).replace('"HERE"', "9" * digits)
    refusal(text)
    refusal(text.replace("9" * digits, f"1e{digits}"))


def test_numbers_of_any_length_in_plain_data_are_refused():
    with pytest.raises(InputError):
        codec.from_dict(changed(["nodes", 0, "capacity_tokens"], 10**5000))


@pytest.mark.parametrize("depth", [100, 900, 2_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_any_depth_of_nesting_is_refused(opening, closing, depth):
    nested = opening * depth + "1" + closing * depth
    refusal(nested)
    refusal(opening * depth)
    refusal(json.dumps(changed(["sessions", 0, "context_tokens"], "HERE")).replace('"HERE"', nested))


@pytest.mark.parametrize(
    "path", [["sessions", 0, "id"], ["sessions", 0, "phase"], ["sessions", 0, "eligible"]]
)
def test_a_message_quotes_only_the_start_of_something_long(path):
    refusal(changed(path, [["x"] * 10_000]))


# Damaged files


@pytest.mark.parametrize("name", ["two_nodes_trap", "session_177", "replay_01"])
def test_a_truncated_file_is_refused_wherever_it_ends(name):
    text = NAMED[name].read_text("utf-8").rstrip()
    codec.from_json(text)
    for prefix in accumulate(text[:-1], initial=""):
        with pytest.raises(InputError, match=r"^cut\.json: not valid JSON at line"):
            codec.from_json(prefix, "cut.json")


NASTY = (
    b"",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1",
    b"null",
    b"true",
    b'"',
    b"{",
    b"]",
    b",",
    b"\\ud800",
    b"\xff",
    b"\0",
)

edits = st.lists(
    st.tuples(
        st.integers(0, 2**20), st.sampled_from((0, 0, 1, 3)), st.binary(max_size=1) | st.sampled_from(NASTY)
    ),
    min_size=1,
    max_size=4,
)


@many
@given(st.sampled_from(list(NAMED)), edits)
def test_a_damaged_file_gives_a_snapshot_or_an_input_error(tmp_path_factory, name, edits):
    raw = NAMED[name].read_bytes()
    for at, dropped, inserted in edits:
        at %= len(raw)
        raw = raw[:at] + inserted + raw[at + dropped :]
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(raw)
    try:
        snapshot = tao.load(path)
    except InputError as e:
        message = str(e)
    else:  # the damage made another valid snapshot: it can be written, read and planned like any other
        assert codec.from_json(codec.to_json(snapshot)) == snapshot
        tao.plan(snapshot, "bfd")
        return
    assert message.startswith(f"{path}: ") or repr(str(path)) in message
    assert message.isprintable()


@pytest.mark.parametrize("name", ["", "no such file", "/", "x" * 5000, "a\0b", "replay_99.json"])
def test_a_name_that_leads_nowhere_is_refused(name):
    with pytest.raises(InputError, match="give a JSON file, or one of dp_beats_short_first"):
        tao.load(name)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "picture.json"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match="it is not UTF-8 text"):
        tao.load(Path(path))


# Plans


def test_a_plan_is_written_with_the_fields_that_the_command_line_documents():
    snapshot = Snapshot(
        0.0,
        (Node("n0", 8_000),),
        (Session("a", 5_000), Session("b", 4_000, cached={"n0": CacheNote(3_000, 0.0)})),
    )
    data = codec.plan_dict(tao.plan(snapshot, "dp", Params(quantum_tokens=1)))
    assert json.loads(json.dumps(data)) == {
        "planner": "dp",
        "problem": "quantized",
        "exact": True,
        "reason": "",
        "credit": 3000,
        "ready": 1,
        "tokens": 4000,
        "states": 1,
        "bound": {"credit": 3000, "ready": 1, "tokens": 4000},
        "gap": {"credit": 0, "ready": 0, "tokens": 0},
        "admitted": [{"session": "b", "node": "n0"}],
        "deferred": ["a"],
    }


def test_the_gap_of_a_written_plan_is_null_after_the_first_unproven_part():
    snapshot = Snapshot(
        0.0,
        (Node("n0", 8_000),),
        tuple(Session(x, 5_000, cached={"n0": CacheNote(3_000, 0.0)}) for x in "ab"),
    )
    gap = codec.plan_dict(tao.plan(snapshot, "bfd"))["gap"]
    assert gap["credit"] > 0
    assert json.dumps(gap).endswith('"ready": null, "tokens": null}')


@many
@given(strategies.cases())
def test_every_plan_can_be_written(case):
    snapshot, params = case
    plan = tao.plan(snapshot, "short_first", params)
    data = json.loads(json.dumps(codec.plan_dict(plan), allow_nan=False))
    assert {p["session"]: p["node"] for p in data["admitted"]} == plan.node_of()
    assert data["deferred"] == list(plan.deferred)
    assert (data["credit"], data["ready"], data["tokens"]) == plan.value
