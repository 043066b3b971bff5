"""Answers of the simulated server, whole and as server-sent events, key for key as vLLM writes them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from tao.live.double.engine import Engine
from tao.live.double.jobs import Job
from tao.live.double.requests import ChatRequest
from tao.live.double.sampling import Spelling
from tao.live.double.text import Answer, Tokenizer, flat
from tao.profiles import PS_PER_S

NO_CALLS = {"refusal": None, "annotations": None, "audio": None, "function_call": None}


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # made once: half of the time


def dumps(data: Any) -> str:
    """JSON as vLLM writes it: no spaces, no escapes."""
    return _encode(data)


class Answers:
    """How one request, a `ChatRequest` or `CompletionRequest`, is answered."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        request: Any,
        request_id: str | None,
        fingerprint: str,
    ) -> None:
        self.engine, self.request = engine, request
        self.chat = chat = isinstance(request, ChatRequest)
        self._spelling = Spelling(
            tokenizer, bool(request.return_tokens_as_token_ids), request.logprob_token_ids or ()
        )
        self.fingerprint, self.settings = fingerprint, engine.settings
        kind = "chatcmpl" if chat else "cmpl"
        self.id = f"{kind}-{request_id or secrets.token_hex(8)}"
        name = "text_completion" if not chat else "chat.completion"
        about = {"created": int(time.time()), "model": engine.settings.model}
        self._head = {"id": self.id, "object": name} | about
        self._chunk = {"id": self.id, "object": name + ".chunk" * chat} | about
        self._ids = bool(request.return_token_ids)
        options = request.stream_options
        self._usage = bool(options and options.include_usage)
        self._continuous = bool(self._usage and options.continuous_usage_stats)

    # --- whole --------------------------------------------------------------------------------

    def whole(self, jobs: list[Job]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = []
        for index, job in enumerate(jobs):
            text, calls = _said(job.answer)
            rest: dict[str, Any] = {
                "logprobs": self._logprobs(job, 0, len(job.answer.tokens)),
                "finish_reason": job.reason,
                "stop_reason": job.answer.stop_reason,
                "token_ids": job.answer.tokens if self._ids else None,
            }
            if self.chat:
                content = self._echoed() + text
                message: dict[str, Any] = {
                    "role": self.request.role,
                    "content": content or (None if calls else ""),
                } | NO_CALLS
                message |= {"tool_calls": calls} if calls else {}
                choices.append({"index": index, "message": message | {"reasoning": None}, **rest})
            else:
                prompt: dict[str, Any] = {
                    "prompt_logprobs": self._prompt_logprobs(job),
                    "prompt_token_ids": job.tokens if self._ids else None,
                }
                choices.append({"index": index, "text": self._echo(job, text), **rest, **prompt})
            choices[-1]["routed_experts"] = None
        usage = self._final_usage(jobs, whole=True)
        body = self._head | {"choices": choices, "service_tier": None}
        body |= {"system_fingerprint": self.fingerprint, "usage": usage}
        if self.chat:
            ids = jobs[0].tokens if self._ids else None
            known = {"prompt_logprobs": self._prompt_logprobs(jobs[0]), "prompt_token_ids": ids}
            body |= known | {"prompt_text": jobs[0].prompt or None}
        body |= {"kv_transfer_params": None, "ec_transfer_params": None}
        return body | {"metrics": self._timing(jobs, {"speculative_decoding": None})}

    def _echoed(self) -> str:
        """What a chat's answer begins with."""
        last = self.request.messages[-1]
        return flat(last["content"]) if self.request.echo and last["role"] == self.request.role else ""

    def _echo(self, job: Job, text: str) -> str:
        """What a completion says."""
        if not self.request.echo:
            return text
        return ("" if self._ids else job.prompt) + ("" if self.request.silent else text)

    def _logprobs(self, job: Job, start: int, stop: int) -> dict[str, Any] | None:
        """Of the answer's tokens from `start` to `stop`, the first ones after those of an echoed prompt."""
        count, tokens = self.request.chosen, job.answer.tokens[start:stop]
        if count is None or self.chat:
            return None if count is None else self._spelling.chat(tokens, count)
        first = bool(self.request.echo) and not start
        if first:
            tokens = job.tokens + ([] if self.request.silent else tokens)
        found = self._spelling.text(tokens, count, job.offset, first)
        if tokens:
            job.offset = found["text_offset"][-1] + len(found["tokens"][-1])
        return found

    def _prompt_logprobs(self, job: Job) -> list[Any] | None:
        count = self.request.asked
        return None if count is None else self._spelling.prompt(job.tokens, count)

    def _final_usage(self, jobs: list[Job], whole: bool) -> dict[str, Any]:
        s, block = self.settings, self.engine.node.blocks.size
        usage = self._count(jobs)
        job = jobs[-1 if whole else 0]  # of several, vLLM reports one
        cached = job.hit_tokens
        created = max(job.prompt_tokens // block * block - cached, 0)
        details: dict[str, Any] = {"cached_tokens": cached}
        if s.version >= (0, 26) and (whole or self.chat):
            details["created_cache_tokens"] = created if self.chat else None
        if whole and s.version >= (0, 26):
            details["multimodal_tokens"] = None
        if whole or s.prompt_tokens_details:
            known = s.prompt_tokens_details and not self.request.use_beam_search
            usage["prompt_tokens_details"] = details if known else None
        return usage | ({"completion_tokens_details": None} if whole else {})

    def _count(self, jobs: list[Job]) -> dict[str, Any]:
        each = len(jobs) // max(self.request.n or 1, 1)
        prompt = sum(j.prompt_tokens for j in jobs) * each // len(jobs)
        made = sum(j.emitted for j in jobs)
        return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}

    def _timing(self, jobs: list[Job], more: dict[str, None]) -> dict[str, Any] | None:
        """What the server itself measured, in milliseconds; nothing for more than one choice."""
        s, job = self.settings, jobs[0]
        if len(jobs) > 1 or not s.per_request_metrics or s.version < (0, 26) or job.first_token_ps < 0:
            return None
        ms = PS_PER_S * s.speedup / 1000
        first, spent = (job.first_token_ps - job.submitted_ps) / ms, (job.last_ps - job.first_token_ps) / ms
        found = {
            "time_to_first_token_ms": first,
            "generation_time_ms": spent,
            "queue_time_ms": (job.scheduled_ps - job.submitted_ps) / ms,
            "mean_itl_ms": spent / (job.emitted - 1) if job.emitted > 1 else None,
            "tokens_per_second": 1000 * job.emitted / (first + spent),
        }
        return (dict.fromkeys(found) if self.request.use_beam_search else found) | more

    # --- streamed -----------------------------------------------------------------------------

    async def events(self, jobs: list[Job]) -> AsyncIterator[bytes]:
        """The events of a stream, except its end."""
        told, begun, kinds = [0] * len(jobs), False, [_Kinds(job.answer) for job in jobs]
        async for index, count in _merged(self.engine, jobs, self.settings.keep_alive_s):
            if not count and not jobs[index].reason:
                yield b": keep-alive\n\n"
                continue
            job = jobs[index]
            end = job.reason if count == job.emitted and job.reason else None
            if self.request.use_beam_search and not end:
                continue  # a search knows its answer when it is over
            out = []
            if not begun and self.chat:
                for role in (True, False) if self._echoed() else (True,):
                    out += [self._event(self._begin(i, role), job, 0) for i, job in enumerate(jobs)]
            begun = True
            if told[index] and count - told[index] < (self.request.stream_interval or 1) and not end:
                continue
            if count > told[index] or end:
                out += self._deltas(index, job, told[index], count, end, kinds[index])
            told[index] = count
            yield b"".join(out)
        if self._usage:
            last: dict[str, Any] = {"choices": [], "usage": self._final_usage(jobs, whole=False)}
            last["system_fingerprint"] = self.fingerprint
            timing = {k: v for k, v in (self._timing(jobs, {}) or {}).items() if v is not None}
            yield _sse(self._chunk | last | ({"metrics": timing} if timing else {}))

    def _begin(self, index: int, role: bool) -> dict[str, Any]:
        delta = {"role": self.request.role, "content": ""} if role else {"content": self._echoed()}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _deltas(
        self, index: int, job: Job, start: int, stop: int, end: str | None, kinds: _Kinds
    ) -> list[bytes]:
        """Events of the tokens from `start` to `stop`; with a reason to end, the last one carries it."""
        logprobs = self._logprobs(job, start, stop)
        parts = kinds.parts(start, stop)
        if not parts and (end or self._ids or logprobs):
            parts = [{} if end == "tool_calls" or not end else ""]
        out = []
        for k, part in enumerate(parts):
            last = k == len(parts) - 1
            final = end if last else None
            rest: dict[str, Any] = {"logprobs": logprobs if last else None, "finish_reason": final}
            why = {"stop_reason": job.answer.stop_reason if final else None}
            if self.chat:
                choice = {
                    "index": index,
                    "delta": {"content": part} if isinstance(part, str) else part,
                } | rest
                choice |= why if final else {}
            else:
                echoed = bool(self.request.echo) and not start
                prompt_ids = job.tokens if echoed or (self._ids and not start) else None
                text = self._echo(job, part) if echoed else part
                choice = {"index": index, "text": text} | rest | why | {"prompt_token_ids": prompt_ids}
            ids = job.answer.tokens[start:stop] if self._ids and last else None
            out.append(self._event(choice | {"token_ids": ids}, job, stop))
        return out

    def _event(self, choice: dict[str, Any], job: Job, made: int) -> bytes:
        more: dict[str, Any] = {"choices": [choice]}
        if choice["finish_reason"] and not self._usage:
            more["system_fingerprint"] = self.fingerprint
        if self._continuous:
            prompt = job.prompt_tokens
            count = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
            more["usage"] = count | ({"completion_tokens_details": None} if self.chat else {})
        if self.chat and "role" in choice["delta"]:
            more |= {"prompt_token_ids": job.tokens if self._ids else None, "prompt_text": job.prompt or None}
        return _sse(self._chunk | more)


def _sse(data: dict[str, Any]) -> bytes:
    return f"data: {dumps(data)}\n\n".encode("utf-8", "replace")


class _Kinds:
    """What tokens add to a stream: one text for all of content, and each piece of a tool call."""

    def __init__(self, made: Answer) -> None:
        self.answer = made

    def parts(self, start: int, stop: int) -> list[Any]:
        """Text, or deltas of tool calls."""
        found: list[Any] = []
        for delta in self.answer.deltas[start:stop]:
            if isinstance(delta, str):
                if found and isinstance(found[-1], str):
                    found[-1] += delta
                else:
                    found.append(delta)
            elif delta is not None:
                call, text, inside = delta
                function = {"arguments": text} if inside else {"name": text, "arguments": ""}
                about = {} if inside else {"id": f"chatcmpl-tool-{secrets.token_hex(8)}", "type": "function"}
                found.append({"tool_calls": [{**about, "index": call, "function": function}]})
        return found


def _said(made: Answer) -> tuple[str, list[dict[str, Any]]]:
    """Content and tool calls of a whole answer."""
    text, calls = "", list[dict[str, Any]]()
    for part in _Kinds(made).parts(0, len(made.deltas)):
        if isinstance(part, str):
            text += part
            continue
        [call] = part["tool_calls"]
        if "id" in call:
            calls.append({key: call[key] for key in ("id", "type", "function")})
        else:
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return text, calls


async def _merged(
    engine: Engine, jobs: list[Job], keep_alive_s: float | None
) -> AsyncIterator[tuple[int, int]]:
    """(choice, tokens so far) of all jobs as they come; 0 tokens keep the connection alive."""
    if len(jobs) == 1:
        async for count in engine.outputs(jobs[0], keep_alive_s):
            yield 0, count
        return
    queue: asyncio.Queue[tuple[int, int] | BaseException | None] = asyncio.Queue()

    async def follow(index: int) -> None:
        try:
            async for count in engine.outputs(jobs[index], keep_alive_s):
                queue.put_nowait((index, count))
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.ensure_future(follow(i)) for i in range(len(jobs))]
    try:
        running = len(jobs)
        while running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
