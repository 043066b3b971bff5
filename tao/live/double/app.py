"""One simulated vLLM server as an ASGI application: its routes, and the answers as vLLM formats them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from tao.live.double import requests as req
from tao.live.double.engine import Engine, EngineDeadError, OverloadError
from tao.live.double.errors import BodyError, Refusal, error_body
from tao.live.double.jobs import Job, Settings
from tao.live.double.metrics import Metrics
from tao.live.double.stream import Answers
from tao.live.double.text import PieceTokenizer, Reply, Tokenizer, answer, find_reply
from tao.live.double.wire import Asgi, Response, event, read, unless_gone
from tao.profiles import Profile

STAMP = b"~~~"  # with the option `stamps`, in an answer: when it was sent, see `stamped`
GUARDED = ("/v1", "/v2", "/inference")  # paths that want the API key, as in vLLM
BURST_S = 0.002  # ours: between the first look at the queue limits and the second; vLLM tokenizes then
TOO_LONG = (
    "This model's maximum context length is {0} tokens. However, your prompt contains at least {1} input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
    "input prompt."
)


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
        self.start()
        self.routes: dict[str, dict[str, Callable[..., Any]]] = {
            "/health": {"GET": lambda _: b""},
            "/ping": {"GET": lambda _: b"", "POST": lambda _: b""},
            "/version": {"GET": lambda _: {"version": ".".join(map(str, settings.version))}},
            "/load": {"GET": lambda _: {"server_load": self.load}},
            "/v1/models": {"GET": lambda _: self._models()},
            "/metrics": {"GET": lambda _: self.metrics.page()},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/chat/completions": {"POST": req.ChatRequest},
            "/v1/completions": {"POST": req.CompletionRequest},
        }
        if settings.version >= (0, 32):
            self.routes["/kv_event_sources"] = {"GET": lambda _: {}}

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
        self.engine = Engine(self.profile, s, self.metrics)
        self._task = asyncio.get_running_loop().create_task(self.engine.run())

    def stop(self) -> None:
        """End the engine; requests in flight fail."""
        if self._task:
            self.engine.crash()
            self._task.cancel()
            self._task = None

    # --- HTTP ---------------------------------------------------------------------------------

    async def __call__(self, scope: dict[str, Any], receive: Asgi, send: Asgi) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        reply = Response(send, headers.get("x-request-id") or uuid.uuid4().hex)
        path, method = scope["path"], scope["method"]
        if path.startswith(GUARDED) and method != "OPTIONS" and not self._knows(headers):
            await reply.json({"error": "Unauthorized"}, 401)
        elif path not in self.routes and (plain := path.rstrip("/")) in self.routes:
            await reply.json(b"", 307, (b"location", plain.encode()))
        elif path not in self.routes:
            await reply.json({"detail": "Not Found"}, 404)
        elif method not in self.routes[path]:
            allow = ", ".join(sorted(self.routes[path]))
            await reply.json({"detail": "Method Not Allowed"}, 405, (b"allow", allow.encode()))
        elif method == "GET" or path == "/ping":
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
            if not isinstance(handler, type):
                await reply.json(handler(data))
                return
            request = cast("type[BaseModel]", handler).model_validate(data, from_attributes=True)
            self.load += 1
            try:
                await unless_gone(receive, self._generate(request, headers, reply))
            finally:
                self.load -= 1
        except (ValidationError, BodyError, Refusal) as error:
            await reply.json(error_body(error), error.status if isinstance(error, Refusal) else 400)

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

    def _tokenize(self, data: Any) -> dict[str, Any]:
        request = req.TOKENIZE.validate_python(data, from_attributes=True)
        self._served(request.model)
        if isinstance(request, req.TokenizeChat):
            options = {"add_generation_prompt": request.add_generation_prompt}
            tokens = self._prompt(request.messages, options | (request.chat_template_kwargs or {}))
        else:
            tokens = self.tokenizer.encode(request.prompt)
        strings = [self.tokenizer.token_str(t) for t in tokens] if request.return_token_strs else None
        size = {"count": len(tokens), "max_model_len": self.engine.max_model_len}
        return size | {"tokens": tokens, "token_strs": strings}

    def _detokenize(self, data: Any) -> dict[str, Any]:
        request = req.DetokenizeRequest.model_validate(data, from_attributes=True)
        self._served(request.model)
        return {"prompt": self.tokenizer.decode(request.tokens, special=True)}

    def _prompt(self, messages: list[req.Message], options: dict[str, Any]) -> list[int]:
        if not messages:
            raise Refusal(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        return self.tokenizer.encode(self.tokenizer.prompt([m.model_dump() for m in messages], options))

    def _prompts(self, request: req.ChatRequest | req.CompletionRequest) -> list[list[int]]:
        """The prompts of a request as tokens; raises `Refusal`."""
        if isinstance(request, req.CompletionRequest):
            given: Any = request.prompt
            if request.suffix:
                raise Refusal.bare(
                    "suffix is only supported for models with FIM completion rendering", "suffix"
                )
            if not given:
                raise Refusal("You must pass at least one prompt")
            if isinstance(given, str) or isinstance(given[0], int):
                given = [given]
            worst = max((max(p, default=0) for p in given if isinstance(p, list)), default=0)
            if worst >= (self.tokenizer.size or 2**63):
                raise Refusal(f"Token id {worst} is out of vocabulary")
            return [self.tokenizer.encode(p) if isinstance(p, str) else p for p in given]
        if request.tool_choice not in (None, "none") and not self.replies:
            choice = request.tool_choice
            if choice == "auto":
                what = (
                    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
                )
            else:
                named = (
                    f'function "{choice.function.name}"'
                    if isinstance(choice, req.NamedTool)
                    else f'"{choice}"'
                )
                what = f"tool_choice={named} requires --tool-call-parser to be set"
            raise Refusal(what)
        tools = [tool.model_dump(exclude_unset=True) for tool in request.tools or ()]
        options = {"add_generation_prompt": request.add_generation_prompt, "tools": tools or None}
        return [self._prompt(request.messages, options | (request.chat_template_kwargs or {}))]

    def _work(self, request: req.ChatRequest | req.CompletionRequest) -> list[dict[str, Any]]:
        """The arguments of `Engine.submit`, for every choice; raises `Refusal`."""
        longest = self.engine.max_model_len
        wanted, name, reply = request.max_tokens, "max_tokens", None
        if wanted is None and isinstance(request, req.CompletionRequest):
            wanted = 16
        if isinstance(request, req.ChatRequest) and request.max_completion_tokens is not None:
            wanted, name = request.max_completion_tokens, "max_completion_tokens"
        prompts = self._prompts(request)
        if isinstance(request, req.ChatRequest):
            reply = find_reply(self.replies, [m.model_dump() for m in request.messages])
        if (wanted or 0) > longest:
            text = f"{name}={wanted} cannot be greater than max_model_len={longest}. Please request fewer"
            raise Refusal(f"{text} output tokens.", name, wanted)
        work = []
        for prompt in prompts:
            if len(prompt) > longest:
                raise Refusal(TOO_LONG.format(longest, longest + 1), "input_tokens", longest + 1)
            limit = min(longest - len(prompt), longest if wanted is None else wanted)
            request.check(limit)
            least = limit if request.ignore_eos else request.min_tokens
            for _ in range(request.n or 1):
                made = answer(self.tokenizer, reply, limit, least)
                about = {
                    "salt": request.cache_salt or "",
                    "max_tokens": limit,
                    "session_id": request.session_id,
                }
                work.append({"tokens": prompt, "answer": made, **about})
        return work

    async def _generate(self, request: Any, headers: dict[str, str], reply: Response) -> None:
        self._served(request.model)
        chat, jobs = isinstance(request, req.ChatRequest), list[Job]()
        engine = self.engine  # a restart puts another one in its place
        try:
            engine.admit(request.n or 1)
            work = self._work(request)
            priority = request.priority
            if self.settings.version >= (0, 29) and headers.get("x-vllm-priority", "").lstrip("-").isdigit():
                priority = int(headers["x-vllm-priority"])
            given = headers.get("x-request-id") or request.request_id
            answers = Answers(engine, request, chat, given, self.fingerprint)
            if request.stream:
                await self._stream(answers, work, priority, reply)
                return
            jobs += [engine.submit(**w, priority=priority) for w in work]
            await asyncio.gather(*(_finished(engine, job) for job in jobs))
            await reply.json(answers.whole(jobs))
        except OverloadError as error:
            raise Refusal(str(error), status=503) from None
        except EngineDeadError as error:
            raise Refusal(str(error), status=500) from None
        finally:
            for job in jobs:
                engine.abort(job)

    async def _stream(
        self, answers: Answers, work: list[dict[str, Any]], priority: int, reply: Response
    ) -> None:
        """Server-sent events; what goes wrong from here on is an event too, for the status is sent."""
        await reply.begin(200, (b"content-type", b"text/event-stream; charset=utf-8"))
        cut = self.truncate > 0
        self.truncate -= cut
        jobs: list[Job] = []
        try:
            if self.settings.max_num_queued_reqs or self.settings.max_num_queued_tokens:
                await asyncio.sleep(BURST_S)
            jobs += [answers.engine.submit(**w, priority=priority) for w in work]
            tokens = 0
            async for part in answers.events(jobs):
                await reply.part(stamped(part) if self.settings.stamps else part)
                tokens = sum(job.emitted for job in jobs)
                if cut and tokens >= 2:
                    await reply.part(b"", more=False)
                    return
        except OverloadError as error:
            await reply.part(event(error_body(Refusal(str(error), status=503))))
        except EngineDeadError as error:
            await reply.part(event(error_body(Refusal(str(error), status=500))))
        finally:
            for job in jobs:
                answers.engine.abort(job)
        await reply.part(b"data: [DONE]\n\n")
        await reply.part(b"", more=False)


def stamped(part: bytes) -> bytes:
    """Each `STAMP` as the time now: seconds of this machine's monotonic clock, 20 characters wide.

    >>> len(stamped(b"at ~~~")), stamped(b"nothing")
    (23, b'nothing')
    """
    return part.replace(STAMP, b"%020.9f" % time.monotonic())


async def _finished(engine: Engine, job: Job) -> None:
    async for _ in engine.outputs(job):
        pass
