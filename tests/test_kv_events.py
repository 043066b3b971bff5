"""KV events: from the double's cache over a socket to what a session still has there."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_double import ask, client, server, virtual

from tao.live.double.blocks import BlockRequest, Blocks
from tao.live.kv_events import FIELDS, KvEvent, KvEvents, Residency, decode
from tao.model import InputError

msgpack = pytest.importorskip("msgpack", reason="the extra `kv-events` is not installed")
zmq = pytest.importorskip("zmq", reason="the extra `kv-events` is not installed")


def until(events, sent):
    """Poll until the last of so many messages has come."""
    deadline = time.monotonic() + 10
    while events._next != sent:
        events.poll()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("version", [(0, 20, 2), (0, 32, 0)])
def test_a_session_s_true_tokens_reach_the_client(tmp_path, version):
    endpoint = f"ipc://{tmp_path}/kv"

    async def run():
        app = server(version=version, kv_events=endpoint, dev_mode=True, kv_tokens=1024)
        http, seen = client(app), []
        source = (await http.get("/kv_event_sources")).json()

        async def post(words, session, **more):
            body = ask(False, words, 3, session_id=session, **more)
            reply = await http.post("/v1/chat/completions", json=body)
            until(events, app._publisher._sent)
            seen.append([events.residency.tokens(s) for s in "ab"])
            return reply.json()["usage"]

        with KvEvents(endpoint) as events:
            while not events.poll():  # a subscription is on its way for a moment
                await http.post("/v1/chat/completions", json=ask(False, 40, 1))
                await http.post("/reset_prefix_cache")
            until(events, app._publisher._sent)
            late = events.missed
            usage = [await post(100, "a"), await post(200, "b"), await post(830, "c", cache_salt="c")]
            usage.append(await post(200, "b"))
            reset = (await http.post("/reset_prefix_cache")).text
            await http.post("/v1/chat/completions", json=ask(False, 40, 1, cache_salt="z"))
            until(events, app._publisher._sent)
            left = [events.residency.tokens(s) for s in "abc"]
            counts = events.missed - late, events.damaged
        app.stop()
        return source, usage, seen, reset, left, counts

    source, usage, seen, reset, left, counts = virtual(run())
    assert counts == (0, 0)
    assert left == [0, 0, 0]
    if version < (0, 29):  # no sessions yet
        assert seen == [[0, 0]] * 4
        assert reset == ""
        return
    assert source["0"]["endpoint"] == endpoint
    assert reset == '{"success":true}'
    whole = [(u["prompt_tokens"] + 2) // 32 * 32 for u in usage]
    assert seen[0] == [whole[0], 0]
    # The second session begins with what the first one stored.
    assert seen[1] == [whole[0], whole[1]]
    assert usage[1]["prompt_tokens_details"]["cached_tokens"] > 0
    # The third one needs most of the pool, and what is left is what the second one then finds.
    assert 0 < seen[2][1] == usage[3]["prompt_tokens_details"]["cached_tokens"] < seen[1][1]
    assert seen[3][1] == whole[1]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), min_size=1, max_size=25))
def test_residency_follows_the_cache_block_by_block(turns):
    """The chain that a session stored last, beside the cache itself."""
    blocks, known, chains = Blocks(12, 4), Residency(), {}
    blocks.log = []
    for session, length, branch in turns:
        r = BlockRequest(session, 4 * length, 1, 0, hashes=[(session % 2, branch, k) for k in range(length)])
        hit = blocks.match(r.hashes)
        if not blocks.fits(r, hit, 4 * length):
            continue
        blocks.take(r, hit)
        r.computed = hit
        assert blocks.allocate(r, 4 * length)
        blocks.release(r)
        if hit < 4 * length:
            chains[session] = r.hashes
        events = []
        for kind, what, start, stop in blocks.log:
            if kind == "removed":
                events.append(KvEvent("removed", (what,)))
            else:
                parent = what.hashes[start - 1] if start else None
                events.append(KvEvent("stored", tuple(what.hashes[start:stop]), parent, 4, str(what.session)))
        blocks.log.clear()
        known.apply(events)
        for s, hashes in chains.items():
            assert known.tokens(str(s)) == blocks.match(hashes)


STORED = {
    "type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": None, "token_ids": [1] * 32,
    "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [["salt"], None],
    "group_idx": 0,
}  # fmt: skip


def test_maps_and_arrays_say_the_same():
    events = [
        STORED,
        {"type": "BlockRemoved", "block_hashes": [8], "medium": "GPU"},
        {"type": "AllBlocksCleared"},
    ]
    arrays = [list(e.values()) for e in events]
    short = [list(STORED.values())[:6], ["BlockRemoved", [8]], ["AllBlocksCleared"]]
    found = [decode(msgpack.packb([1.5, x, 0])) for x in (events, arrays, short)]
    assert found[0] == found[1] == found[2]
    assert found[0][0] == KvEvent("stored", (7, 8), None, 16)
    assert set(STORED) - {"type"} == set(FIELDS["BlockStored"])


def test_other_tiers_groups_and_kinds_do_not_count():
    others = [STORED | {"medium": "CPU"}, STORED | {"group_idx": 1}, {"type": "Unheard"}]
    assert decode(msgpack.packb([0, others, 0])) == []


@settings(max_examples=200)
@given(
    st.binary(max_size=40)
    | st.recursive(
        st.none() | st.integers(-9, 9) | st.text(max_size=3) | st.just("BlockStored") | st.just("type"),
        lambda x: (
            st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=3) | st.just("type"), x, max_size=3)
        ),
    ).map(lambda x: msgpack.packb([0, x]))
)
def test_nonsense_is_refused_and_changes_nothing_else(data):
    with suppress(InputError):
        Residency().apply(decode(data))


def test_gaps_and_new_beginnings_are_noticed(tmp_path):
    def batch(number, *events):
        return [b"kv", number.to_bytes(8, "big"), msgpack.packb([0, list(events), 0])]

    sender = zmq.Context.instance().socket(zmq.XPUB)
    with KvEvents(f"ipc://{tmp_path}/kv", bind=True) as events:  # as for vLLM's tcp:// endpoints
        sender.connect(f"ipc://{tmp_path}/kv")
        for _ in range(100):
            events.poll()
            if sender.poll(50):  # the subscription
                break
        counts = []
        for message in (batch(0, STORED | {"session_id": "s"}), batch(3), [b"kv", bytes(8), b"\xc1"]):
            sender.send_multipart(message)
            until(events, int.from_bytes(message[1], "big") + 1)
            counts.append((events.missed, events.damaged, events.residency.tokens("s")))
        # Number 0 again is another process, with an empty cache.
        assert counts == [(0, 0, 32), (2, 0, 32), (2, 1, 0)]
    sender.close(0)


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://0.0.0.0:1", "tcp://127.0.0.1:x", "udp://x", "x"])
def test_only_local_endpoints_are_published_to(endpoint):
    from tao.live.double.serve import Deployment, Plan

    with pytest.raises(InputError, match="only those are local"):
        Deployment(Plan(kv_events=endpoint))


def test_an_endpoint_that_cannot_be_is_refused():
    with pytest.raises(InputError, match="give ipc://PATH"):
        KvEvents("nonsense")
