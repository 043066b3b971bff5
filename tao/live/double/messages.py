"""The messages of a conversation: vLLM's own union of types, under the names that its errors spell out.

Parts of contents are looked at when a prompt is made of them, as in vLLM, so some errors come late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Required, Union

from pydantic import TypeAdapter, ValidationError, create_model
from typing_extensions import TypedDict

from tao.live.double.errors import Refusal

# Where a part of this type has its text, and the types of what is no text.
TEXTS = {"text": "text", "thinking": "thinking", "input_text": "text", "output_text": "text"}
TEXTS |= {"refusal": "refusal", "tool_reference": "name"}
MEDIA = {f"{x}_{y}" for x in ("audio", "image", "video") for y in ("embeds", "url")}
MEDIA |= {"image_pil", "input_audio", "input_image", "prompt_embeds"}
_kinds: Any = (TypedDict, Required, Literal, Union, Iterable, list)
_dict, _must, _is, _any_of, _many, _list = _kinds  # made here, not written down: there are too many


def _typed(title: str, may: dict[str, Any] | None = None, /, **must: Any) -> Any:
    return _dict(title, {key: _must[kind] for key, kind in must.items()} | (may or {}), total=False)


def _part(title: str, kind: str, may: dict[str, Any] | None = None, /, **must: Any) -> Any:
    return _typed(f"ChatCompletionContentPart{title}Param", may, **must, type=_is[kind])


def _simple(title: str, **may: Any) -> Any:
    return _typed(f"CustomChatCompletionContent{title}Param", may)


def _said(role: str, parts: list[Any], may: dict[str, Any], **must: Any) -> Any:
    content = str | _many[_any_of[tuple(parts)]]
    return _typed(f"ChatCompletion{role.title()}MessageParam", may, content=content, role=_is[role], **must)


def _call(kind: str, **must: Any) -> Any:
    return _typed(f"ChatCompletionMessage{kind.title()}ToolCallParam", id=str, **must, type=_is[kind])


_none: Any = str | None
_name, _uuid = {"name": str}, {"uuid": _none}
_till = _typed("PromptCacheBreakpoint", {"ttl": _is["30m", "12h"]}, mode=_is["explicit"])
_mark = {"prompt_cache_breakpoint": _till}
_embeds = str | dict[str, str | list[int | float]] | None
_detail = {"detail": _is["auto", "low", "high", "original"]}
_file = _typed("FileFile", dict.fromkeys(("file_data", "file_id", "filename"), str))
_sound = _typed("InputAudio", data=str, format=_is["wav", "mp3"])
_TEXT = _part("Text", "text", _mark, text=str)
_IMAGE = _part("Image", "image_url", _mark, image_url=_typed("ImageURL", _detail, url=str))
_SOUND = _part("InputAudio", "input_audio", _mark, input_audio=_sound)
_FILE = _typed("File", _mark, file=_file, type=_is["file"])
_AUDIO = _part("Audio", "audio_url", audio_url=_typed("AudioURL", url=str))
_VIDEO = _part("Video", "video_url", video_url=_typed("VideoURL", url=str))
_REFUSAL = _part("Refusal", "refusal", refusal=str)
_PARTS = [_TEXT, _IMAGE, _SOUND, _FILE, _AUDIO, _VIDEO, _REFUSAL]
_PARTS += [_simple("SimpleImage", image_url=_none, **_uuid)]
for _x in ("image", "audio", "video"):
    _PARTS += [_part(f"{_x.title()}Embeds", f"{_x}_embeds", {f"{_x}_embeds": _embeds} | _uuid)]
_PARTS += [_part("PromptEmbeds", "prompt_embeds", data=str), _simple("SimpleAudio", audio_url=_none)]
_PARTS += [_simple("SimpleVideo", video_url=_none, **_uuid)]
_PARTS += [_simple("ToolReference", name=str, type=_is["tool_reference"]), str]
_PARTS += [_typed("CustomThinkCompletionContentParam", {"closed": bool}, thinking=str, type=_is["thinking"])]
_CALL = _call("function", function=_typed("Function", arguments=str, name=str))
_CUSTOM = _call("custom", custom=_typed("Custom", input=str, name=str))
_defined = {"description": str, "parameters": dict[str, object], "strict": bool | None}
_function = _typed("FunctionDefinition", _defined, name=str)
_TOOL = _typed("ChatCompletionFunctionToolParam", function=_function, type=_is["function"])
# A message of the library `openai_harmony`: vLLM lets it pass here and has no use for it.
_role = _is["user", "assistant", "system", "developer", "tool"]
_author = create_model("Author", role=(_role, ...), name=(_none, None))
_more: Any = {"author": (_author, ...), "content": (_list[create_model("Content")], [])}
_more |= dict.fromkeys(("channel", "recipient", "content_type"), (_none, None))
_MESSAGE = create_model("Message", **_more)
_assistant: Any = {"audio": _typed("Audio", id=str) | None, "content": str | _many[_TEXT | _REFUSAL] | None}
_assistant |= {"function_call": _typed("FunctionCall", arguments=str, name=str) | None} | _name
_assistant |= {"refusal": _none, "tool_calls": _many[_CALL | _CUSTOM]}
_custom: Any = {"content": str | _list[_any_of[tuple(_PARTS)]], "name": str, "tool_call_id": _none}
_custom |= {
    "tool_calls": _list[_CALL] | None,
    "reasoning": _none,
    "tools": _list[_TOOL] | None,
    "task": _none,
}
ANY_MESSAGE: Any = _any_of[
    _said("developer", [_TEXT], _name),
    _said("system", [_TEXT], _name),
    _said("user", [_TEXT, _IMAGE, _SOUND, _FILE], _name),
    _typed("ChatCompletionAssistantMessageParam", _assistant, role=_is["assistant"]),
    _said("tool", [_TEXT], {}, tool_call_id=str),
    _typed("ChatCompletionFunctionMessageParam", content=_none, name=str, role=_is["function"]),
    _typed("CustomChatCompletionMessageParam", _custom, role=str),
    _MESSAGE,
]
_URLS = {"image_url": _IMAGE, "audio_url": _AUDIO, "video_url": _VIDEO}


def _text(part: Any, model: str) -> str | None:
    if isinstance(part, str):
        return part
    kind = part.get("type")
    if kind is None and not MEDIA & part.keys():
        raise Refusal("Missing 'type' field in multimodal part.", "type")
    if kind in TEXTS:
        found: str | None = part.get(TEXTS[kind])
        return found
    if kind in _URLS:
        TypeAdapter(_URLS[kind]).validate_python(part)
    if kind is not None and kind not in MEDIA:
        known = ", ".join(sorted(MEDIA | TEXTS.keys()))
        raise Refusal(
            f"Unsupported chat content part type: {kind!r}. Supported types: {known}.", "type", kind
        )
    raise Refusal(f"{model} is not a multimodal model")


def plain(messages: list[Any], model: str) -> list[dict[str, Any]]:
    """Messages as a chat template gets them, with contents as text; raises `Refusal`."""
    found = []
    for message in messages:
        role, content = message["role"], message.get("content")
        parts = [content] if isinstance(content, str) else () if content is None else content
        try:
            texts = [text for part in parts if (text := _text(part, model)) is not None]
        except ValidationError as error:
            raise Refusal(str(error)) from None
        one = {"role": role, "content": "\n".join(texts)}
        one |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
        if role == "assistant" and (calls := message.get("tool_calls")):
            if not all(call.get("type") == "function" for call in calls):
                text = "chat completions only support assistant tool_calls of type 'function'."
                raise Refusal(text, "tool_calls")
            one["tool_calls"] = calls
        if role == "assistant" and (thought := message.get("reasoning")) is not None:
            one |= {"reasoning": thought, "reasoning_content": thought}
        more = {"tool": "tool_call_id", "developer": "tools"}.get(role, "")
        found.append(one | ({more: message.get(more)} if more else {}))
    return found
