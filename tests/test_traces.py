"""Stories about recorded workloads: what a file says, what it leaves open, what is refused."""

import gzip
import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tao.model import InputError
from tao.traces import open_workload
from tao.traces.normalized import read
from tao.workloads import WORKLOADS, Turn

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
NORM = SHARED / "traces" / "norm"

HEADER = "session,turn,context_tokens,output_tokens"
FULL = HEADER + ",cached_tokens,tool,tool_class,tool_seconds,sleep_req,human_seconds,kind,flags"


@pytest.fixture
def trace(tmp_path):
    """A function from lines of CSV to the file that holds them."""

    def write(*lines, name="mine.csv"):
        path = tmp_path / name
        path.write_bytes("\n".join(lines).encode() + b"\n")
        return path

    return write


def recorded(name):
    path = NORM / f"{name}.csv.gz"
    if not path.exists():
        pytest.skip(
            f"{path} is absent: recorded traces are no part of the project; "
            "TAO_SHARED may name the folder above traces/"
        )
    return path


def test_a_file_of_four_columns_is_enough(trace):
    workload = read(trace(HEADER, "a,0,100,20", "a,1,150,10", "b,0,70,5"))
    assert [(t.id, len(t.turns)) for t in workload.tasks] == [("a", 2), ("b", 1)]
    first, last = workload.tasks[0].turns
    assert (first.prompt_tokens, first.output_tokens, first.tool) == (100, 20, "tool")
    assert 0 < first.tool_s <= 60
    assert last == Turn(150, 120, 10)
    assert workload.name == "mine"
    assert workload.notes == ("tool times not in the file, drawn by command class: 1",)


def test_what_the_file_says_is_replayed_as_it_is(trace):
    workload = read(trace(FULL, "a,0,100,20,,bash,sleep,5.02,5.0,,,", "a,1,150,10,,,,,,,,"))
    assert workload.tasks[0].turns[0] == Turn(100, 0, 20, "bash", "sleep", 5.02, 5.0)
    assert workload.notes == ()


def test_plain_zipped_and_spreadsheet_files_read_alike(trace, tmp_path):
    plain = trace(HEADER + ", note", 'a,0,100.0, 20, "x, y"', "", "a,1,150,10,é")
    text = plain.read_bytes()
    zipped = tmp_path / "zipped.csv.gz"
    zipped.write_bytes(gzip.compress(text))
    spreadsheet = tmp_path / "spreadsheet.csv"
    spreadsheet.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    unnamed = tmp_path / "by_content"
    unnamed.write_bytes(gzip.compress(text))
    assert read(plain).tasks == read(zipped).tasks == read(spreadsheet).tasks == read(unnamed).tasks
    assert [read(p).name for p in (zipped, unnamed)] == ["zipped", "by_content"]


def test_turns_are_sorted_and_sessions_keep_the_order_of_the_file(trace):
    workload = read(trace(HEADER, "b,10,30,1", "a,0,5,1", "b,9,20,1", "b,2,10,1"))
    assert [t.id for t in workload.tasks] == ["b", "a"]
    assert [turn.prompt_tokens for turn in workload.tasks[0].turns] == [10, 20, 30]


def test_rows_of_one_turn_stay_in_file_order_and_are_counted(trace):
    workload = read(trace(HEADER, "a,0,10,1", "a,1,20,1", "a,1,30,1"))
    assert [turn.prompt_tokens for turn in workload.tasks[0].turns] == [10, 20, 30]
    assert "rows that repeat a turn number of their session, kept in file order: 1" in workload.notes


@pytest.mark.parametrize(
    ("row", "prefix", "why"),
    [
        ("a,1,150,10,,,,,,,,", 120, "grew: prompt and output are both still there"),
        ("a,1,120,10,,,,,,,,", 120, "nothing new"),
        ("a,1,110,10,,,,,,,,", 100, "hidden reasoning was not fed back"),
        ("a,1,40,10,,,,,,,,", 0, "shrank, and nobody says what survived"),
        ("a,1,150,10,,,,,,,,ctx_drop", 0, "rewritten, and nobody says what survived"),
        ("a,1,40,10,15,,,,,,,err+ctx_drop", 15, "the provider still found 15 tokens"),
        ("a,1,40,10,90,,,,,,,ctx_drop", 40, "never more than the prompt"),
        ("a,1,150,10,15,,,,,,,", 120, "a cold cache is not a changed prompt"),
    ],
)
def test_how_much_of_the_context_is_still_the_prefix(trace, row, prefix, why):
    workload = read(trace(FULL, "a,0,100,20,,,,,,,,", row))
    assert workload.tasks[0].turns[1].prefix_tokens == prefix, why


def test_missing_tool_times_are_drawn_by_class_and_cut_at_the_timeout(trace):
    classes = ["read", "test", "subagent", "sleep", "no such class"]
    rows = [f"{c}{k},{t},100,1,,x,{c},,,,," for c in classes for k in range(200) for t in (0, 1)]
    drawn = {c: [] for c in classes}
    for task in read(trace(FULL, *rows)).tasks:
        drawn[task.turns[0].tool_class].append(task.turns[0].tool_s)
    assert median(drawn["read"]) == pytest.approx(0.10, rel=0.2)
    assert median(drawn["test"]) == pytest.approx(1.5, rel=0.3)
    assert median(drawn["subagent"]) == pytest.approx(55, rel=0.3)
    assert max(drawn["subagent"]) > 60 >= max(drawn["test"] + drawn["no such class"])
    assert set(drawn["sleep"]) == {2, 3, 5, 10}


def test_a_sleep_without_a_time_takes_what_it_asked_for(trace):
    workload = read(
        trace(FULL, "a,0,9,1,,bash,sleep,,7.0,,,", "a,1,9,1,,bash,sleep,,90,,,", "a,2,9,1,,,,,,,,")
    )
    assert [(t.tool_s, t.sleep_s) for t in workload.tasks[0].turns[:2]] == [(7, 7), (60, 90)]


def test_drawn_times_depend_on_seed_and_session_only(trace):
    a, b = ["a,0,100,20", "a,1,150,10"], ["b,0,100,20", "b,1,150,10"]
    together, alone = read(trace(HEADER, *b, *a), seed=2), read(trace(HEADER, *a), seed=2)
    assert together.tasks[1] == alone.tasks[0]
    assert together.tasks[0].turns[0].tool_s != together.tasks[1].turns[0].tool_s
    assert alone.tasks[0].turns[0].tool_s == 0.473516  # the same in every process and release
    assert read(trace(HEADER, *a), seed=4).tasks != alone.tasks


def test_people_sub_agents_empty_outputs_and_last_tools_are_counted(trace):
    workload = read(
        trace(
            FULL,
            "a,0,100,0,,,,,,95.5,main,",
            "a,1,150,,,Task,subagent,3.0,,,main,",
            "a,2,200,5,,bash,test,9.0,,,main,",
            "a.s1,0,50,5,,,,,,,sub,",
        )
    )
    first, second, last = workload.tasks[0].turns
    assert (first.tool, first.tool_class, first.tool_s) == ("human", "human", 95.5)
    assert (first.output_tokens, second.output_tokens) == (1, 1)
    assert last == Turn(200, 151, 5)
    assert sorted(workload.notes) == [
        "outputs that were zero or missing, set to 1 token: 2",
        "sub-agent sessions, replayed on their own: 1",
        "tools after the last request of a session, left out: 1",
        "waits for a person, replayed as recorded as tool 'human': 1",
    ]


TIMED = HEADER + ",tool_seconds"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: no column session, turn, context_tokens, output_tokens (found: nothing)"),
        (b"session;turn;context_tokens\n", "(found: ...); the first line must name"),
        (b"session,turn,output_tokens\na,0,5\n", "line 1: no column context_tokens (found: session, turn, "),
        (f"{HEADER},turn\na,0,1,1,0\n".encode(), "line 1: the name of column 2 appears twice"),
        (f"{HEADER}\n".encode(), "holds no turns"),
        (
            f"{HEADER}\na,0,10,1\na,1,2\n".encode(),
            "line 3: 3 fields where the header has 4; is the file complete?",
        ),
        (f"{HEADER}\na,0,10,1,9\n".encode(), "line 2: 5 fields"),
        (f'{HEADER}\na,0,10,1\n"a,1,10,1\n'.encode(), "line 3: not valid CSV (unexpected end of data)"),
        (f"{HEADER}\n\n,0,10,1\n".encode(), "line 3: session, turn or context_tokens is empty"),
        (f"{HEADER}\na,,10,1\n".encode(), "line 2: session, turn or context_tokens is empty"),
        (f"{HEADER}\na,0,,1\n".encode(), "line 2: session, turn or context_tokens is empty"),
        (
            f"{HEADER}\na,0,nan,1\n".encode(),
            "line 2: context_tokens is no whole number from 1 to 2**40",
        ),
        (f"{HEADER}\na,0,0,1\n".encode(), "line 2: context_tokens is no whole number"),
        (f"{HEADER}\na,0,-5,1\n".encode(), "line 2: context_tokens is no whole number"),
        (f"{HEADER}\na,0,10.5,1\n".encode(), "line 2: context_tokens is no whole number"),
        (f"{HEADER}\na,0,{2**40 + 1},1\n".encode(), "line 2: context_tokens is no whole number"),
        (f"{HEADER}\na,0,{'9' * 5000},1\n".encode(), "line 2: context_tokens is no whole number"),
        (f"{HEADER}\na,0,10,1e3\n".encode(), "line 2: output_tokens is no whole number from 0"),
        (f"{HEADER}\na,-1,10,1\n".encode(), "line 2: turn is no whole number from 0"),
        (f"{TIMED}\na,0,10,1,nan\n".encode(), "line 2: tool_seconds is no number of seconds"),
        (f"{TIMED}\na,0,10,1,-3\n".encode(), "line 2: tool_seconds is no number of seconds"),
        (
            f"{TIMED}\na,0,10,1,1e9\n".encode(),
            "line 2: tool_seconds is no number of seconds up to 1,000,000",
        ),
        (f"{TIMED}\na,0,10,1,soon\n".encode(), "line 2: tool_seconds is no number of seconds"),
        (f"{HEADER}\na,0,10,1\n\xff".encode("latin-1"), "line 3: neither gzip nor UTF-8 text"),
        (b"PK\x03\x04\x8b\xff", "line 1: neither gzip nor UTF-8 text"),
        (
            gzip.compress(f"{HEADER}\na,0,10,1\n".encode(), mtime=0)[:-12],
            "broken gzip (Compressed file ended before",
        ),
        (gzip.compress(f"{HEADER}\na,0,10,1\n".encode(), mtime=0)[:-4] + b"\0\0\0\0", "broken gzip ("),
        (b"\x1f\x8bnonsense", "broken gzip ("),
        (gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, "broken gzip (Error -3"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_folder_is_not_a_trace(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("any.csv", "submission,task,total_input_tokens,total_output_tokens"),
        ("my_trials.csv", "submission,task,resolved"),
    ],
)
def test_totals_per_trial_are_refused_and_replayable_files_named(trace, name, header):
    with pytest.raises(InputError, match=r"totals per trial, without turns .* terminal_bench_mini_sonnet4"):
        read(trace(header, name=name))


whole = st.integers(1, 3000)
rows = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(0, 6),
        whole,  # context_tokens
        st.one_of(st.none(), st.integers(0, 500)),  # output_tokens
        st.one_of(st.none(), st.integers(0, 4000)),  # cached_tokens
        st.sampled_from(["", "read", "sleep", "web", "mystery"]),
        st.one_of(st.none(), st.floats(0, 1e6)),  # tool_seconds
        st.sampled_from(["", "ctx_drop", "err+ctx_drop"]),
    ),
    min_size=1,
    max_size=30,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "any.csv"


@given(rows=rows, seed=st.integers(0, 9))
def test_any_valid_file_becomes_a_valid_workload(scratch, rows, seed):
    cells = [
        (s, t, prompt, out, cached, "x" if c else "", c, tool_s, "", "", "main", flags)
        for s, t, prompt, out, cached, c, tool_s, flags in rows
    ]
    lines = [",".join("" if x is None else str(x) for x in row) for row in cells]
    scratch.write_text("\n".join([FULL, *lines]))
    workload = read(scratch, seed)
    prompts = {t.id: [turn.prompt_tokens for turn in t.turns] for t in workload.tasks}
    assert list(prompts) == list(dict.fromkeys(r[0] for r in rows))
    for session, found in prompts.items():
        in_turn_order = sorted((r for r in rows if r[0] == session), key=lambda r: r[1])
        assert found == [r[2] for r in in_turn_order]
    for task in workload.tasks:
        assert not task.turns[-1].tool
        assert all(0 <= turn.tool_s <= 1e6 and turn.tool for turn in task.turns[:-1])
        assert task.turns[0].prefix_tokens == 0
        for before, turn in pairwise(task.turns):
            # All of the context before, or at most its prompt: a part of the output is no prefix.
            assert turn.prefix_tokens <= turn.prompt_tokens
            assert turn.prefix_tokens == before.context_tokens or turn.prefix_tokens <= before.prompt_tokens
    assert read(scratch, seed) == workload


def test_a_name_opens_the_seeded_workload(trace):
    assert open_workload("swe-lite", seed=2, tasks=3) == WORKLOADS["swe-lite"](seed=2, tasks=3)


def test_a_path_opens_the_trace_and_its_first_sessions(trace):
    path = trace(HEADER, "a,0,100,20", "b,0,70,5")
    assert open_workload(path) == read(path)
    assert [t.id for t in open_workload(str(path), tasks=1).tasks] == ["a"]
    with pytest.raises(InputError, match="has 2; ask for fewer"):
        open_workload(path, tasks=3)


@pytest.mark.parametrize("name", ["swe-light", "x" * 5000, "nul\0"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(
        InputError, match=r"neither a workload nor a file; name one of swe-lite, .* path of a log"
    ):
        open_workload(name)


# traces/README.md: file, sessions (sub-agents included), turns; workloads.md 3.1: the share of prompt
# tokens that the previous prompt (and output) make up, main sessions; None: not in the table
RECORDED = [
    ("swe_verified_mini_gemini3", 500, 20_163, (0.963, 0.979)),
    ("swe_rebench_claude_code_claude", 102 + 15, 2_737, (0.957, 0.962)),
    ("swe_rebench_claude_code_glm", 111 + 1, 5_641, (0.976, 0.980)),
    ("terminal_bench_mini_sonnet4", 171, 3_484, (0.928, 0.966)),
    ("weka_claude_code", 676 + 62, 44_483, (0.961, 0.976)),
    ("lmcache_mini_swe", 20, 402, (0.933, 0.947)),
    ("tracelab_examples", 2, 19, None),
]


@pytest.mark.parametrize(("name", "sessions", "turns", "reuse"), RECORDED)
def test_recorded_traces_replay_whole(name, sessions, turns, reuse):
    workload = read(recorded(name))
    all_turns = [turn for t in workload.tasks for turn in t.turns]
    assert (len(workload.tasks), len(all_turns)) == (sessions, turns)
    if reuse:
        share = sum(t.prefix_tokens for t in all_turns) / sum(t.prompt_tokens for t in all_turns)
        assert reuse[0] - 0.0005 <= share <= reuse[1] + 0.0005


def test_swe_verified_lacks_every_tool_time_and_says_so():
    workload = read(recorded("swe_verified_mini_gemini3"))
    assert workload.notes == ("tool times not in the file, drawn by command class: 19,663",)
    assert mean(len(t.turns) for t in workload.tasks) == pytest.approx(40.3, abs=0.05)
    by_class = Counter(turn.tool_class for t in workload.tasks for turn in t.turns[:-1])
    assert by_class["edit"] == 5348
    asked = [turn.sleep_s for t in workload.tasks for turn in t.turns if turn.sleep_s is not None]
    assert len(asked) == 10


def test_terminal_bench_keeps_its_recorded_times():
    workload = read(recorded("terminal_bench_mini_sonnet4"))
    times = [turn.tool_s for t in workload.tasks for turn in t.turns[:-1]]
    assert max(times) == 62.069
    assert median(times) == pytest.approx(0.036, abs=0.004)  # last tools, all short, included there
    assert "tools after the last request of a session, left out: 165" in workload.notes


def test_interactive_sessions_wait_for_people():
    workload = read(recorded("weka_claude_code"))
    assert "waits for a person, replayed as recorded as tool 'human': 6,470" in workload.notes
    assert "sub-agent sessions, replayed on their own: 62" in workload.notes
    waits = [turn.tool_s for t in workload.tasks for turn in t.turns if turn.tool == "human"]
    assert median(waits) == pytest.approx(126, abs=1)


def test_the_recorded_trials_hold_no_turns():
    with pytest.raises(InputError, match="totals per trial"):
        read(recorded("terminal_bench_trials"))
