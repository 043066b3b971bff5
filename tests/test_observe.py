"""`tao observe`: logs of simulated runs, damaged ones, and servers of which only the metrics are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import RawServer, answers, whole

from tao.cli import main
from tao.live.observation import observe
from tao.model import InputError, Params
from tao.simulator import simulate

ASKED = {"session": "a", "node": "n0", "time": 1.0, "prompt_tokens": 900, "output_tokens": 50}


def log_of(policy, capacity=100_000, tasks=40):
    """What a cluster under that policy would have logged."""
    history = simulate("swe-lite", policy, nodes=3, workers=24, tasks=tasks, capacity_tokens=capacity)
    return [
        {
            "session": history.session_ids[t.session],
            "node": history.node_ids[t.node],
            "time": t.submitted_ps / 1e12,
            "first_token": t.first_token_ps / 1e12,
            "finished": t.finished_ps / 1e12,
            "prompt_tokens": t.prompt_tokens,
            "output_tokens": t.output_tokens,
            "cached_tokens": t.hit_tokens,
        }
        for t in history.turns
    ]


@pytest.mark.parametrize("capacity", [310_000, 60_000])
def test_taos_own_log_agrees_nearly_always(capacity):
    seen = observe(log_of("tao", capacity), kv_tokens=capacity).summary
    assert seen["same_node"] > 0.97 * seen["requests"]
    assert seen["credit_left_tokens"] < 0.01 * seen["credit_tokens"]


def test_round_robin_does_not_and_leaves_credit():
    seen = observe(log_of("vllm_rr"), kv_tokens=100_000).summary
    assert seen["same_node"] < 0.5 * seen["requests"]
    assert seen["credit_left_tokens"] > 0.2 * seen["credit_tokens"]


def test_whom_tao_would_hold_and_for_how_long_at_least():
    """Two sessions on a node for one: the second waits until the first has ended, 7 s later."""
    first = ASKED | {"finished": 10.0}
    second = ASKED | {"session": "b", "time": 3.0, "finished": 20.0}
    seen = observe([first, second], kv_tokens=2_000)
    assert [(r["tao"], r["held_s"]) for r in seen.rows] == [("n0", 0.0), (None, 7.0)]
    assert (seen.summary["held"], seen.summary["longest_held_s"]) == (1, 7.0)
    longer = [first | {"finished": 99.0}, second]  # ends before there is room for it
    assert observe(longer, kv_tokens=2_000).rows[1]["held_s"] == 17.0


def test_credit_ages_and_halves_every_ten_seconds():
    rows = [ASKED | {"finished": 2.0}, ASKED | {"time": 12.0, "prompt_tokens": 1000, "node": "n1"}]
    seen = observe(rows, kv_tokens=9_000).rows[1]
    assert (seen["tao"], seen["tao_credit"], seen["credit"]) == ("n0", 475, 0)
    slower = observe(rows, kv_tokens=9_000, params=Params(half_life_s=1e6)).rows[1]
    assert slower["tao_credit"] == 949


def test_times_in_all_forms_are_the_same():
    rows = log_of("tao", tasks=4)
    began_s = 1_750_000_000.0
    late = [r | {k: r[k] + began_s for k in ("time", "first_token", "finished")} for r in rows]
    iso = [
        r | {k: datetime.fromtimestamp(r[k], UTC).isoformat() for k in ("time", "first_token", "finished")}
        for r in late
    ]
    plain = [r | {"time": r["time"].replace("+00:00", "Z")} for r in iso]
    summaries = [observe(x, kv_tokens=100_000).summary for x in (late, iso, plain)]
    assert summaries[0] == summaries[1] == summaries[2]


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just([])
fields = st.sampled_from([*ASKED, "finished", "first_token", "cached_tokens"])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 39), fields, anything), max_size=30),
    st.lists(st.tuples(st.integers(0, 39), st.binary(max_size=30)), max_size=5),
    st.integers(0, 39),
)
def test_damaged_logs_lose_rows_and_never_raise(tmp_path_factory, changes, lines, cut):
    rows = [ASKED | {"session": f"s{k % 5}", "time": 1.0 * k, "finished": k + 0.5} for k in range(40)]
    for k, name, value in changes:
        rows[k] = rows[k] | {name: value}
    data = [json.dumps(row).encode() for row in rows]
    for k, line in lines:
        data[k] = line
    data[cut] = data[cut][: len(data[cut]) // 2]
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(b"\n".join(data))
    try:
        seen = observe(path, kv_tokens=5_000)
    except InputError:
        return
    assert len(seen.rows) == seen.summary["requests"] <= 40
    assert sum(seen.summary[name] for name in ("same_node", "other_node", "held")) == len(seen.rows)
    assert any("rows left out, the first in line" in note for note in seen.notes)
    json.dumps(seen.rows, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"session": None}, "session is missing"),
        ({"prompt_tokens": -1}, "prompt_tokens is not a number of tokens"),
        ({"time": 1.7e12}, "time is not a time in seconds"),
        ({"time": "yesterday"}, "time is not a time in ISO 8601"),
        ({"finished": 0.5}, "finished, first_token or time come in another order"),
        ({"time": 1e9}, "more than 23 days from the others"),
        ({"node": "n\n1"}, "node is not a name"),
    ],
)
def test_what_is_left_out_is_told(change, why):
    seen = observe([*[ASKED | {"time": 1.0 + k} for k in range(3)], ASKED | change], kv_tokens=5_000)
    assert len(seen.rows) == 3
    assert f"1 rows left out, the first in line 4: {why}" in seen.notes


def test_only_metrics_are_read_of_nodes(tmp_path, capsys):
    pytest.importorskip("aiohttp", reason="the extra `live` is not installed")
    page = b'vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="2048"} 1.0\n'
    routes = {"/metrics": answers(whole(200, page, "text/plain"))}
    path = tmp_path / "log.jsonl"
    rows = [
        ASKED | {"node": "east", "finished": 9.0},
        ASKED | {"session": "b", "node": "west", "finished": 9.0},
    ]
    rows += [ASKED | {"session": "c", "time": 2.0, "node": "east"}, ASKED | {"node": "north"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    with RawServer(routes) as east, RawServer(routes) as west:
        nodes = [f"east={east.url}", f"west={west.url}"]
        assert main(["observe", "--log", str(path), "--json", "--nodes", *nodes]) == 0
        requests = [*east.requests, *west.requests]
    assert len(requests) == 2
    assert all((r.method, r.path) == ("GET", "/metrics") for r in requests)
    found = json.loads(capsys.readouterr().out)
    assert [(r["node"], r["tao"]) for r in found["rows"]] == [
        ("east", "east"),
        ("west", "west"),
        ("east", None),
    ]
    assert "node 'north' is none of east, west" in found["notes"][0]


def test_the_table_and_the_mistakes(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(ASKED))
    assert main(["observe", "--log", str(path), "--kv-tokens", "5000"]) == 0
    out = capsys.readouterr().out
    assert "TAO would take the same node" in out
    assert "nobody knows" in out
    empty = tmp_path / "empty"
    empty.write_text("")
    for argv, words in (
        (["--log", str(path)], "give kv_tokens (--kv-tokens), or nodes (--nodes)"),
        (["--log", str(tmp_path / "none")], "No such file"),
        (["--log", str(empty), "--kv-tokens", "9"], "no request that can be used; it is empty"),
        (["--log", str(path), "--nodes", "http://127.0.0.1:1"], "refused the connection"),
        (["--log", str(path), "--kv-tokens", "0"], "kv_tokens is 0"),
    ):
        assert main(["observe", *argv]) == 2
        assert words in capsys.readouterr().err
