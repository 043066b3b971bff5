"""From a request to what the engine works on: its prompts as tokens, and an answer to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tao.live.double import requests as req
from tao.live.double.blocks import block_hashes
from tao.live.double.errors import Refusal
from tao.live.double.sampling import stopped
from tao.live.double.text import Reply, Tokenizer, answer, find_reply

TOO_LONG = (
    "This model's maximum context length is {0} tokens. However, your prompt contains at least {1} input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
    "input prompt."
)
SESSIONS = (0, 29)  # the first release looked at that knows sessions, and priorities in headers


def encode(tokenizer: Tokenizer, text: str, longest: int) -> list[int]:
    """The tokens of a prompt; raises `Refusal`, for a hopeless text without counting them."""
    tokens = tokenizer.encode(text) if len(text) <= tokenizer.longest * longest else None
    if tokens is None or len(tokens) > longest:
        raise Refusal(TOO_LONG.format(longest, longest + 1), "input_tokens", longest + 1)
    return tokens


def conversation(
    tokenizer: Tokenizer, messages: list[req.Message], options: dict[str, Any], longest: int
) -> list[int]:
    """A conversation as tokens; raises `Refusal`."""
    if not messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = tokenizer.prompt([m.model_dump() for m in messages], options)
    return encode(tokenizer, text, longest)


def _check_tools(request: req.ChatRequest) -> None:
    """What a server without a parser of tool calls says."""
    choice = request.tool_choice
    if choice == "auto":
        raise Refusal(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    if choice not in (None, "none"):
        named = f'function "{choice.function.name}"' if isinstance(choice, req.NamedTool) else f'"{choice}"'
        raise Refusal(f"tool_choice={named} requires --tool-call-parser to be set")


def _check_room(request: req.ChatRequest | req.CompletionRequest, longest: int) -> None:
    """Whether the numbers given fit the model at all, which is asked before any text is read."""
    name, wanted = request.wanted
    if (wanted or 0) > longest:
        text = f"{name}={wanted} cannot be greater than max_model_len={longest}. Please request fewer"
        raise Refusal(f"{text} output tokens.", name, wanted)


def _given(request: req.CompletionRequest, tokenizer: Tokenizer, longest: int) -> list[tuple[str, list[int]]]:
    """The texts, where they are echoed, and tokens of a completion's prompts; raises `Refusal`."""
    given: Any = request.prompt
    if request.suffix is not None:
        what = "suffix is only supported for models with FIM completion rendering"
        raise Refusal.bare("Echo is unsupported with suffix." if request.echo else what, "suffix")
    if not given:
        raise Refusal("You must pass at least one prompt")
    if isinstance(given, str) or isinstance(given[0], int):
        given = [given]
    if len(given) * (request.n or 1) > req.MAX_N:
        raise Refusal(
            f"{len(given)} prompts with {request.n} answers each; at most {req.MAX_N} fit here.", "n"
        )
    _check_room(request, longest)
    found = []
    for p in given:
        tokens = encode(tokenizer, p, longest) if isinstance(p, str) else p
        if len(tokens) > longest:
            raise Refusal(TOO_LONG.format(longest, longest + 1), "input_tokens", longest + 1)
        text = p if isinstance(p, str) else tokenizer.decode(p, special=True) if request.echo else ""
        found.append((text, tokens))
    return found


def work(
    request: req.ChatRequest | req.CompletionRequest,
    tokenizer: Tokenizer,
    replies: Sequence[Reply],
    longest: int,
    block: int,
) -> list[dict[str, Any]]:
    """The arguments of `Engine.submit`, for every choice; raises `Refusal`."""
    reply, (_, wanted) = None, request.wanted
    if isinstance(request, req.ChatRequest):
        if not replies:
            _check_tools(request)
        _check_room(request, longest)
        tools = [tool.model_dump(exclude_unset=True) for tool in request.tools or ()]
        options = {"add_generation_prompt": request.add_generation_prompt, "tools": tools or None}
        options |= request.chat_template_kwargs or {}
        prompts = [("", conversation(tokenizer, request.messages, options, longest))]
        reply = find_reply(replies, [m.model_dump() for m in request.messages])
    else:
        prompts = _given(request, tokenizer, longest)
        wanted = 1 if request.silent else wanted
    room = [min(longest - len(prompt), longest if wanted is None else wanted) for _, prompt in prompts]
    for limit in room:
        request.check(limit)
    for _, prompt in prompts:
        request.check_engine(prompt, tokenizer.size)
    found = []
    for (text, prompt), limit in zip(prompts, room, strict=True):
        least = limit if request.ignore_eos else request.min_tokens
        made = answer(tokenizer, reply, limit, least, request.allowed_token_ids or ())
        include, ids = request.include_stop_str_in_output, request.stop_token_ids or ()
        made = stopped(made, request.stops, ids, include, request.min_tokens)
        salt = request.cache_salt or ""
        hashes = block_hashes([*prompt, *made.tokens], block, salt)
        one = {"tokens": prompt, "answer": made, "hashes": hashes, "salt": salt, "prompt": text}
        one |= {"max_tokens": limit, "reads": request.asked is None, "n": request.n or 1, "others": set()}
        found += [one] * (request.n or 1)
    return found


def about(
    request: req.ChatRequest | req.CompletionRequest,
    headers: Mapping[str, str],
    version: tuple[int, int, int],
) -> dict[str, Any]:
    """More arguments of `Engine.submit`: what a request says of its priority, session and events."""
    if version < SESSIONS:
        return {"priority": request.priority}
    named, more = req.whole(headers.get("x-vllm-priority", "")), request.vllm_xargs or {}
    session = request.session_id or headers.get("x-session-id") or more.get("session_id")
    return {
        "priority": request.priority if named is None else named,
        "session_id": session if session and isinstance(session, str) else None,
        "reports": more.get("kv_cache_report_mode") == "full",
    }
