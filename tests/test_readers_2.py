"""Stories about WEKA, mini-swe-agent, SWE-agent, LMCache, Mooncake, ThunderAgent, and our own table."""

import csv
import gzip
import io
import json
import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tao.traces import Flag, load, mini_swe, mooncake

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
NAN = math.nan


def recorded(name):
    path = SHARED / "traces" / name
    if not path.exists():
        pytest.skip(
            f"{path} is absent: recorded traces are no part of the project; "
            "TAO_SHARED may name the folder above traces/"
        )
    return path


def norm(name):
    with gzip.open(recorded(f"norm/{name}.csv.gz"), "rt", encoding="utf-8", newline="") as f:
        return list(csv.DictReader(f))


@pytest.fixture
def log(tmp_path):
    """A function from a document, lines of JSON or text to what is imported of them."""

    def read(*rows, name="log", also=()):
        path = tmp_path / name
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
        return load(path, *also)

    return read


def column(recording, name):
    """A column of the turns as a list, with None for what is not known."""
    return [None if x == -1 or x != x else x for x in recording.turns[name].tolist()]


def said(counts):
    return {count.what: count.times for count in counts}


def times(recording):
    return [None if x != x else x for x in recording.calls["seconds"].tolist()]


# WEKA


def request(t, tokens, out, *, block=64, fork=None, **more):
    """A request whose prompt begins as all others do, up to the token where it forks."""
    same = tokens // block if fork is None else fork // block
    blocks = [*range(same), *range(10_000 + t, 10_000 + t + tokens // block - same)]
    return {"t": t, "type": "s", "in": tokens, "out": out, "hash_ids": blocks} | more


def session(*requests, **more):
    return {"id": "x", "block_size": 64, "requests": list(requests)} | more


RESULT = {"input_types": ["tool_result"]}
CALLS = {"stop": "tool_use"}


def test_a_recorded_weka_session_agrees_with_the_table():
    recording = load(recorded("raw/weka_trace_small.json"))
    rows = [r for r in norm("weka_claude_code") if r["session"] == "w0480"]
    assert column(recording, "context_tokens") == [int(r["context_tokens"]) for r in rows]
    assert column(recording, "output_tokens") == [int(r["output_tokens"]) for r in rows]
    assert column(recording, "start_s") == [float(r["t_start"]) for r in rows]
    assert recording.turns["prefix_tokens"].tolist() == [0, 134272, 134598 + 1650, 141052 + 215]
    assert column(recording, "tool_s") == [7, None, None, None]
    assert (len(recording), len(recording.calls), recording.report.rows) == (1, 1, 4)
    assert recording.report.clock_s == 1


def test_weka_think_time_is_the_tools_or_a_persons(log):
    recording = log(
        session(
            request(0, 1000, 10, api_time=2.5, **CALLS),
            request(10, 1100, 10, api_time=1.0, think_time=7.0, stop="end_turn", **RESULT),
            request(311, 1200, 0, api_time=1.0, think_time=300.0, input_types=["text"], **CALLS),
            request(320, 1300, 5, think_time=8.0, input_types=["text"], stop="end_turn"),
        )
    )
    assert column(recording, "llm_s") == [2.5, 1.0, 1.0, None]
    assert column(recording, "tool_s") == [7.0, None, None, None]
    assert column(recording, "human_s") == [None, 300.0, 8.0, None]
    assert times(recording) == [7.0, None]  # the second call has no result
    assert recording.turns["flags"].tolist()[2] == Flag.NO_RESULT | Flag.ZERO_OUTPUT
    assert column(recording, "output_tokens") == [10, 10, 0, 5]


def test_weka_think_time_after_an_answer_without_an_end_is_not_counted_twice(log):
    recording = log(
        session(
            request(0, 1000, 10, api_time=1.0, **CALLS),
            request(5, 1100, 10, think_time=4.0, stop="", **RESULT),
            request(105, 1200, 10, think_time=104.0, stop="", input_types=["text"]),
            request(125, 1300, 10, think_time=124.0, stop="", **RESULT),
        )
    )
    assert column(recording, "human_s") == [None, 100.0, None, None]
    assert column(recording, "tool_s") == [4.0, None, None, None]
    assert times(recording) == [4.0, None]


def test_weka_blocks_tell_what_two_prompts_have_in_common(log):
    recording = log(
        session(
            request(0, 1000, 100, fork=1000),
            request(10, 1300, 100, fork=640),  # rewritten from token 640 on
            request(20, 300, 10, fork=256),  # a new context
            request(30, 300, 10) | {"hash_ids": [1]},  # the hashes do not fit: nothing is told
        )
    )
    assert recording.turns["prefix_tokens"].tolist() == [0, 640, 256, 300]
    assert recording.turns["flags"].tolist()[2] & Flag.CTX_DROP
    assert said(recording.report.repaired)["hash blocks that do not fit the prompt's length, left aside"] == 1


def test_a_weka_request_sent_again_without_streaming_is_one_turn(log):
    first = request(0, 1000, 90, stop="", input_types=["text"])
    again = first | {"t": 4, "type": "n", "out": 80, "stop": "tool_use", "api_time": 2.0, "input_types": []}
    recording = log(session(first, again, request(9, 1200, 5, think_time=3.0, **RESULT)))
    assert column(recording, "output_tokens") == [80, 5]
    assert column(recording, "llm_s") == [6.0, None]
    assert column(recording, "tool_s") == [3.0, None]
    assert sum(said(recording.report.skipped).values()) == 1


def test_weka_sub_agents_are_sessions_of_their_own(log):
    def agent(name, t, lasts, *inner, **more):
        agents = {"t": t, "type": "subagent", "agent_id": name, "duration_ms": lasts, "requests": list(inner)}
        return agents | more

    recording = log(
        session(
            request(100, 1000, 10, api_time=1.0, **CALLS),
            agent("a", 101, 60_000, request(101, 500, 5, **CALLS), request(120, 600, 5, **RESULT)),
            agent("b", 101, None, request(3, 500, 5), status="async_launched"),
            request(170, 1200, 10, think_time=69.0, **RESULT),
        )
    )
    assert recording.sessions == ("s1", "s1.1", "s1.2")
    assert recording.parents.tolist() == [-1, 0, 0]
    assert column(recording, "start_s") == [0, 70, 1, 20, 4]  # b's clock begins with b
    assert times(recording) == [60.0, None, None]
    assert [recording.classes[k] for k in recording.calls["tool_class"]] == ["subagent", "subagent", "other"]
    assert column(recording, "tool_s") == [69.0, None, None, None, None]
    assert column(recording, "human_s") == [None] * 5
    assert recording.turns["flags"].tolist()[0] & Flag.BACKGROUND


def test_a_long_weka_document_in_one_line_is_known_by_its_whole(log):
    rows = [request(10 * k, 128_000 + 640 * k, 10, think_time=5.0) for k in range(30)]
    old = [request(10, 1000, 1, api_time=4.0, **CALLS), request(20, 1200, 1, **RESULT)]
    assert len(json.dumps(session(*rows))) > 256 * 1024
    assert len(log(session(*rows)).turns) == 30
    assert column(log(session(*old), name="old"), "tool_s") == [6.0, None]  # without think_time


def test_a_document_that_is_cut_off_is_said_to_be(log):
    text = json.dumps(session(request(0, 1000, 10)))
    assert said(log(text[:-9]).report.unread) == {"JSON documents that are torn or cut off": 1}
    (what,) = said(log({"a": 1}, {"b": 2}, name="lines").report.unread)
    assert what.startswith("files of no known format")


def test_weka_requests_out_of_order_are_sorted_and_copies_left_out(log, tmp_path):
    rows = [request(0, 1000, 1), request(50, 1200, 3), request(20, 1100, 2)]
    copy = tmp_path / "copy"
    copy.write_text(json.dumps(session(*rows)))
    recording = log(session(*rows), also=[copy])
    assert column(recording, "output_tokens") == [1, 2, 3]
    assert recording.turns["flags"].tolist() == [0, Flag.OUT_OF_ORDER, 0]
    assert said(recording.report.skipped) == {"requests that are copies from another place": 3}


# mini-swe-agent


def usage(prompt, output, cached=0):
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}


def trajectory(*messages, **more):
    return {"info": {"mini_version": "1.17"}, "messages": list(messages)} | more


def test_a_recorded_mini_swe_run_agrees_with_the_table():
    recording = load(recorded("raw/mini_swe_agent_1.15.traj.json"))
    rows = [r for r in norm("swe_verified_mini_gemini3") if r["session"] == "pylint-dev__pylint-6903"]
    for name in ("context_tokens", "output_tokens", "cached_tokens"):
        assert column(recording, name) == [int(r[name]) for r in rows]
    assert column(recording, "start_s") == [float(r["t_start"]) for r in rows]
    named = [recording.classes[k] for k in recording.calls["tool_class"]]
    assert named[:15] == [r["tool_class"] for r in rows[:15]]
    assert set(column(recording, "tool_s")) == {None}  # whole seconds tell no tool time
    assert (len(recording.turns), len(recording.calls), recording.report.rows) == (16, 16, 34)
    assert (recording.report.unknown_share, recording.report.clock_s) == (1, 1)


def test_mini_swe_stamps_of_answers_and_observations_give_times(log):
    def answer(at, text, tokens):
        extra = {"response": {"created": 1, "usage": usage(*tokens)}}
        return {"role": "assistant", "content": text, "timestamp": at, "extra": extra}

    recording = log(
        trajectory(
            {"role": "user", "content": "do", "timestamp": 100.0},
            answer(102.0, "```bash\nsleep 3\n```", (50, 9)),
            {"role": "user", "content": "<returncode>1</returncode>", "timestamp": 105.25},
            answer(106.0, "two\n```bash\nls\n```\n```bash\npwd\n```", (90, 9)),
            {"role": "user", "content": "one, please", "timestamp": 106.1},
            answer(107.0, "```bash\necho x\n```", (99, 9)),
        )
    )
    assert column(recording, "llm_s") == [2.0, 0.75, 0.9]
    assert column(recording, "tool_s") == [3.25, None, None]
    assert (times(recording), recording.calls["asked_s"].tolist()[0]) == ([3.25, None], 3.0)
    assert recording.turns["flags"].tolist() == [Flag.ERROR, 0, Flag.NO_RESULT]


def test_mini_swe_2_calls_tools_and_counts_answers_that_were_no_action(log):
    def answer(at, ident, *commands, prompt=100):
        extra = {"actions": [{"command": c} for c in commands], "timestamp": at}
        return {
            "role": "assistant", "content": None,
            "extra": extra | {"response": {"id": ident, "created": 5, "usage": usage(prompt, 7, 3)}},
        }  # fmt: skip

    def result(at, code):
        return {"role": "tool", "content": "x", "extra": {"timestamp": at, "returncode": code}}

    bad = {"interrupt_type": "FormatError", "response": {"id": "r2", "created": 6, "usage": usage(150, 4)}}
    run = trajectory(
        {"role": "user", "content": "do"},
        answer(10.0, "r1", "pytest -q"),
        result(12.5, 0),
        {"role": "user", "content": "no tool call", "extra": bad},
        answer(20.0, "r3", "ls", "cat x", prompt=200),
        result(21.0, 0),
        result(21.0, 2),
        {"object": "response", "id": "r4", "created_at": 7, "extra": {"timestamp": 23.0, "actions": []},
         "usage": {"input_tokens": 300, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 8}}},
        info={"mini_version": "2.0", "model_stats": {"api_calls": 6}},
    )  # fmt: skip
    recording = log(run)
    assert column(recording, "context_tokens") == [100, 150, 200, 300]
    assert column(recording, "cached_tokens") == [3, 0, 3, 8]
    assert column(recording, "tool_s") == [2.5, None, 1.0, None]
    assert times(recording) == [2.5, None, None]  # of two that ran in turn only the sum is known
    assert recording.turns["flags"].tolist()[2] == Flag.ERROR
    assert column(recording, "human_s") == [None] * 4
    told = said(recording.report.repaired)
    assert told["requests that the totals count and the log does not hold"] == 2
    assert len(log(run, run, name="two").turns) == 0  # two documents are none, and no crash


def test_a_mini_swe_answer_without_usage_is_estimated_and_flagged(log):
    recording = log(
        trajectory(
            {"role": "system", "content": "x" * 330},
            {"role": "assistant", "content": [{"type": "text", "text": "y" * 33}]},
            {"role": "user", "content": "z" * 66},
            {"role": "assistant", "content": "y" * 33, "extra": {"response": {"usage": usage(500, None)}}},
        )
    )
    assert column(recording, "context_tokens") == [100, 500]
    assert column(recording, "output_tokens") == [10, 10]
    both = Flag.CONTEXT_ESTIMATED | Flag.OUTPUT_ESTIMATED
    assert recording.turns["flags"].tolist() == [both, Flag.OUTPUT_ESTIMATED]


def test_a_copied_mini_swe_run_is_counted_once(tmp_path):
    answers = [
        {
            "role": "assistant",
            "content": "",
            "extra": {"response": {"id": k, "created": 1, "usage": usage(9, 9)}},
        }
        for k in "abc"
    ]
    for name in ("one", "two"):
        info = {"mini_version": "1.17", "model_stats": {"api_calls": 3}}
        (tmp_path / name).write_text(json.dumps(trajectory(*answers, info=info)))
    recording = load(tmp_path)
    assert recording.report.repaired == ()
    assert (len(recording), len(recording.turns)) == (1, 3)
    assert said(recording.report.skipped) == {"answers that are copies from another place": 3}


def test_commands_are_what_stands_between_fences():
    assert mini_swe.commands("x ```bash \nls\n\ncat\n``` y ```mswea_bash_command\npwd\n```") == [
        "ls\n\ncat",
        "pwd",
    ]
    assert mini_swe.commands("```bash\n```") == [""]
    assert mini_swe.commands("```python\nx\n``` ```bash\nopen") == mini_swe.commands(None) == []
    assert mini_swe.commands("```bash\nx" * 200_000 + "\n" * 200_000) == []  # and soon


# SWE-agent


def test_the_recorded_swe_agent_run():
    recording = load(recorded("raw/swe_agent_1.0.traj"))
    steps = json.loads(recorded("raw/swe_agent_1.0.traj").read_text())["trajectory"]
    assert (len(recording), len(recording.turns), len(recording.calls)) == (1, 11, 11)
    assert times(recording) == [round(s["execution_time"], 6) for s in steps]
    assert column(recording, "tool_s") == times(recording)
    both = Flag.CONTEXT_ESTIMATED | Flag.OUTPUT_ESTIMATED
    assert {f & both for f in recording.turns["flags"].tolist()} == {both}
    for (a, b), step in zip(pairwise(recording.turns), steps, strict=False):
        grown = (len(step["response"]) + len(step["observation"])) / 3.3
        assert b["context_tokens"] - a["context_tokens"] == pytest.approx(grown, abs=1.01)
    assert (recording.report.clock_s, recording.report.rows) == (None, 11)


def step(action="ls", said=330, seen=660, **more):
    return {"action": action, "response": "x" * said, "observation": "y" * seen} | more


def run(*steps, sent=0, received=0, **more):
    stats = {"tokens_sent": sent, "tokens_received": received}
    return {"trajectory": list(steps), "info": {"model_stats": stats}, "history": []} | more


def test_swe_agent_tokens_are_scaled_to_the_totals(log):
    recording = log(run(step(), step(), step(), sent=6000, received=600))
    assert column(recording, "output_tokens") == [200, 200, 200]
    assert column(recording, "context_tokens") == [1600, 2000, 2400]  # the same first prompt in all of them
    history = [
        {"role": "system", "content": "s" * 3300},
        {"role": "assistant", "content": "d" * 330, "is_demo": True},
        {"role": "assistant", "content": "a" * 9999},
    ]
    with_history = log(run(step(), step(), sent=4800, history=history))
    assert column(with_history, "context_tokens") == [2112, 2688]  # 1100 and 1400, scaled
    assert sum(column(with_history, "context_tokens")) == 4800
    query = [{"role": "user", "content": [{"type": "text", "text": "q" * 660}]}]
    assert column(log(run(step(query=query), step())), "context_tokens") == [200, 500]
    both = log(run(step(query=query), step(query=query + query)))
    assert column(both, "context_tokens") == [200, 400]  # a history that was cut


def test_swe_agent_tools_and_times_that_are_absent(log):
    actions = ["str_replace_editor view /x", "sleep 2", "  ", "pytest -q", "submit"]
    recording = log(run(*map(step, actions)))
    assert [recording.classes[k] for k in recording.calls["tool_class"]] == [
        "read", "sleep", "test", "bookkeeping",
    ]  # fmt: skip
    assert times(recording) == [None] * 4
    assert recording.turns["flags"].tolist()[2] & Flag.NO_RESULT == 0  # nothing was called
    negative = log(run(step(execution_time=-1.0), step(execution_time=NAN)))
    assert times(negative) == [0.0, None]
    assert negative.turns["flags"].tolist()[0] & Flag.NEGATIVE


@pytest.mark.parametrize("best", [None, 0, 1], ids=["attempts only", "the first is best", "the last is best"])
@given(lengths=st.lists(st.integers(1, 4), min_size=2, max_size=4), sent=st.integers(0, 3))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_swe_agent_attempt_is_a_session_with_its_own_totals(log, best, lengths, sent):
    attempts = [
        run(*[step("ls", execution_time=1.0)] * n, sent=sent * 4000 * n, received=100 * n) for n in lengths
    ]
    document = {"attempts": attempts, "info": {}}
    if best is not None:
        stats = {"tokens_sent": sent * 4000 * sum(lengths), "tokens_received": 100 * sum(lengths)}
        document |= attempts[best] | {"info": {"model_stats": stats, "best_attempt_idx": best}}
    found = log(document)
    assert np.diff(found.first).tolist() == lengths
    alone = [log(attempt) for attempt in attempts]
    for name in ("context_tokens", "output_tokens", "tool_s"):
        assert found.turns[name].tolist() == [x for one in alone for x in one.turns[name].tolist()]
    assert found.report.rows == sum(lengths)


# LMCache


def logged(t, given, answered, session="a"):
    return {"timestamp": 1_760_000_000_000_000 + t, "input": given, "output": answered, "session_id": session}


def test_the_recorded_lmcache_run():
    recording = load(recorded("raw/lmcache_mini_swe.jsonl"))
    rows = [r for r in norm("lmcache_mini_swe") if r["session"] == "lm03"][:6]
    assert (len(recording), len(recording.turns)) == (1, 6)
    starts = [round(x, 3) for x in column(recording, "start_s")]
    assert starts == [float(r["t_start"]) for r in rows]
    assert sum(bool(f & Flag.OUT_OF_ORDER) for f in recording.turns["flags"].tolist()) == 1
    told = said(recording.report.repaired)
    assert told["prompts without the answers before them, which were added back"] == 6
    assert set(column(recording, "tool_s")) == {None}


def test_lmcache_answers_that_the_log_leaves_out_are_added_back(log):
    short = [logged(k * 10**6, "x" * (330 + 33 * k), "```bash\nls\n```" + "y" * 316) for k in range(4)]
    recording = log(*short[::-1])
    assert column(recording, "context_tokens") == [100, 210, 320, 430]
    assert recording.turns["prefix_tokens"].tolist() == [0, 200, 310, 420]
    assert [recording.classes[k] for k in recording.calls["tool_class"]] == ["search"] * 4
    whole = [logged(k * 10**6, "x" * (330 + 363 * k), "y" * 330, "b") for k in range(4)]
    told = log(*whole)
    assert column(told, "context_tokens") == [100, 210, 320, 430]  # they are in the prompts already
    assert list(said(told.report.repaired)) == ["tokens estimated from the length of the texts"]


def test_lmcache_sessions_are_told_apart_and_copies_left_out(log):
    rows = [logged(k * 10**6, "x" * 33 * (k + 1), "", s) for k in range(3) for s in "ab"]
    recording = log(*rows, rows[0], logged(9 * 10**6, [{"role": "user", "content": "x" * 330}], "", "c"))
    assert column(recording, "context_tokens") == [10, 20, 30, 10, 20, 30, 100]
    assert said(recording.report.skipped) == {"requests that are copies from another place": 1}


@pytest.mark.parametrize("unit", [1, 10**3, 10**6], ids=["s", "ms", "us"])
@pytest.mark.parametrize("whole", [True, False])
@given(
    after=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    year=st.integers(2010, 2090),
    rng=st.randoms(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lmcache_time_stamps_may_be_in_seconds_milliseconds_or_microseconds(
    log, unit, whole, after, year, rng
):
    moments = [(year - 1970) * 31_556_952 + second for second in after]
    stamps = [m * unit if whole else float(m * unit) for m in moments]
    rows = [logged(0, f"{k}", "ok") | {"timestamp": stamp} for k, stamp in enumerate(stamps)]
    rng.shuffle(rows)
    recording = log(*rows)
    assert column(recording, "start_s") == sorted(m - min(moments) for m in moments)


@given(lengths=st.lists(st.sampled_from("ab"), min_size=1, max_size=9), cuts=st.sets(st.integers(0, 9)))
@settings(max_examples=40, deadline=None)
def test_an_lmcache_log_tells_the_same_in_any_number_of_files(tmp_path_factory, lengths, cuts):
    rows = [logged(k * 10**6, "x" * (33 + 33 * k), "y" * 60, s) for k, s in enumerate(lengths)][::-1]
    whole, parts = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("parts")
    (whole / "log").write_text("\n".join(map(json.dumps, rows)))
    bounds = sorted({0, len(rows), *(c for c in cuts if c < len(rows))})
    for start, end in pairwise(bounds):
        (parts / f"{start:02d}").write_text("\n".join(map(json.dumps, rows[start:end])))
    one, many = load(whole), load(parts)
    assert one.same(many)
    assert said(one.report.repaired) == said(many.report.repaired)
    assert all(place.startswith("file") for c in many.report.repaired for place in c.places)
    assert not any("line" in place for c in many.report.repaired for place in c.places)


# Mooncake


def blocks(tokens, first, shared=()):
    count = -(-tokens // 512)
    return [*shared, *range(first, first + count - len(shared))]


def asked(tokens, ids, out=100, t=0):
    return {"timestamp": t, "input_length": tokens, "output_length": out, "hash_ids": ids}


def test_the_recorded_mooncake_head():
    recording = load(recorded("raw/mooncake_conversation_head.jsonl"))
    rows = list(map(json.loads, recorded("raw/mooncake_conversation_head.jsonl").read_text().splitlines()))
    assert (len(recording), len(recording.turns), len(recording.calls)) == (282, 300, 0)
    for name, key in (("context_tokens", "input_length"), ("output_tokens", "output_length")):
        assert sorted(column(recording, name)) == sorted(r[key] for r in rows)
    for start, end in pairwise(recording.first.tolist()):  # a conversation only grows
        assert (np.diff(recording.turns["context_tokens"][start:end]) > 0).all()
        assert (np.diff(recording.turns["start_s"][start:end]) > 10).all()  # no one reads faster
    assert said(recording.report.repaired) == {
        "requests joined to a session whose last prompt's whole blocks begin theirs": 18
    }


def test_mooncake_conversations_are_found_and_a_shared_beginning_is_none(log):
    a, b = blocks(1500, 10, [1]), blocks(1200, 20, [1])  # both begin with block 1
    later_a = blocks(2600, 30, a[:2])
    rows = [
        asked(1500, a, t=0),
        asked(1200, b, t=10),
        asked(700, blocks(700, 40, [1]), t=20),  # whole blocks: only the shared one
        asked(2600, later_a, t=3000),  # goes on with the first
        asked(1500, a, t=4000),  # the same prompt again is no later turn
        asked(3100, blocks(3100, 50, later_a[:5]), t=5000),
    ]
    recording = log(*rows)
    sessions = recording.turns["session"].tolist()
    assert [sessions.count(k) for k in range(len(recording))] == [3, 1, 1, 1]
    assert column(recording, "context_tokens")[:3] == [1500, 2600, 3100]
    assert recording.turns["prefix_tokens"].tolist()[:3] == [0, 1600, 2700]
    assert column(recording, "start_s")[:3] == [0, 3, 5]
    assert set(column(recording, "tool_s")) == set(column(recording, "human_s")) == {None}


def test_mooncake_rows_whose_hashes_do_not_fit_stand_alone(log):
    a = blocks(1500, 10)
    recording = log(
        asked(1500, a), asked(2600, a), asked(2600, None), {"input_length": 5, "output_length": 0}
    )
    assert len(recording) == 4
    assert said(recording.report.repaired) == {"hashes that are not one for each 512 tokens, left aside": 3}
    assert column(recording, "start_s") == [0, 0, 0, None]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms())
@settings(max_examples=60)
def test_mooncake_conversations_come_out_as_they_were_mixed(tmp_path_factory, lengths, rng):
    """Conversations that share a system prompt, their turns mixed but each in its order."""
    waiting = [[k] * length for k, length in enumerate(lengths)]
    order, state, rows = [], {}, []
    while any(waiting):
        k = rng.choice([w for w in waiting if w]).pop()
        tokens, ids, used = state.get(k, (600, [0], 1))
        tokens += rng.randrange(600, 1500)
        ids = [*ids[: min(used, len(ids))], *((k + 1) * 1000 + len(order) * 50 + n for n in range(99))]
        ids = ids[: -(-tokens // 512)]
        rows.append(asked(tokens, ids, t=len(rows)))
        order.append(k)
        state[k] = tokens, ids, tokens // 512
    path = tmp_path_factory.mktemp("mixed") / "log"
    path.write_text("\n".join(map(json.dumps, rows)))
    recording = load(path)
    assert len(recording) == len(lengths)
    found = {}
    for turn in recording.turns:
        found.setdefault(int(turn["session"]), []).append(order[round(turn["start_s"] * 1000)])
    assert sorted(len(set(f)) for f in found.values()) == [1] * len(lengths)


def test_agentic_rows_are_not_taken_for_plain_ones():
    row = asked(10, [1])
    assert mooncake.fits(row)
    assert not any(
        mooncake.fits(row | {key: None}) for key in ("session_id", "wait_for", "tao", "request_id")
    )
    assert not mooncake.fits({"input_length": 1})


# ThunderAgent

STEPS = "program_id,step_id,prefill_s,decode_s,pause_s,tool_call_s,kv_hit_rate,completed_at"


def test_the_synthetic_thunderagent_table():
    recording = load(recorded("raw/thunderagent_step_profiles.synthetic.csv"))
    assert [int(n) for n in np.diff(recording.first)] == [3, 2]
    assert times(recording) == [0.1304, 2.0116, 0.0941]
    assert column(recording, "tool_s") == [0.1304, 2.0116, None, 0.0941, None]
    assert column(recording, "llm_s") == [2.3154, 0.8553, 4.2095, 2.6082, 0.7035]
    assert set(column(recording, "context_tokens")) == set(column(recording, "output_tokens")) == {None}
    assert recording.report.rows == 5


def test_a_tool_time_stands_after_the_step_before(log):
    recording = log(
        STEPS,
        "b,2,1,1,0,0.5,,",  # the first step of b is not here
        "a,3,1,1,0,-2,0.9,",
        "a,1,1,1,0,0.0,,",
        "a,2,1,,0,7.5,,",
        "a,5,1,1,0,9,,",  # a fourth is missing
        "a,1,1,1,0,0.0,,",
        "a,x,1,1,0,1,,",
        "a,6,1",
    )
    assert [int(n) for n in np.diff(recording.first)] == [1, 4]
    assert times(recording) == [7.5, 0.0, None]
    assert column(recording, "llm_s") == [2, 2, None, 2, 2]
    assert recording.turns["flags"].tolist()[2] & Flag.NEGATIVE
    assert set(column(recording, "human_s")) == {None}
    assert said(recording.report.skipped) == {
        "rows that are copies from another place": 1,
        "rows without a program or a step": 1,
        "rows that have not as many fields as the first line": 1,
        "tool times before the first step of a program that is in the table": 1,
    }
    told = said(recording.report.repaired)
    assert told["tool times after steps that are not in the table, taken as unknown"] == 1


# Terminal-Bench's results


def test_the_recorded_results_hold_no_turns(tmp_path):
    path = recorded("raw/terminal_bench_results.json")
    (tmp_path / "a").mkdir()
    for name in ("results.json", "a/results.json"):
        (tmp_path / name).write_bytes(path.read_bytes())
    report = load(tmp_path).report
    assert (report.files, report.turns) == (2, 0)
    assert said(report.unread) == {
        "one trial's totals, no turns; give the agent's log or cast of the trial": 2
    }
    assert "vim" not in str(report)


def test_a_runs_results_hold_no_turns(log):
    report = log({"results": [{"is_resolved": True, "failure_mode": "unset"}], "n_resolved": 1}).report
    assert said(report.unread) == {"a run's totals, no turns; give the agent's log or cast of the trial": 1}


# Our own table

TABLES = {  # sessions, of sub-agents, turns
    "swe_verified_mini_gemini3": (500, 0, 20_163),
    "swe_rebench_claude_code_claude": (117, 15, 2_737),
    "swe_rebench_claude_code_glm": (112, 1, 5_641),
    "terminal_bench_mini_sonnet4": (171, 0, 3_484),
    "weka_claude_code": (738, 62, 44_483),
    "lmcache_mini_swe": (20, 0, 402),
    "tracelab_examples": (2, 0, 19),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_all_that_it_tells(name):
    recording, rows = load(recorded(f"norm/{name}.csv.gz")), norm(name)
    assert (len(recording), int((recording.parents >= 0).sum()), len(recording.turns)) == TABLES[name]
    for ours, theirs in (
        ("context_tokens", "context_tokens"),
        ("output_tokens", "output_tokens"),
        ("cached_tokens", "cached_tokens"),
        ("tool_s", "tool_seconds"),
        ("human_s", "human_seconds"),
        ("llm_s", "llm_seconds"),
    ):
        found = [x for x in column(recording, ours) if x is not None]
        told = [float(r[theirs]) for r in rows if r.get(theirs)]
        assert (len(found), sum(found)) == (len(told), pytest.approx(sum(told), abs=1e-3)), ours
    listed = sum(r["tools"].count("|") + 1 for r in rows if r.get("tools"))
    alone = sum(1 for r in rows if not r.get("tools") and (r["tool"] or r["tool_seconds"]))
    assert len(recording.calls) == listed + alone
    estimated = [f & Flag.OUTPUT_ESTIMATED > 0 for f in recording.turns["flags"].tolist()]
    assert sum(estimated) == sum(r.get("out_src") == "est" for r in rows)
    assert recording.report.skipped == ()


def test_tables_of_totals_are_refused():
    report = load(recorded("norm/terminal_bench_trials.csv.gz")).report
    assert said(report.unread) == {"totals per trial, without turns; give a file with a row per turn": 1}


WIDE = (
    "session,turn,context_tokens,output_tokens,tool,tool_class,tool_seconds,tools,sleep_req,"
    "human_seconds,t_start,llm_seconds,out_src,kind,cached_tokens,flags"
)


def test_all_columns_of_a_table_are_taken_over(log):
    recording = log(
        WIDE,
        "a,1,150,10,,,,,,30,9.5,,usage,main,,zero_out",
        'a,0,100,20,Bash,sleep,5.5,"Bash/sleep:5.5|Grep:0.03|mcp:x/y:",5,,0.0,1.5,est,main,7,err+ctx_drop+bg+rc1',
        "a.s1,0,50,5,,,,,,,2.0,,usage,sub,,no_result2",
    )
    assert recording.sessions == ("s1", "s1.1")
    assert column(recording, "start_s") == [0.0, 9.5, 2.0]
    assert column(recording, "llm_s") == [1.5, None, None]
    assert column(recording, "tool_s") == [5.5, None, None]
    assert column(recording, "human_s") == [None, 30.0, None]
    assert column(recording, "cached_tokens") == [7, None, None]
    assert times(recording) == [5.5, 0.03, None]
    assert np.array_equal(recording.calls["asked_s"], [5, NAN, NAN], equal_nan=True)
    assert [recording.tools[k] for k in recording.calls["tool"]] == ["Bash", "Grep", "tool-1"]
    assert [recording.classes[k] for k in recording.calls["tool_class"]] == ["sleep", "search", "other"]
    flags = recording.turns["flags"].tolist()
    assert flags[0] == Flag.OUTPUT_ESTIMATED | Flag.ERROR | Flag.CTX_DROP | Flag.BACKGROUND
    assert flags[1:] == [Flag.ZERO_OUTPUT | Flag.OUT_OF_ORDER, Flag.NO_RESULT]


def test_rows_of_a_table_that_fail_are_skipped_and_counted(log):
    rows = [
        "a,0,100,20,Bash,test,-1.5,,,,,,,,,",
        "a,1,150,x,Bash,test,nan,,,,,,,,,",
        "a,1,150,x,Bash,test,nan,,,,,,,,,",
        "a,1,160,9,Bash,test,1e99,,,,,,,,,",
        "a,two,150,9,,,,,,,,,,,,",
        "a,3,0,9,,,,,,,,,,,,",
        ",3,9,9,,,,,,,,,,,,",
        "a,4,9",
    ]
    recording = log(WIDE, *rows)
    assert column(recording, "context_tokens") == [100, 150, 160]
    assert column(recording, "output_tokens") == [20, None, 9]
    assert column(recording, "tool_s") == [0.0, None, None]
    assert recording.turns["flags"].tolist()[0] == Flag.NEGATIVE
    assert sum(said(recording.report.skipped).values()) == 5
    assert recording.report.rows == 8
    assert (
        said(recording.report.repaired)["rows that repeat a turn number of their session, kept in file order"]
        == 1
    )


def test_quotes_in_a_table_cost_no_more_than_their_row(log):
    head = "session,turn,context_tokens,output_tokens,note"
    good = log(head, 'a,0,100,20,"x, ""y""', 'z"', "a,1,150,20,", name="good")
    assert column(good, "context_tokens") == [100, 150]
    torn = log(head, 'a,0,100,20,"x', "a,1,150,20,", "a,2,160,20,", name="torn")
    assert column(torn, "context_tokens") == [150, 160]
    assert said(torn.report.skipped) == {"rows that have not as many fields as the first line": 1}
    assert (good.report.rows, torn.report.rows) == (2, 3)
    semicolons = log(head.replace(",", ";"), "a;0;100;20;x, y", name="semicolons")
    assert column(semicolons, "context_tokens") == [100]


# Whatever a log holds

VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.integers(), st.integers(10**20, 10**400),
    st.floats(), st.just(-1), st.just([]), st.just({}), st.just([{"a": [None]}]), st.just({"x": "y"}),
    st.just("\ud800"), st.just("2026-01-01T00:00:00Z"), st.just("nan"), st.just([1, "x", None]),
)  # fmt: skip
SOUND = [
    session(
        request(0, 1000, 10, api_time=2.5, **CALLS),
        {"t": 1, "type": "subagent", "agent_id": "a", "duration_ms": 5, "requests": [request(1, 500, 5)]},
        request(10, 1100, 10, api_time=1.0, think_time=7.0, stop="end_turn", **RESULT),
        request(30, 1200, 10, type="n", think_time=7.0),
    ),
    trajectory(
        {"role": "user", "content": "x", "timestamp": 1.0},
        {"role": "assistant", "content": "```bash\nls\n```", "timestamp": 2.0,
         "extra": {"response": {"id": "a", "created": 1, "usage": usage(9, 9)},
                   "actions": [{"command": "ls"}]}},
        {"role": "tool", "content": "y", "extra": {"timestamp": 3.0, "returncode": 0}},
    ),
    run(step(execution_time=1.0, query=[{"role": "user", "content": "q"}]), step(), sent=900, received=9,
        history=[{"role": "system", "content": "s"}]),
    [logged(k * 10**6, "x" * 50 * (k + 1), "```bash\nls\n```", "s") for k in range(3)],
    [asked(1500, blocks(1500, 1)), asked(2600, blocks(2600, 10, [1, 2]), t=9), asked(700, [5, 6])],
]  # fmt: skip


def places(value, path=()):
    """The ways to every value in a JSON value, itself last."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))
    if path:
        yield path


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def assert_sane(recording):
    turns, calls = recording.turns, recording.calls
    for name in ("context_tokens", "new_tokens", "prefix_tokens", "output_tokens", "cached_tokens"):
        assert (turns[name] >= -1).all(), name
    for seconds in (*(turns[n] for n in ("start_s", "llm_s", "tool_s", "human_s")), calls["seconds"]):
        assert not ((seconds < 0) | np.isinf(seconds)).any()
    for number in (turns["session"], calls["turn"]):
        assert (np.diff(number) >= 0).all()
    assert len(set(recording.sessions)) == len(recording)
    assert str(recording.report)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_makes_a_reader_fail(tmp_path, data):
    log = data.draw(st.sampled_from(SOUND))
    for _ in range(data.draw(st.integers(1, 3))):
        log = replaced(log, data.draw(st.sampled_from(list(places(log)))), data.draw(VALUES))
    path = tmp_path / "log"
    path.write_text("\n".join(map(json.dumps, log)) if isinstance(log, list) else json.dumps(log))
    assert_sane(load(path))


CELLS = st.one_of(
    st.sampled_from(["", "-1", "nan", "inf", "1e999", "9" * 40, "x", "0", "1.0", "-0.5"]),
    st.sampled_from(["a.s1", "sub", "|", "b/c:1|:"]),
    st.text(max_size=4),
)  # fmt: skip


@given(st.data(), st.sampled_from([STEPS, WIDE]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_cell_makes_a_table_fail(tmp_path, data, header):
    names = header.split(",")
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(names)
    for k in range(data.draw(st.integers(1, 6))):
        cells = [str(k // 3) if n in ("session", "program_id") else str(k % 3 + 1) for n in names]
        for place in data.draw(st.lists(st.integers(0, len(names) - 1), max_size=4)):
            cells[place] = data.draw(CELLS)
        table.writerow(cells)
    path = tmp_path / "table"
    path.write_bytes(text.getvalue().encode("utf-8", "replace"))
    assert_sane(load(path))


def test_no_text_of_a_log_comes_out(tmp_path):
    """Every string, key and file name is a secret, but those that the formats prescribe."""
    secret = "zq7"
    rows = [
        session(request(0, 1000, 10, model=secret, **CALLS), request(9, 1100, 1, **RESULT), id=secret),
        trajectory(
            {"role": "assistant", "content": f"```bash\n{secret} {secret}\n```", secret: secret,
             "extra": {"response": {"id": secret, "created": secret, "usage": usage(secret, 9)}}},
            trajectory_format=secret,
        ),
        run(step(action=f"{secret} {secret}", execution_time=secret), environment=secret),
        logged(0, secret, f"```bash\n{secret}\n```", secret),
        asked(1500, [secret]) | {"timestamp": secret},
        {"is_resolved": True, "failure_mode": secret, "task_id": secret, "results": secret},
    ]  # fmt: skip
    tables = [
        f"{STEPS}\n{secret},1,{secret},1,0,{secret},,{secret}\n{secret},{secret},1,1,0,1,,\n",
        f"{WIDE}\n{secret},0,9,9,{secret},{secret},{secret},{secret}/{secret}:{secret},,,,,,,,{secret}\n",
        f"{WIDE},{secret}\n{secret},{secret},9\n",
    ]
    for k, text in enumerate([*map(json.dumps, rows), *tables]):
        (tmp_path / f"{secret}{k}").write_text(text)
    recording = load(tmp_path)
    assert len(recording) >= 6
    told = (recording.sessions, recording.tools, recording.classes, str(recording.report), repr(recording))
    assert secret not in repr(told)
