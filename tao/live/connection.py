"""The nodes that a notebook works with: real servers where some answer, else simulated ones that say so."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Literal

from tao.checks import InputError
from tao.live import given, loop

if TYPE_CHECKING:
    from tao.live.double.serve import Deployment, Plan
    from tao.live.nodes import Checkup, Probed

NODES_ENV = "TAO_NODES"
PROBE_S = 1.0  # ours: a server that is there lists its models within milliseconds
PATIENCE_S = 0.2  # ours: after that the simulated servers start beside the probe, to be there in time
START_S = 5.0  # ours: for our own servers, which just said that they listen; a busy machine is slow


class Connection:
    """Open clients of nodes, and what they are; `connect` makes it. Close it, or use it in a `with` block.

    `mode`: LIVE or SIMULATED. `reason`: why, in one sentence. `clients`: one per node. `missing`: addresses
    that are no node, with reasons. `speedup`: seconds of the servers' time per second, 1 unless simulated.
    `banner`: all that in one line. Dropped without `close`, it ends its simulated servers too.
    """

    def __init__(
        self, found: Sequence[Probed], missing: Sequence[Probed], reason: str, deployment: Deployment | None
    ):
        self.mode: Literal["LIVE", "SIMULATED"] = "SIMULATED" if deployment else "LIVE"
        self.reason = reason
        self.clients = tuple(each.client for each in found if each.client)
        self.missing = tuple(missing)
        self.speedup = deployment.plan.speedup if deployment else 1.0
        versions = ", ".join(sorted({each.version or "of unknown version" for each in found}))
        count = "1 node" if len(found) == 1 else f"{len(found)} nodes"
        fast = f", {self.speedup:g} times as fast as real ones" if deployment else ""
        self.banner = f"{self.mode}: {count}, vLLM {versions}{fast}; {reason}"
        self._end = weakref.finalize(self, deployment.stop) if deployment else None

    def __repr__(self) -> str:
        return f"<{self.banner}>"

    def doctor(self) -> Checkup:
        """A table per node: what it is, and what to change in how it is started; costs a few short requests.

        A node that is missing has its reason there.
        """
        from tao.live.nodes import Checkup, doctor

        rows = doctor(self.clients)
        return Checkup([*rows, *({"node": each.url, "change": each.reason} for each in self.missing)])

    def close(self) -> None:
        """Cancel what is under way and end what `connect` started; a second time does nothing."""
        for client in self.clients:
            client.close()
        if self._end:
            self._end()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    urls: str | Sequence[str] | None = None,
    fallback: bool = True,
    *,
    key: str | None = None,
    key_env: str | None = None,
    ca: str | Path | None = None,
    plan: Plan | None = None,
) -> Connection:
    """Connect to the vLLM servers that answer; if none does, to simulated ones that are started for it.

    `urls`: a list, or a text with commas or spaces; default is the environment variable TAO_NODES. `key_env`:
    name of the variable with the API key; `key`: the key itself; `ca`: a private authority's certificate.
    `plan`: the simulated servers (`tao.live.Plan`), by default two small ones. Within 2 s.

    Raises `InputError` for addresses that cannot be read; without `fallback`, also if no node answers.
    """
    key, key_env = (None if x is None else given.Secret(x) for x in (key, key_env))
    urls = os.environ.get(NODES_ENV, "") if urls is None else urls
    asked = urls.replace(",", " ").split() if isinstance(urls, str) else list(urls)
    loop.acquire()  # the same for the probe and what follows: ending one may wait for a name server
    try:
        with ThreadPoolExecutor(2, "tao-connect") as pool:
            starting = pool.submit(_simulated, plan) if fallback and not asked else None
            try:
                from tao.live import nodes  # meanwhile the servers start

                heard = Event()
                probing = pool.submit(nodes.probe, asked, PROBE_S, heard.set, key=key, key_env=key_env, ca=ca)
                if fallback and asked and wait([probing], PATIENCE_S).not_done and not heard.is_set():
                    starting = pool.submit(_simulated, plan)
                found = probing.result()
            except BaseException:
                _call_off(starting)
                raise
        live = [each for each in found if each.client]
        missing = [each for each in found if not each.client]
        reason = _sentence(live, missing)
        if live:
            _call_off(starting)
            return Connection(live, missing, reason, None)
        if not fallback:
            raise InputError(f"{reason}; start a server, name another, or allow simulated ones")
        return _fallen_back(starting.result() if starting else _simulated(plan), missing, reason)
    finally:
        loop.release()


def _simulated(plan: Plan | None) -> Deployment:
    try:
        from tao.live.double.serve import Deployment, Plan
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; simulated servers need: pip install 'tao-scheduler[live]'") from None

    return Deployment(plan or Plan(nodes=2, kv_tokens=65_536, speedup=4.0))  # ours: one core keeps up


def _call_off(starting: Future[Deployment] | None) -> None:
    """The simulated servers are not needed; why they did not start would be of no use either."""
    if starting:
        starting.add_done_callback(lambda done: None if done.exception() else done.result().stop())


def _fallen_back(deployment: Deployment, missing: Sequence[Probed], reason: str) -> Connection:
    from tao.live import nodes

    try:
        found = nodes.probe(deployment.urls, START_S, key_env=deployment.plan.api_key_env or None)
        if ill := [each for each in found if not each.client]:
            raise InputError(f"the simulated servers do not answer ({ill[0].reason}); try again")
    except BaseException:
        deployment.stop()
        raise
    return Connection(found, missing, reason, deployment)


def _sentence(live: Sequence[Probed], missing: Sequence[Probed]) -> str:
    """Why it is live or not, in words; nodes with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for each in missing:
        by_reason.setdefault(each.reason, []).append(each.url)
    absent = "; ".join(f"{', '.join(urls)}: {reason}" for reason, urls in by_reason.items())
    if live:
        return f"without {absent}" if absent else "every node that is named answers"
    return f"no node answers: {absent}" if absent else f"no node is named (${NODES_ENV} is not set)"
