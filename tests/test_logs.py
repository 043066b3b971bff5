"""Stories about logs: what is found in them, what a damaged one costs, and what never leaves them."""

import contextlib
import csv
import gzip
import io
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tao import cli
from tao.model import InputError
from tao.traces import READERS, Flag, Limits, export, load, open_workload, replay
from tao.traces.builder import Builder
from tao.traces.files import MB, objects
from tao.traces.report import Ledger

SHARED = Path(os.environ.get("TAO_SHARED", Path(__file__).parents[2] / "shared"))
RAW = SHARED / "traces" / "raw"
ABSENT = "is absent: recorded logs are no part of the project; TAO_SHARED may name the folder above traces/"
FUZZ = Path(__file__).parent / "fuzz_logs.py"


def raw(name):
    path = RAW / name
    if not path.exists():
        pytest.skip(
            f"{path} is absent: recorded logs are no part of the project; TAO_SHARED may name its folder"
        )
    return path


def samples():
    """Every kind of log there is."""
    if not RAW.is_dir():
        pytest.skip(
            f"{RAW} is absent: recorded logs are no part of the project; TAO_SHARED may name its folder"
        )
    return sorted(p for p in RAW.iterdir() if p.name != "edge_cases.jsonl")


@pytest.fixture
def log(tmp_path):
    """A function from rows (or text as it is) to the file that holds them, a line each."""

    def write(*rows, name="log"):
        path = tmp_path / name
        path.write_text("".join(r + "\n" if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
        return path

    return write


def said(kind, at, content, message_id=None, usage=None, **more):
    """A line of Claude Code's."""
    message = {"role": kind, "content": content} | ({"id": message_id, "usage": usage} if message_id else {})
    return {"type": kind, "sessionId": "s", "message": message, "timestamp": f"2026-01-01T00:{at}"} | more


def used(prompt, output):
    return {"input_tokens": prompt, "output_tokens": output}


def call(name, **given):
    return [{"type": "tool_use", "id": "t1", "name": name, "input": given}]


RESULT = [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]


# Hard cases, each with what is expected of it in the file.


def edge_cases():
    path = RAW / "edge_cases.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [None]


@pytest.mark.parametrize("case", edge_cases(), ids=lambda case: case["case"] if case else "absent")
def test_hard_cases_come_out_as_expected(case, log):
    if case is None:
        raw("edge_cases.jsonl")
    found = load(log(*case["lines"]))
    turns, calls, expected = found.turns, found.calls, dict(case["expect"])
    main = turns[found.parents[turns["session"]] < 0]
    flags = [Flag(int(f)) for f in turns["flags"]]
    same = lambda x, wanted: math.isnan(x) if wanted is None else x == pytest.approx(wanted, abs=1e-6)  # noqa: E731
    checks = {
        "turns": lambda x: len(turns) == x,
        "context_tokens": lambda x: turns["context_tokens"].tolist() == [x],
        "output_tokens": lambda x: turns["output_tokens"].tolist() == [x],
        "tool_seconds": lambda x: all(
            same(a, b) for a, b in zip(calls["seconds"], x if isinstance(x, list) else [x], strict=True)
        ),
        "turn0_tool_seconds": lambda x: same(turns["tool_s"][0], x),
        "main_turn0_tool_seconds": lambda x: same(main["tool_s"][0], x),
        "skipped_lines": lambda x: sum(c.times for c in found.report.skipped) == x,
        "flag": lambda x: any(x.split(" ")[0].upper() in f.name for f in flags if f.name),
        "turn1_new_prompt_tokens": lambda x: turns["new_tokens"][1] == x,
        "reusable_prefix_tokens": lambda x: turns["prefix_tokens"][1] == x,
        "sessions": lambda x: len(found) == x,
        "main_turns": lambda x: len(main) == x,
        "sub_turns": lambda x: len(turns) - len(main) == x,
        "human_seconds": lambda x: same(turns["human_s"][0], x),
        "sleep_hint": lambda x: np.nan_to_num(calls["asked_s"]).tolist() == x,
        "note": lambda x: True,
    }
    assert set(expected) <= set(checks)
    for name, wanted in expected.items():
        assert checks[name](wanted), (name, wanted, turns, calls)


def test_a_person_who_interrupts_a_tool_waits_and_no_tool_does(log):
    lines = [
        said("user", "00:00Z", "x"),
        said("assistant", "00:01Z", call("Bash", command="make"), "m1", used(100, 20)),
        said("user", "06:40Z", "x"),
        said("assistant", "06:42Z", [], "m2", used(150, 10)),
    ]
    found = load(log(*lines))
    assert math.isnan(found.turns["tool_s"][0])
    assert found.turns["human_s"][0] == 399
    assert Flag.NO_RESULT in Flag(int(found.turns["flags"][0]))
    (task,) = replay.workload(found).tasks
    assert (task.turns[0].tool, task.turns[0].tool_s) == ("human", 399)


def test_an_answer_goes_on_after_a_tool_only_as_the_same_request(log):
    """Tools may start before the answer ends; a gateway that numbers nothing must not merge what is apart."""
    parts = [
        said("assistant", "00:01Z", call("Read"), "m1", used(100, 1), requestId="r1"),
        said("user", "00:02Z", RESULT),
        said("assistant", "00:03Z", [], "m1", used(100, 30), requestId="r1"),
        said("user", "00:04Z", "x"),
        said("assistant", "00:05Z", [], "m1", used(140, 5), requestId="r1"),
    ]
    found = load(log(*parts))
    assert found.turns[["context_tokens", "output_tokens"]].tolist() == [(100, 30), (140, 5)]


def test_a_resumed_session_counts_what_it_inherits_once(log, tmp_path):
    first = [
        said("user", "00:00Z", "x", uuid="u0"),
        said("assistant", "00:01Z", call("Bash", command="ls"), "m1", used(100, 20), uuid="a1"),
        said("user", "00:03Z", RESULT, uuid="u1"),
    ]
    more = [said("assistant", "09:00Z", [], "m2", used(150, 10), uuid="a2", sessionId="s2")]
    copied = [row | {"sessionId": "s2"} for row in first]
    log(*first, name="a.jsonl")
    log(*copied, *more, name="b.jsonl")
    found = load(tmp_path)
    assert len(found.turns) == 2
    assert sum(c.times for c in found.report.skipped) == 3
    assert found.calls["seconds"].tolist() == [2.0]


def test_what_asks_a_person_is_no_tool_time(log):
    lines = [
        said("assistant", "00:00Z", call("AskUserQuestion"), "m1", used(100, 20)),
        said("user", "05:00Z", RESULT),
        said("assistant", "05:02Z", [], "m2", used(150, 10)),
    ]
    found = load(log(*lines))
    assert math.isnan(found.turns["tool_s"][0])
    assert found.turns["human_s"][0] == 300


# Files


def test_a_log_reads_the_same_however_it_is_packed(tmp_path):
    plain = raw("claude_code_2.1.69.jsonl")
    data = plain.read_bytes()
    packed = {
        "a.gz": gzip.compress(data),
        "b": gzip.compress(data),
        "c.txt": data,
        "d": data.replace(b"\n", b"\r\n"),
    }
    with contextlib.suppress(ImportError):
        import zstandard

        packed["e.zst"] = zstandard.compress(data)
    packed["f"] = b"[" + b",".join(data.splitlines()) + b"]"
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        assert load(tmp_path / name).same(load(plain)), name


def test_links_are_not_followed_and_hidden_files_left_alone(tmp_path):
    line = json.dumps(said("assistant", "00:01Z", [], "m1", used(100, 20)))
    (tmp_path / "logs").mkdir()
    (tmp_path / "outside").write_text(line)
    (tmp_path / "logs" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "logs" / ".hidden").write_text(line)
    assert load(tmp_path / "logs").report.files == 0


@pytest.mark.parametrize(
    ("line", "records", "torn"),
    [
        ('{"a": 1}', [{"a": 1}], 0),
        ('{"a": 1}{"b": 2}', [{"a": 1}, {"b": 2}], 0),
        ('{"a": {"x": 1}, "b{"c": [{"d": 3}]}', [{"c": [{"d": 3}]}], 1),
        ('{"a": [{"b": 1}, {"c"', [], 1),
        ('{"a": 1}{"b": [{"c": 2}', [{"a": 1}], 1),
        ("nonsense", [], 1),
        ("[1, 2]", [], 1),
        ('[{"a": 1}, {"b": 2}]', [{"a": 1}, {"b": 2}], 0),
        ("[" * 100_000, [], 1),
        ('{"a":' * 100_000, [], 1),
        ('{"a": NaN}', [{"a": pytest.approx(math.nan, nan_ok=True)}], 0),
        ("\ufeff" + '{"a": 1}', [{"a": 1}], 0),
    ],
)
def test_what_can_be_read_of_a_torn_line_is(line, records, torn):
    ledger = Ledger()
    assert list(objects(line.encode(), ledger)) == records
    assert sum(c.times for c in ledger.counts("skipped")) == torn


def test_lines_too_long_are_counted_and_not_read(tmp_path):
    path = tmp_path / "log"
    line = json.dumps(said("assistant", "00:01Z", [], "m1", used(100, 20))).encode()
    path.write_bytes(
        line + b"\n" + b"x" * (3 * MB) + b"\n" + line.replace(b"m1", b"m2").replace(b"100", b"120")
    )
    found = load(path, limits=Limits(line=MB))
    assert len(found.turns) == 2
    (skipped,) = found.report.skipped
    assert (skipped.times, skipped.places) == (1, ("file 1, line 2",))
    assert found.report.rows == 3


def bombs():
    zeros, lists = bytes(300 * MB), b"[" + b"[]," * (70 * MB // 3) + b"1]"
    rows = b'{"type":"user","sessionId":"s","message":{"content":"x"}}\n' * (100 * MB // 58)
    found = {
        "zeros": zeros,
        "lists": lists,
        "rows": rows,
        "packed twice": gzip.compress(gzip.compress(zeros)),
    }
    found["a line of lists"] = b'{"a": [' + b"[]," * (15 * MB // 3) + b"1]}\n" * 3
    return found | {"rows that tell nothing": b'{"a":1}\n' * (100 * MB // 8)}


def test_a_compressed_bomb_is_refused_with_a_word_on_the_limit(tmp_path):
    for name, content in bombs().items():
        level = 9 if name == "rows" else 1
        (tmp_path / name).write_bytes(gzip.compress(content, level) if name != "packed twice" else content)
    found = subprocess.run(
        [sys.executable, str(FUZZ), "0", *(str(tmp_path / name) for name in bombs())],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = json.loads(found.stdout)
    assert told["failed"] == 0, told["failures"]
    assert told["slowest_s"] < 10
    assert told["memory_mb"] < 500
    told = str(load(tmp_path / "rows").report)
    assert "once decompressed; decompress it yourself, or raise the limit" in told


def test_a_document_too_large_is_refused(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"requests": [' + b" " * (2 * MB) + b"]}")
    found = load(path, limits=Limits(line=MB, document=MB))
    assert len(found.report.unread) == 1


# Our own format, and others


@st.composite
def recordings(draw):
    """What any log may hold."""
    builder, turns = Builder(keep_names=True), []
    tokens = st.one_of(st.none(), st.integers(0, 200_000))
    moments = st.floats(0, 1e5) | st.floats(0, 1e9)  # days, and dozens of years
    seconds = st.one_of(st.just(math.nan), moments.map(lambda x: round(x, 6)))
    names = [builder.session(k, draw(st.integers(-1, k - 1))) for k in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, 12))):
        began = draw(seconds)
        turn = builder.turn(
            draw(st.sampled_from(names)),
            *(draw(tokens) for _ in range(3)),
            began,
            began + draw(seconds),
            prefix=draw(tokens),
            order=draw(st.one_of(st.just(math.nan), st.integers(0, 5).map(float))),
            flags=draw(st.sampled_from([0, Flag.CTX_DROP, Flag.OUTPUT_ESTIMATED | Flag.ERROR])),
        )
        turns.append(turn)
        if draw(st.booleans()):
            builder.take(turn, human=draw(seconds), llm=draw(seconds))
        for _ in range(draw(st.integers(0, 3))):
            tool = draw(st.sampled_from(["Bash", "Read", "tool", "AskUserQuestion", "mine"]))
            command = draw(st.sampled_from([None, "ls", "sleep 5", "pytest"]))
            one = builder.call(turn, tool, command, began=began, asked=draw(seconds))
            if draw(st.booleans()):
                builder.result(one, began + draw(seconds))
    return builder.finish()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@given(recordings())
@settings(max_examples=150)
def test_our_own_format_loses_nothing(scratch, recording):
    assert export.write(recording, scratch / "one") == ""
    again = load(scratch / "one", keep_names=True)
    assert again.same(recording)
    export.write(again, scratch / "two")
    assert (scratch / "two").read_bytes() == (scratch / "one").read_bytes()


@given(recordings())
@settings(max_examples=50)
def test_other_formats_keep_what_they_say_that_they_keep(scratch, recording):
    told = recording.turns[recording.turns["context_tokens"] > 0]
    for form in ("dynamo", "mooncake"):
        assert export.write(recording, scratch / form, form)
        rows = [json.loads(line) for line in (scratch / form).read_text().splitlines()]
        assert sorted(row["input_length"] for row in rows) == sorted(told["context_tokens"].tolist())
        for row in rows:
            assert len(row["hash_ids"]) == math.ceil(row["input_length"] / 512)
            assert len(set(row["hash_ids"])) == len(row["hash_ids"])
    export.write(recording, scratch / "csv", "csv")
    table = list(csv.DictReader(io.StringIO((scratch / "csv").read_text())))
    assert len(table) == len(recording.turns)
    again = load(scratch / "csv", keep_names=True).turns
    known = recording.turns["context_tokens"] > 0
    if known.all():
        for name in ("context_tokens", "output_tokens", "cached_tokens"):
            assert again[name].tolist() == recording.turns[name].tolist()


def test_the_schema_in_data_describes_the_rows(scratch):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[1] / "data" / "native.schema.json").read_text())
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    builder = Builder()
    turn = builder.turn(builder.session("a"), 600, 20, 100, 0.0, 1.0, flags=Flag.ERROR)
    builder.result(builder.call(turn, "Bash", "sleep 2", began=1.0), 3.0)
    builder.turn(builder.session("b", 0), 90, None, None, 2.0, 3.0)
    export.write(builder.finish(), scratch / "rows")
    for line in (scratch / "rows").read_text().splitlines():
        row = json.loads(line)
        check.validate(row)
        assert not check.is_valid(row | {"extra": 1})
        assert not check.is_valid(row | {"tao": row["tao"] | {"flags": ["odd"]}})


# Damage and secrets


def fuzz(count, files, timeout):
    found = subprocess.run(
        [sys.executable, str(FUZZ), str(count), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )
    told = json.loads(found.stdout)
    assert told["failed"] == 0, "\n".join(map(str, told["failures"][:3]))
    assert told["mutations"] == count * len(files)
    assert told["slowest_s"] < 10
    assert told["memory_mb"] < 500
    return told


def test_no_damage_gets_further_than_the_report():
    fuzz(200, samples(), 500)


@pytest.mark.long
def test_no_damage_gets_further_than_the_report_in_the_long_run():
    print(fuzz(10_000, samples(), 20_000))


SECRET = "hunter2"


def planted(node, draw, share):
    """The same with the secret in some strings and, as new keys, in every object."""
    if isinstance(node, dict):
        found = {key: planted(value, draw, share) for key, value in node.items()}
        return found | {f"{SECRET}-key": SECRET}
    if isinstance(node, list):
        return [planted(x, draw, share) for x in node]
    return f"{node} {SECRET}" if isinstance(node, str) and draw.random() < share else node


def secretive(path, draw, share):
    """A sample with secrets in it; of a table in cells."""
    data = path.read_text()
    with contextlib.suppress(ValueError):
        return json.dumps(planted(json.loads(data), draw, share))
    lines = []
    for line in data.splitlines():
        try:
            lines.append(json.dumps(planted(json.loads(line), draw, share)))
        except ValueError:
            cells = line.split(",")
            lines.append(",".join(f"{c}{SECRET}" if lines and draw.random() < share else c for c in cells))
    return "\n".join(lines)


@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_no_string_of_a_log_gets_out(tmp_path, share, capsys):
    draw, read = random.Random(share), 0
    for path in samples():
        for _ in range(2):
            folder = tmp_path / f"{SECRET}-folder"
            folder.mkdir(exist_ok=True)
            (folder / f"{SECRET}-{path.name}").write_text(secretive(path, draw, share))
            found = load(folder)
            read += len(found.turns)
            outputs = [str(found.report), repr(found), repr(found.report), repr(found.sessions)]
            for form in export.FORMATS:
                export.write(found, tmp_path / "out", form)
                outputs.append((tmp_path / "out").read_text())
            cli.main(["import", str(folder), "-o", str(tmp_path / "out"), "--json"])
            cli.main(["import", str(folder)])
            outputs += [(tmp_path / "out").read_text(), *capsys.readouterr()]
            with contextlib.suppress(InputError):
                outputs.append(repr(replay.workload(found)))
            for text in outputs:
                assert SECRET not in text, path.name
            (folder / f"{SECRET}-{path.name}").unlink()
    assert read > 100 or share > 0.5


def test_names_of_unknown_tools_are_kept_only_if_asked(log):
    lines = [said("assistant", "00:01Z", call("mcp__secret__x"), "m1", used(100, 20))]
    assert load(log(*lines)).tools == ("tool-1",)
    assert load(log(*lines), keep_names=True).tools == ("mcp__secret__x",)


# The command line


def run(capsys, *args):
    status = cli.main([str(a) for a in args])
    return status, *capsys.readouterr()


def test_import_writes_what_compare_reads(tmp_path, log, capsys):
    lines = [
        said("assistant", "00:01Z", call("Bash", command="bazel test //x"), "m1", used(100, 20)),
        said("user", "00:03Z", RESULT),
        said("assistant", "00:04Z", [], "m2", used(150, 10)),
    ]
    classes = tmp_path / "classes.json"
    classes.write_text('{"bazel test": "test"}')
    out = tmp_path / "out.jsonl"
    status, told, err = run(capsys, "import", log(*lines), "-o", out, "--classes", classes)
    assert (status, err) == (0, f"wrote {out} (native)\n")
    assert "1 session, 2 turns, 1 tool call" in told
    turn = open_workload(out).tasks[0].turns[0]
    assert (turn.tool, turn.tool_class, turn.tool_s) == ("Bash", "test", 2.0)
    status, told, err = run(capsys, "export", out, "-o", tmp_path / "out.csv", "--format", "csv")
    assert status == 0
    assert "; lost: " in err
    assert open_workload(tmp_path / "out.csv").tasks[0].turns[0].prompt_tokens == 100


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["import", "/nowhere"], "'/nowhere' cannot be opened (no such file or folder)"),
        (["import", "README"], "no request found in these logs; the report tells why"),
        (["export", "README", "-o", "x"], "no request found in these logs"),
        (["import", "log", "-o", "/nowhere/x"], "'/nowhere/x' cannot be written"),
        (["import", "log", "-o", "x", "--format", "xls"], "format is 'xls'; it must be one of native"),
        (["import", "log", "--classes", "/nowhere"], "--classes '/nowhere' cannot be read"),
        (["import", "log", "--classes", "log"], "must be a JSON object such as"),
        (["import", "log", "--max-mb", "0"], "--max-mb is 0"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, monkeypatch, capsys, log, args, message):
    log(said("assistant", "00:01Z", [], "m1", used(100, 20)))
    (tmp_path / "README").write_text("# nothing\n")
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *args)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def test_every_reader_says_no_to_rows_of_others():
    for reader in READERS.values():
        assert not reader.fits({})
        assert not reader.fits({"a": 1, "type": [], "message": {}})


def test_a_twin_can_be_published_instead_of_the_logs(tmp_path, capsys):
    draw, rows = random.Random(1), []
    for session in range(12):
        for turn in range(12):
            spent = draw.lognormvariate(0, 1)
            cells = (
                f"{SECRET}{session}",
                turn,
                1000 + draw.randrange(300) + 400 * turn,
                draw.randrange(20, 400),
            )
            rows.append(",".join(map(str, (*cells, SECRET, "test", round(spent, 3)))))
    log = tmp_path / "log.csv"
    log.write_text(
        "session,turn,context_tokens,output_tokens,tool,tool_class,tool_seconds\n" + "\n".join(rows)
    )
    twin = tmp_path / "twin.json"
    status, told, err = run(capsys, "import", log, "--statistics", "--twin", twin)
    assert status == 0
    assert "turns of a session" in told
    assert "not reproduced" in told or "alike" in told
    assert SECRET not in twin.read_text() + told
    assert f"wrote {twin} (parameters; --workload takes them)" in err
    work = open_workload(twin, seed=3, tasks=5)
    assert (work.name, len(work.tasks)) == ("twin", 5)
    assert open_workload(twin, seed=3, tasks=5) == work
    twin.write_text(twin.read_text().replace('"turns"', '"trns"'))
    with pytest.raises(
        InputError, match=r"twin\.json: must be an object with sessions, turns, .* missing: turns"
    ):
        open_workload(twin)


@pytest.mark.parametrize(
    ("name", "table", "session"),
    [
        (
            "claude_code_2.1.69.jsonl",
            "swe_rebench_claude_code_claude",
            "emp:study_pytorch_ignite_20260305_170357_retry",
        ),
        ("claude_code_2.0_local_glm.jsonl", "swe_rebench_claude_code_glm", "il:asottile__pyupgrade-939:a1"),
    ],
)
def test_transcripts_agree_with_what_others_made_of_them(name, table, session):
    found, path = load(raw(name)), SHARED / "traces" / "norm" / f"{table}.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["session"] == session]
    compared = 0
    for turn, row in zip(found.turns[:-1], rows, strict=False):  # the sample's last request is cut off
        assert turn["context_tokens"] == int(row["context_tokens"])
        if row["out_src"] == "usage":
            assert turn["output_tokens"] == int(row["output_tokens"])
        if row["tool_seconds"]:
            assert turn["tool_s"] == pytest.approx(float(row["tool_seconds"]), abs=0.0011)
        compared += 1
    assert compared == len(found.turns) - 1 > 10


@pytest.mark.parametrize(
    "columns",
    [
        "program_id,step_id,tool_call_s",
        "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
        "session,turn,context_tokens,output_tokens",
    ],
)
def test_a_table_is_what_its_first_line_says_to_every_reader_of_it(log, columns):
    """A first line parted by two signs is no table for one who looks and another for one who reads."""
    names = columns.split(",")
    for k in range(1, len(names)):
        for sign in (";", "\t"):
            mixed = ",".join(names[:k]) + sign + ",".join(names[k:])
            found = load(log(mixed, ",".join("1" * len(names)), ",".join("1" * (len(names) - 1))))
            assert bool(len(found.turns)) != bool(found.report.unread)  # a torn name may be one nobody needs
    row = ",".join("1" * len(names))
    assert len(load(log(columns, row)).turns) == len(
        load(log("", columns.replace(",", ";"), row.replace(",", ";"))).turns
    )
