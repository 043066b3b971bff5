"""One simulated vLLM server as an ASGI application: its routes, and the answers as vLLM formats them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

from prometheus_client.exposition import CONTENT_TYPE_LATEST, CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel

from tao.live.double import requests as req
from tao.live.double.engine import Engine, EngineDeadError, OverloadError
from tao.live.double.errors import LateRefusal, Refusal, error_body, refused
from tao.live.double.events import Publisher
from tao.live.double.jobs import Job, Settings
from tao.live.double.metrics import Metrics
from tao.live.double.stream import Answers
from tao.live.double.text import PieceTokenizer, Reply, Tokenizer
from tao.live.double.wire import Asgi, Response, event, read, unless_gone
from tao.live.double.work import about, conversation, encode, work
from tao.profiles import Profile

STAMP = b"~~~"  # with the option `stamps`, in an answer: when it was sent, see `stamped`
RENDERED = ("completions", "chat/completions")
ELSEWHERE = ["/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/batch"]
ELSEWHERE += ["/inference/v1/generate"]
DEVELOPING = ("/collective_rpc", "/sleep", "/pause", "/resume", "/wake_up")
GUARDED = ("/v1", "/v2", "/inference")  # paths that want the API key, as in vLLM
EVENTS, DONE = (b"content-type", b"text/event-stream; charset=utf-8"), b"data: [DONE]\n\n"
BURST_S = 0.002  # ours: between the first look at the queue limits and the second; vLLM tokenizes then


class Server:
    """A node with vLLM's HTTP surface; make it, and call `start`, inside the loop that serves it.

    `truncate`: so many of the next streams end after two tokens, as when a proxy gives up.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        tokenizer: Tokenizer | None = None,
        replies: tuple[Reply, ...] = (),
        api_key: str | None = None,
    ) -> None:
        self.profile, self.settings = profile, settings
        self.tokenizer: Tokenizer = tokenizer or PieceTokenizer()
        self.replies = replies
        self._key = hashlib.sha256(api_key.encode()).digest() if api_key else None
        self.truncate = self.load = 0
        self.fingerprint = f"vllm-{'.'.join(map(str, settings.version))}-{secrets.token_hex(4)}"
        self._task: asyncio.Task[None] | None = None
        self._publisher: Publisher | None = None
        self.start()
        self.routes: dict[str, dict[str, Callable[..., Any]]] = {
            "/health": {"GET": lambda _: b""},
            "/ping": {"GET": lambda _: b"", "POST": lambda _: b""},
            "/version": {"GET": lambda _: {"version": ".".join(map(str, settings.version))}},
            "/load": {"GET": lambda _: {"server_load": self.load}},
            "/v1/models": {"GET": lambda _: self._models()},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/chat/completions": {"POST": req.ChatRequest},
            "/v1/completions": {"POST": req.CompletionRequest},
            "/invocations": {"POST": _invoked},
        }
        if settings.version >= (0, 32):
            self.routes |= {f"/v1/{name}/render": {"POST": _no_scale_out} for name in RENDERED}
            self.routes |= {path: {"POST": _not_here} for path in ELSEWHERE}
        if settings.version >= (0, 32):
            self.routes["/kv_event_sources"] = {
                "GET": lambda _: self._publisher.source() if self._publisher else {}
            }
        if settings.dev_mode:
            self.routes["/reset_prefix_cache"] = {"POST": self._reset}
            self.routes |= {f"/{x}": {"GET": lambda _, x=x: {x: False}} for x in ("is_sleeping", "is_paused")}
            self.routes |= {f"/reset_{x}_cache": {"POST": lambda _: b""} for x in ("mm", "encoder")}
            self.routes |= {path: {"POST": _not_here} for path in DEVELOPING}

    def start(self) -> None:
        """A new process with a cold cache and new counters; requests of the old one fail."""
        self.stop()
        s, block = self.settings, self.profile.block_tokens
        blocks = s.kv_tokens // block
        info = {"block_size": str(block), "num_gpu_blocks": str(blocks), "enable_prefix_caching": "True"}
        if s.version >= (0, 26):
            longest = min(s.max_model_len or s.kv_tokens, s.kv_tokens)
            info |= {
                "kv_cache_size_tokens": str(blocks * block),
                "kv_cache_max_concurrency": str(s.kv_tokens / longest),
            }
        info["prefix_caching_hash_algo"] = "sha256"
        self.metrics = Metrics(s.model, s.version, s.max_model_len or s.kv_tokens, info, s.speedup)
        if s.kv_events:
            self._publisher = Publisher(s.kv_events, s.version)
        publish = self._publisher.publish if self._publisher else None
        self.engine = Engine(self.profile, s, self.metrics, publish)
        self._task = asyncio.get_running_loop().create_task(self.engine.run())

    def stop(self) -> None:
        """End the engine; requests in flight fail."""
        if self._task:
            self.engine.crash()
            self._task.cancel()
            self._task = None
        if self._publisher:
            self._publisher.close()
            self._publisher = None

    # --- HTTP ---------------------------------------------------------------------------------

    async def __call__(self, scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        reply = Response(send, headers.get("x-request-id") or uuid.uuid4().hex)
        path, method = scope["path"], scope["method"]
        asked = headers.get("access-control-request-method")
        if path.startswith(GUARDED) and method != "OPTIONS" and not self._knows(headers):
            await reply.json({"error": "Unauthorized"}, 401)
        elif method == "OPTIONS" and asked and "origin" in headers:
            await reply.preflight(asked, headers.get("access-control-request-headers"))
        elif path.startswith("/metrics"):  # vLLM's page answers to all of these
            exact = path == "/metrics" and method == "GET"
            kind = CONTENT_TYPE_LATEST if exact else CONTENT_TYPE_PLAIN_0_0_4
            await reply.json(self.metrics.page(), 200, (b"content-type", kind.encode()))
        elif path not in self.routes and (plain := path.rstrip("/")) in self.routes:
            query = b"?" * bool(scope["query_string"]) + scope["query_string"]
            where = (
                f"{scope.get('scheme', 'http')}://{headers.get('host', '')}{plain}".encode("latin-1") + query
            )
            await reply.json(b"", 307, (b"location", where))
        elif path not in self.routes:
            await reply.json({"detail": "Not Found"}, 404)
        elif method not in self.routes[path]:
            allow = next(iter(self.routes[path]))  # each method is a route, and the first one speaks
            await reply.json({"detail": "Method Not Allowed"}, 405, (b"allow", allow.encode()))
        elif method == "GET" or path == "/ping" or path.startswith("/reset_"):
            sick = self.engine.dead and path in ("/health", "/ping")
            await reply.json(self.routes[path][method](None), 503 if sick else 200)
        else:
            await self._post(self.routes[path][method], headers, receive, reply)

    def _knows(self, headers: dict[str, str]) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.encode()).digest()
        return self._key is None or (scheme.lower() == "bearer" and secrets.compare_digest(given, self._key))

    async def _post(self, handler: Any, headers: dict[str, str], receive: Asgi, reply: Response) -> None:
        try:
            data = await read(headers, receive)
            made = handler if isinstance(handler, type) else handler(data)
            if not isinstance(made, type):
                await reply.json(made)
                return
            request = cast("type[BaseModel]", made).model_validate(data, from_attributes=True)
            self.load += 1
            try:
                await unless_gone(receive, self._generate(request, headers, reply))
            finally:
                self.load -= 1
        except Exception as error:  # whatever it is, the answer is one that vLLM's clients know
            if reply.begun:
                raise
            no = refused(error)
            status = no.status if isinstance(no, Refusal) else 400
            # Whoever sends too much is not listened to any longer.
            end = [(b"connection", b"close")] * (status == 413)
            await reply.json(error_body(no), status, *end)

    # --- endpoints ----------------------------------------------------------------------------

    def _models(self) -> dict[str, Any]:
        now, s = int(time.time()), self.settings
        names = "create_engine sampling logprobs search_indices view fine_tuning"
        may = {f"allow_{name}": name in ("sampling", "logprobs", "view") for name in names.split()}
        permission = {"id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission", "created": now}
        permission |= may | {"organization": "*", "group": None, "is_blocking": False}
        model = {
            "id": s.model,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": f"simulated/{s.model}",
        }
        model |= {"parent": None, "max_model_len": self.engine.max_model_len, "permission": [permission]}
        return {"object": "list", "data": [model]}

    def _served(self, model: str | None) -> None:
        if model and model != self.settings.model:
            text = f"The model `{model}` does not exist. Valid aliases: {self.settings.model}."
            raise Refusal(text, "model", status=404)

    def _reset(self, _: None) -> Any:
        done = self.engine.reset_prefix_cache()
        return {"success": done} if self.settings.version >= (0, 26) else b""

    def _tokenize(self, data: Any) -> dict[str, Any]:
        request = req.TOKENIZE.validate_python(data, from_attributes=True)
        self._served(request.model)
        if isinstance(request, req.TokenizeChat):
            tokens = conversation(self.tokenizer, request, self.settings.model)[1]
        else:
            tokens = encode(self.tokenizer, request.prompt, request)
        strings = [self.tokenizer.token_str(t) for t in tokens] if request.return_token_strs else None
        size = {"count": len(tokens), "max_model_len": self.engine.max_model_len}
        return size | {"tokens": tokens, "token_strs": strings}

    def _detokenize(self, data: Any) -> dict[str, Any]:
        request = req.DetokenizeRequest.model_validate(data, from_attributes=True)
        self._served(request.model)
        return {"prompt": self.tokenizer.decode(request.tokens, special=True)}

    async def _generate(self, request: Any, headers: dict[str, str], reply: Response) -> None:
        self._served(request.model)
        jobs = list[Job]()
        engine = self.engine  # a restart puts another one in its place
        try:
            engine.admit(request.n or 1)
            block = self.profile.block_tokens
            try:
                rank = req.whole(headers.get("x-data-parallel-rank", ""))
                longest, model = engine.max_model_len, self.settings.model
                todo = work(request, self.tokenizer, self.replies, longest, block, model, rank)
            except LateRefusal as error:
                if not request.stream:
                    raise
                await reply.begin(200, EVENTS)
                await reply.part(event(error_body(error)) + DONE, more=False)
                return
            more = about(request, headers, self.settings.version)
            todo = [item | more for item in todo]
            given = headers.get("x-request-id") or request.request_id
            answers = Answers(engine, self.tokenizer, request, given, self.fingerprint)
            if request.stream:
                await self._stream(answers, todo, reply)
                return
            jobs += [engine.submit(**item) for item in todo]
            await asyncio.gather(*(_finished(engine, job) for job in jobs))
            await reply.json(answers.whole(jobs))
        except OverloadError as error:
            raise Refusal(str(error), status=503) from None
        except EngineDeadError as error:
            raise Refusal(str(error), status=500) from None
        finally:
            for job in jobs:
                engine.abort(job)

    async def _stream(self, answers: Answers, todo: list[dict[str, Any]], reply: Response) -> None:
        """Server-sent events; what goes wrong from here on is an event too, for the status is sent."""
        await reply.begin(200, EVENTS)
        cut = self.truncate > 0
        self.truncate -= cut
        jobs: list[Job] = []
        try:
            if self.settings.max_num_queued_reqs or self.settings.max_num_queued_tokens:
                await asyncio.sleep(BURST_S)
            jobs += [answers.engine.submit(**item) for item in todo]
            async for part in answers.events(jobs):
                await reply.part(stamped(part) if self.settings.stamps else part)
                if cut and sum(job.emitted for job in jobs) >= 2:
                    await reply.part(b"", more=False)
                    return
        except OverloadError as error:
            await reply.part(event(error_body(Refusal(str(error), status=503))))
        except EngineDeadError as error:
            await reply.part(event(error_body(Refusal(str(error), status=500))))
        finally:
            for job in jobs:
                answers.engine.abort(job)
        await reply.part(DONE, more=False)


def _invoked(data: Any) -> type[BaseModel]:
    """Which of the two kinds of request a body is."""
    return req.ChatRequest if isinstance(data, dict) and "messages" in data else req.CompletionRequest


def _no_scale_out(_: Any) -> None:
    text = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise Refusal(text, status=403, kind="PermissionDeniedError")


def _not_here(_: Any) -> None:
    raise Refusal("vLLM has this endpoint, the simulated server has not.", status=501)


def stamped(part: bytes) -> bytes:
    """Each `STAMP` as the time now: seconds of this machine's monotonic clock, 20 characters wide.

    >>> len(stamped(b"at ~~~")), stamped(b"nothing")
    (23, b'nothing')
    """
    return part.replace(STAMP, b"%020.9f" % time.monotonic())


async def _finished(engine: Engine, job: Job) -> None:
    async for _ in engine.outputs(job):
        pass
