"""What a live conversation is counted as before its server has counted it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="the extra `live` is not installed")

from asgi_node import nodes_of, scheduler_on, virtual
from hypothesis import given
from hypothesis import strategies as st

from tao.live.agents import Ask
from tao.live.double.text import Call, Reply
from tao.live.faults import Failed
from tao.live.talk import Talk
from tao.model import Params

PARAMS = Params(plan_cost_s=0.0)
SCHEMA = {
    "name": "ls",
    "description": "list files " * 1000,
    "parameters": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": SCHEMA}]
CALLED = ({"id": "call-1", "type": "function", "function": {"name": "ls", "arguments": "{}"}},)
SIZES = st.tuples(
    st.integers(0, 4000), st.integers(0, 400), st.booleans()
)  # message, answer, whether by a call


def answer(text="", calls=(), prompt_tokens=None):
    return SimpleNamespace(text=text, tool_calls=calls, prompt_tokens=prompt_tokens, token_ids=None)


def said(reply):
    """An answer as agents repeat it."""
    calls = {"tool_calls": list(reply.tool_calls)} if reply.tool_calls else {}
    return {"role": "assistant", "content": reply.text or None} | calls


@given(st.integers(0, 4000), st.lists(SIZES, min_size=2, max_size=8), st.floats(2.0, 8.0), st.booleans())
def test_a_template_and_short_messages_do_not_blow_up_what_grows(hidden, turns, chars_per_token, tools):
    """Whatever the server adds unseen, growth is told within a factor of two and a few tokens per message."""
    talk, messages = Talk("a", lambda: None), []
    options = {"tools": TOOLS} if tools else {}

    def real(chars):
        shown = len(str(TOOLS)) if tools else 0
        return round(hidden + (shown + chars) / chars_per_token + 8 * len(messages))

    chars = 0
    for k, (more, back, by_call) in enumerate(turns):
        messages.append({"role": "user", "content": "x" * more})
        chars += more
        ask = Ask(list(messages), options=options)
        if k:
            assert talk.grows(ask)
            grown, actual = talk.estimate(ask) - talk.context_tokens, real(chars) - talk.context_tokens
            assert actual / 2 - 20 <= grown <= 2 * actual + 20
        reply = answer("" if by_call else "y" * back, CALLED if by_call else (), real(chars))
        chars += len(str(list(CALLED))) if by_call else back
        messages.append(said(reply))
        talk.remember(ask, reply, real(chars))


@pytest.mark.parametrize(
    "first", [Reply(0, "ok"), Reply(0, "", (Call("ls", "{}"),)), Reply(0, "I look", (Call("ls", "{}"),))]
)
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}])
def test_a_short_beginning_is_no_measure_of_what_follows(first, options):
    counted, used = [], []

    def script():
        messages = [{"role": "user", "content": "go"}]
        for _ in range(2):
            reply = yield Ask(list(messages), options={"max_tokens": 60} | options)
            used.append(reply.prompt_tokens)
            messages += [said(reply), {"role": "user", "content": "word " * 2000}]

    async def whole():
        nodes = nodes_of(1, 16_416)
        nodes[0].app.replies = (first, Reply(1, "done"))
        scheduler = await scheduler_on(nodes, "tao", PARAMS)
        size = scheduler._size

        async def noted(talk, ask):
            counted.append(await size(talk, ask))
            return counted[-1]

        scheduler._size = noted
        await scheduler.main({"a": script})
        return scheduler.history

    history = virtual(whole())
    assert history.failed == {}
    assert used[1] / 1.5 < counted[1] < 1.5 * used[1]


@pytest.mark.parametrize("tell", [(True,), (False,), (False, True), (True, False), (False, False)])
def test_what_seems_too_large_is_counted_before_it_is_refused(tell):
    """One word of many letters is few tokens, which only a server can know, and not every server tells."""
    asked = []

    def script():
        reply = yield Ask([{"role": "user", "content": "go"}], options={"max_tokens": 4})
        messages = [
            {"role": "user", "content": "go"},
            said(reply),
            {"role": "user", "content": "-" * 100_000},
        ]
        yield Ask(messages, options={"max_tokens": 4, "chat_template_kwargs": {}})

    def counts(node, tells):
        chat = node.chat

        async def ask(path, body):
            asked.append((path, set(body)))
            if not tells:
                raise Failed(node.name, 404, "Not Found")
            return {"count": 3_000}

        node.ask = ask
        node.chat = lambda messages, **options: chat(messages[:1], **options)

    async def whole():
        nodes = nodes_of(len(tell), 16_416)
        scheduler = await scheduler_on(nodes, "tao", PARAMS)
        for node, tells in zip(nodes, tell, strict=True):
            counts(node, tells)
        await scheduler.main({"a": script})
        return scheduler.history

    failed = virtual(whole()).failed
    asks = tell.index(True) + 1 if any(tell) else len(tell)
    assert asked[asks:] == [("/tokenize", {"messages", "chat_template_kwargs"})] * asks
    assert failed == {} if any(tell) else "a request needs 25," in failed[0], failed


def test_a_rewritten_prompt_teaches_nothing_and_other_tools_leave_no_prefix():
    talk = Talk("a", lambda: None)
    ask = Ask([{"role": "user", "content": "go"}], options={"tools": TOOLS})
    talk.remember(ask, answer("ok", prompt_tokens=3000), 3001)
    grown = Ask([*ask.messages, {"role": "assistant", "content": "ok"}], options={"tools": TOOLS})
    assert talk.grows(grown)
    assert talk.prefix_tokens(Ask(grown.messages)) == 0
    assert not talk.grows(Ask(grown.messages, options={"tools": TOOLS * 2}))
    rewritten = Ask([{"role": "user", "content": "x" * 9000}], options={"tools": TOOLS})
    assert talk.prefix_tokens(rewritten) == pytest.approx(3000, 0.01)  # the tools
    talk.remember(rewritten, answer("ok", prompt_tokens=9000), 9001)
    assert (talk.grown_chars, talk.grown_tokens) == (0, 0)
