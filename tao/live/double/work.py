"""From a request to what the engine works on: its prompts as tokens, and an answer to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tao.live.double import requests as req
from tao.live.double.blocks import block_hashes
from tao.live.double.checks import MAX_N, check, check_engine
from tao.live.double.errors import Refusal
from tao.live.double.messages import plain
from tao.live.double.sampling import stopped
from tao.live.double.text import Reply, Tokenizer, answer, find_reply

TOO_LONG = (
    "This model's maximum context length is {0} tokens. However, your prompt contains {1}{2} input "
    "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
    "input prompt."
)
TOO_LONG_TEXT = (
    "This model's maximum context length is {0} tokens. However, your prompt contains {1} characters (more "
    "than {2} characters, which is the upper bound for {0} input tokens). Please reduce the length of the "
    "input prompt."
)
BOTH_ENDS = (
    "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when "
    "you want the model to continue the final message, and add_generation_prompt when you want to add a "
    "header that will prompt it to start a new assistant message instead."
)
UNTRUSTED = (
    "Per-request {0}_kwargs are disabled by default because they can change multimodal {1} resource usage. "
    "Start the server with --trust-request-mm-kwargs only when clients are trusted."
)
END = "CONTINUE_FINAL_MESSAGE_TAG "  # as in the library `transformers`: the prompt is cut here
SESSIONS = (0, 29)  # the first release looked at that knows sessions, and priorities in headers


def encode(tokenizer: Tokenizer, given: str | list[int], request: Any, longest: int = 0) -> list[int]:
    """The tokens of a prompt, at most `longest`, unless that is 0; raises `Refusal`."""
    keep = request.truncate_prompt_tokens if longest else None
    tokens = given if isinstance(given, list) else []
    if isinstance(given, str):
        most = tokenizer.longest * longest
        if longest and keep is None and len(given) > most:  # hopeless, and not worth counting
            text = TOO_LONG_TEXT.format(longest, len(given), most)
            raise Refusal(text, "input_text", len(given))
        tokens = tokenizer.encode(given, request.add_special_tokens)
        tokens = tokens[: longest + 1] if longest and keep is None else tokens
    if keep is not None:
        keep = longest - bool(request.wanted[1]) if keep < 0 else keep
        right = request.truncation_side == "right"  # vLLM's default is the other one
        tokens = tokens[:keep] if right or not keep else tokens[-keep:]
    if longest and len(tokens) > longest:
        least = "at least " * (len(tokens) == longest + 1)
        raise Refusal(TOO_LONG.format(longest, least, len(tokens)), "input_tokens", len(tokens))
    return tokens


def conversation(tokenizer: Tokenizer, request: Any, model: str, longest: int = 0) -> tuple[str, list[int]]:
    """A conversation as the chat template writes it, and its tokens; raises `Refusal`."""
    given = request.chat_template_kwargs or {}
    if request.chat_template is not None or given.get("chat_template") is not None:
        text = "Chat template is passed with request, but --trust-request-chat-template is not set. "
        raise Refusal(f"{text}Refused request with untrusted chat template.")
    _check_media(request)
    if longest:
        _check_room(request, longest)
    request.messages = messages = plain(request.messages, model)
    if not messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    own = {
        "add_generation_prompt": request.add_generation_prompt,
        "documents": None,
        "reasoning_effort": None,
    }
    own |= {name: getattr(request, name, None) for name in ("documents", "reasoning_effort")}
    if own["reasoning_effort"] is not None and "enable_thinking" not in given:
        own["enable_thinking"] = own["reasoning_effort"] != "none"
    tools = [_tool(tool) for tool in request.tools or ()] or None
    options = {"tools": tools} | {k: v for k, v in (given | own).items() if v not in (None, "auto")}
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise Refusal(BOTH_ENDS)
        messages = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"] + END}]
    text = tokenizer.prompt(messages, options)
    if request.continue_final_message:
        at = text.rindex(END.strip())
        text = text[:at] if text[at : at + len(END)] == END else text[:at].rstrip()
    return text, encode(tokenizer, text, request, longest)


def _tool(tool: req.Tool) -> dict[str, Any]:
    """A tool as vLLM shows it to the template: its known fields, with those that are left out."""
    function = tool.function
    more = {k: v for k in ("strict", "defer_loading") if (v := getattr(function, k)) is not None}
    shown = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": tool.type, "function": shown | more}


def _check_media(request: Any) -> None:
    for name, what in (("mm_processor", "preprocessing"), ("media_io", "media loading")):
        if getattr(request, f"{name}_kwargs", None):
            raise Refusal(UNTRUSTED.format(name, what), f"{name}_kwargs")


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
    if (keep := request.truncate_prompt_tokens or 0) > longest:
        text = (
            f"truncate_prompt_tokens={keep} cannot be greater than max_model_len = {longest}. Please request"
        )
        raise Refusal(f"{text} a smaller truncation size.", "truncate_prompt_tokens", keep)


def _given(request: req.CompletionRequest, tokenizer: Tokenizer, longest: int) -> list[tuple[str, list[int]]]:
    """The texts, where they are echoed, and tokens of a completion's prompts; raises `Refusal`."""
    given: Any = request.prompt
    if request.stream and request.use_beam_search:
        raise Refusal("Streaming is not currently supported with beam search")
    if request.suffix is not None:
        what = "suffix is only supported for models with FIM completion rendering"
        raise Refusal.bare("Echo is unsupported with suffix." if request.echo else what, "suffix")
    if request.prompt_embeds is not None and request.echo:
        raise Refusal("Echo is unsupported with prompt embeds.")
    _check_media(request)
    if request.prompt_embeds:
        raise Refusal("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds")
    if not given or request.prompt_embeds is not None:
        raise Refusal("You must pass at least one prompt")
    if isinstance(given, str) or isinstance(given[0], int):
        given = [given]
    if len(given) * (request.n or 1) > MAX_N:
        raise Refusal(f"{len(given)} prompts with {request.n} answers each; at most {MAX_N} fit here.", "n")
    _check_room(request, longest)
    found = []
    for p in given:
        tokens = encode(tokenizer, p, request, longest)
        text = p if isinstance(p, str) else tokenizer.decode(p, special=True) if request.echo else ""
        found.append((text, tokens))
    return found


def work(
    request: req.ChatRequest | req.CompletionRequest,
    tokenizer: Tokenizer,
    replies: Sequence[Reply],
    longest: int,
    block: int,
    model: str,
    rank: int | None = None,
) -> list[dict[str, Any]]:
    """The arguments of `Engine.submit`, for every choice; raises `Refusal`."""
    reply, (_, wanted) = None, request.wanted
    if isinstance(request, req.ChatRequest):
        if not replies:
            _check_tools(request)
        text, tokens = conversation(tokenizer, request, model, longest)
        prompts = [(text if request.return_prompt_text else "", tokens)]
        reply = find_reply(replies, request.messages)
    else:
        prompts = _given(request, tokenizer, longest)
        wanted = 1 if request.silent else wanted
    room = [min(longest - len(prompt), longest if wanted is None else wanted) for _, prompt in prompts]
    for limit in room:
        check(request, limit)
    for _, prompt in prompts:
        check_engine(request, prompt, tokenizer.size, rank)
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
    if named is not None and not -(2**63) <= named < 2**63:
        raise Refusal("", status=500)  # vLLM cannot send it to its engine
    session = request.session_id or headers.get("x-session-id") or more.get("session_id")
    return {
        "priority": request.priority if named is None else named,
        "session_id": session if session and isinstance(session, str) else None,
        "reports": more.get("kv_cache_report_mode") == "full",
    }
