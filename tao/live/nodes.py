"""Which of some addresses are vLLM servers, what they can do, and what their owner should change."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeVar

from tao import checks
from tao.live.client import ASK_S, Client
from tao.live.faults import LiveError, one_line
from tao.live.loop import Call
from tao.live.metrics_page import Load
from tao.live.stream import count

T = TypeVar("T")
Messages = Sequence[dict[str, Any]]

FREED_S = 2.0  # ours: how long a server may take to notice that a client is gone
LOOK_S = 0.05  # ours: between two looks while waiting for that
MAX_NAME = 80  # ours: characters of a server's name for itself that are shown
TALK: Messages = (  # templates of reasoning models drop earlier thoughts, and with them the cached prefix
    {"role": "user", "content": "List the files."},
    {"role": "assistant", "content": "<think>\nls will do.\n</think>\n\nDone: a.txt, b.txt"},
    {"role": "user", "content": "Read the first."},
    {"role": "assistant", "content": "<think>\ncat it.\n</think>\n\nIt is empty."},
    {"role": "user", "content": "Thank you."},
)


@dataclass(frozen=True)
class Probed:
    """An address that answered as vLLM, with an open client; or one that did not, with the reason."""

    url: str
    client: Client | None
    models: tuple[str, ...] = ()
    version: str | None = None
    reason: str = ""


def probe(
    urls: Sequence[str],
    timeout_s: float = 1.0,
    on_live: Callable[[], object] | None = None,
    **options: Any,
) -> list[Probed]:
    """Ask all addresses at once for their models; the options are those of `Client`. Close what comes back.

    `on_live` is called at each that answers, in the loop's thread.

    >>> probe([])
    []
    """
    checks.positive(timeout_s, "timeout_s")
    clients = [Client(url, **options) for url in urls]
    checks.unique([client.name for client in clients], "node")
    found: list[Probed] = []
    try:
        calls = [client.begin(_look, client, timeout_s, on_live) for client in clients]
        for client, call in zip(clients, calls, strict=True):
            try:
                found.append(Probed(str(client.url), client, *call.result()))
            except LiveError as error:
                found.append(Probed(str(client.url), None, reason=_why(client, error)))
    finally:
        kept = [each.client for each in found] if len(found) == len(clients) else []
        for client in clients:
            if client not in kept:
                client.close()
    return found


async def _look(
    client: Client, timeout_s: float, on_live: Callable[[], object] | None
) -> tuple[tuple[str, ...], str | None]:
    """Models and version, asked for at the same time."""
    version = asyncio.ensure_future(_version(client, timeout_s))
    try:
        names = tuple(str(model["id"]) for model in await client.models(timeout_s))
        if on_live:
            on_live()
        return names, await version
    finally:
        version.cancel()


async def _version(client: Client, within_s: float = ASK_S) -> str | None:
    try:
        async with asyncio.timeout(within_s):
            answer = await client.ask("/version")
    except (LiveError, TimeoutError):
        return None
    version = answer.get("version") if isinstance(answer, dict) else None
    return one_line(version)[:MAX_NAME] if isinstance(version, str) else None


def _why(client: Client, error: LiveError) -> str:
    reason = error.reason if error.status is None else f"status {error.status}: {error.reason}"
    if error.status in (401, 403):
        return f"{reason}; give its API key as key_env"
    if error.status is None and "BINDER_LAUNCH_HOST" in os.environ and client.url.port not in (80, 443):
        return f"{reason}; on Binder, only ports 80 and 443 leave here"
    return reason


@dataclass(frozen=True)
class Capabilities:
    """What a node is and can do, from one look and one request of one token; None is unknown."""

    version: str | None
    model: str
    max_model_len: int | None
    load: Load
    clock_lag_s: float  # its clock minus ours, to about half a second
    cached_tokens: bool  # its replies tell them
    own_times: bool  # its replies tell its own TTFT
    request_ids: bool  # it repeats ours
    kv_events: bool

    def older_than(self, minor: int) -> bool:
        """Whether it is a release of vLLM before 0.`minor`; no if it does not tell."""
        found = re.match(r"(\d{1,4})\.(\d{1,4})", self.version or "")
        return found is not None and (int(found[1]), int(found[2])) < (0, minor)

    def seen(self) -> dict[str, bool]:
        """What a server may or may not do or tell, and whether this one does."""
        return {
            "prefix caching": bool(self.load.prefix_caching),
            "cached tokens": self.cached_tokens,
            "own times": self.own_times,
            "request ids": self.request_ids,
            "KV events": self.kv_events,
            "session ids": self.version is not None and not self.older_than(29),
        }


def capabilities(client: Client) -> Call[Capabilities]:
    """Find out what a node can do; it must answer /v1/models and one request."""
    return client.begin(_capabilities, client)


async def _capabilities(client: Client) -> Capabilities:
    model = (await client.models())[0]
    lag_s = model["created"] + 0.5 - time.time() if count(model.get("created")) else 0.0
    reply = await client.chat([{"role": "user", "content": "Hi"}], max_tokens=1)
    return Capabilities(
        version=await _version(client),
        model=one_line(model["id"])[:MAX_NAME],
        max_model_len=count(model.get("max_model_len")),
        load=await _or_none(client.metrics()) or Load(),
        clock_lag_s=lag_s,
        cached_tokens=reply.cached_tokens is not None,
        own_times=reply.server_ttft_s is not None,
        request_ids=reply.request_id_echoed,
        kv_events=bool(await _or_none(client.ask("/kv_event_sources"))),
    )


async def _or_none(call: Call[T]) -> T | None:
    try:
        return await call
    except LiveError:
        return None


def lost_prefix(client: Client, messages: Messages = TALK) -> Call[int | None]:
    """The most tokens that a turn cannot find again because its prompt does not begin with the turn before.

    Compares the prompts, and each with its answer, as the server tokenizes them; None where it does not.
    """
    return client.begin(_lost_prefix, client, messages)


async def _lost_prefix(client: Client, messages: Messages) -> int | None:
    model, before, lost = (await client.models())[0]["id"], list[int](), 0
    for k in range(1, len(messages) + 1):
        asked = messages[k - 1]["role"] != "assistant"  # else the server has just written it
        body = {"model": model, "messages": list(messages[:k]), "add_generation_prompt": asked}
        answer = await _or_none(client.ask("/tokenize", body))
        if not isinstance(answer, dict) or not isinstance(answer.get("tokens"), list):
            return None
        pairs = zip(before, answer["tokens"], strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        lost, before = max(lost, len(before) - same), answer["tokens"]
    return lost


def freed_after(client: Client) -> Call[float | None]:
    """Seconds until a node notices that a client is gone: inf if it goes on, None if others are using it."""
    return client.begin(_freed_after, client)


async def _freed_after(client: Client) -> float | None:
    if (await client.metrics()).running != 0:
        return None
    call = client.chat([{"role": "user", "content": "Count."}], max_tokens=1000, ignore_eos=True)
    try:
        if await _wait(client, running=True) is None:
            return None
    finally:
        call.cancel()
    took_s = await _wait(client, running=False)
    return float("inf") if took_s is None else took_s


async def _wait(client: Client, running: bool) -> float | None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    while clock() < began_s + FREED_S:
        if bool((await client.metrics()).running) is running:
            return clock() - began_s
        await asyncio.sleep(LOOK_S)
    return None


class Checkup(list[dict[str, str]]):
    """A row per node; shown as a table for each."""

    def __repr__(self) -> str:
        tables = []
        for row in self:
            width = max(map(len, row))
            lines = (f"  {name:{width}}  {answer}" for name, answer in row.items() if name != "node")
            tables.append("\n".join([row["node"], *lines]))
        return "\n\n".join(tables) or "no node"


def doctor(clients: Sequence[Client]) -> Checkup:
    """A row per node: what it is, and what to change in how it is started; costs a few short requests.

    >>> doctor([])
    no node
    """
    return Checkup(call.result() for call in [client.begin(_examine, client) for client in clients])


async def _examine(client: Client) -> dict[str, str]:
    try:
        able = await capabilities(client)
        lost, freed_s = await lost_prefix(client), await freed_after(client)
    except LiveError as error:
        return {"node": client.name, "change": f"it does not work: {error}"}
    return {
        "node": client.name,
        "version": able.version or "unknown",
        "model": able.model,
        "KV tokens": _or_unknown(able.load.kv_tokens, ","),
        "block": _or_unknown(able.load.block_size, ","),
        "seen": ", ".join(name for name, seen in able.seen().items() if seen) or "nothing",
        "lost prefix": _or_unknown(lost, ",", " tokens"),
        "freed after": _or_unknown(freed_s, ".2f", " s"),
        "clock lag": f"{able.clock_lag_s:+.0f} s",
        "change": "; ".join(advice(able, lost, freed_s)) or "nothing",
    }


def _or_unknown(x: float | None, form: str, unit: str = "") -> str:
    return "unknown" if x is None else f"{x:{form}}{unit}"


def advice(able: Capabilities, lost: int | None = None, freed_s: float | None = None) -> list[str]:
    """What to change so that TAO sees all it can use; the options are vLLM's."""
    load, old = able.load, able.older_than(29)
    mute = not (able.own_times or able.older_than(26))  # before, it had no such option
    found = {
        "add --enable-prefix-caching": load.prefix_caching is False,
        "add --enable-prompt-tokens-details (cached tokens are unknown)": not able.cached_tokens,
        "add --enable-per-request-metrics (its own times are unknown)": mute,
        "let /metrics through (its KV capacity is unknown)": load.kv_tokens is None,
        f"start {load.engines} servers instead of one that hides {load.engines} engines": load.engines > 1,
        "keep thoughts in the history, or turn them off (chat_template_kwargs)": bool(lost),
        "update vLLM (it goes on when a client is gone)": freed_s == float("inf"),
        "update vLLM to 0.29 (own times since 0.26, queue limits, sessions in KV events)": old,
        "set its clock": abs(able.clock_lag_s) > 2,
    }
    return [what for what, needed in found.items() if needed]
