"""Stories about logs, each told of a whole kind of them and not of one file."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao.traces import load, replay
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


@pytest.mark.parametrize("kind", [claude, codex, opentelemetry, dynamo, rows_of_dynamo])
@given(gap=st.integers(0, 5000).map(lambda ms: ms / 1000) | st.sampled_from([0.001, 0.999, 1.0]))
@settings(max_examples=25, deadline=None)
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
@settings(max_examples=25, deadline=None)
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
