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
    return _typed(title, may, **must, type=_is[kind])


_mark: Any = {
    "prompt_cache_breakpoint": _typed(
        "PromptCacheBreakpoint", {"ttl": Literal["30m", "12h"]}, mode=_is["explicit"]
    )
}
_uuid: Any = {"uuid": str | None}
_embeds: Any = str | dict[str, str | list[int | float]] | None
_url, _detail = {"url": str}, {"detail": Literal["auto", "low", "high", "original"]}
_TEXT = _part("ChatCompletionContentPartTextParam", "text", _mark, text=str)
_IMAGE = _part(
    "ChatCompletionContentPartImageParam", "image_url", _mark, image_url=_typed("ImageURL", _detail, **_url)
)
_FORMATS = {"data": str, "format": Literal["wav", "mp3"]}
_SOUND = _part(
    "ChatCompletionContentPartInputAudioParam",
    "input_audio",
    _mark,
    input_audio=_typed("InputAudio", **_FORMATS),
)
_FILE = _part(
    "File", "file", _mark, file=_typed("FileFile", {"file_data": str, "file_id": str, "filename": str})
)
_AUDIO = _part("ChatCompletionContentPartAudioParam", "audio_url", audio_url=_typed("AudioURL", **_url))
_VIDEO = _part("ChatCompletionContentPartVideoParam", "video_url", video_url=_typed("VideoURL", **_url))
_REFUSAL = _part("ChatCompletionContentPartRefusalParam", "refusal", refusal=str)
_custom_part = "CustomChatCompletionContent"
_simple = {
    x: _typed(
        f"{_custom_part}Simple{x.title()}Param", {f"{x}_url": str | None} | (_uuid if x != "audio" else {})
    )
    for x in ("image", "audio", "video")
}
_PARTS = [_TEXT, _IMAGE, _SOUND, _FILE, _AUDIO, _VIDEO, _REFUSAL, _simple["image"]]
for _x in ("image", "audio", "video"):
    _may = {f"{_x}_embeds": _embeds} | _uuid
    _PARTS.append(_part(f"ChatCompletionContentPart{_x.title()}EmbedsParam", f"{_x}_embeds", _may))
_PARTS += [_part("ChatCompletionContentPartPromptEmbedsParam", "prompt_embeds", data=str)]
_reference = {"name": str, "type": Literal["tool_reference"]}
_PARTS += [_simple["audio"], _simple["video"], _typed(f"{_custom_part}ToolReferenceParam", _reference), str]
_PARTS += [_part("CustomThinkCompletionContentParam", "thinking", {"closed": bool}, thinking=str)]
_function = _typed("Function", arguments=str, name=str)
_CALL = _typed(
    "ChatCompletionMessageFunctionToolCallParam",
    id=str,
    function=_function,
    type=_is["function"],
)
_CUSTOM = _typed(
    "ChatCompletionMessageCustomToolCallParam",
    id=str,
    custom=_typed("Custom", input=str, name=str),
    type=_is["custom"],
)
_DEFINED = {"description": str, "parameters": dict[str, object], "strict": bool | None}
_TOOL = _typed(
    "ChatCompletionFunctionToolParam",
    function=_typed("FunctionDefinition", _DEFINED, name=str),
    type=_is["function"],
)


_roles = Literal["user", "assistant", "system", "developer", "tool"]
_author = create_model("Author", role=(_roles, ...), name=(str | None, None))
_content: Any = (_list[create_model("Content")], [])
_more: Any = dict.fromkeys(("channel", "recipient", "content_type"), (str | None, None))
# Of the library `openai_harmony`: vLLM lets it pass here and has no use for it.
_MESSAGE = create_model("Message", author=(_author, ...), content=_content, **_more)


def _said(role: str, parts: list[Any], may: dict[str, Any] | None = None, **must: Any) -> Any:
    content = str | _many[_any_of[tuple(parts)]]
    name = f"ChatCompletion{role.title()}MessageParam"
    return _typed(name, {"name": str} if may is None else may, content=content, role=_is[role], **must)


_assistant: Any = {
    "audio": _typed("Audio", id=str) | None,
    "content": str | _many[_TEXT | _REFUSAL] | None,
    "function_call": _typed("FunctionCall", arguments=str, name=str) | None,
    "name": str,
    "refusal": str | None,
    "tool_calls": _many[_CALL | _CUSTOM],
}
_custom: Any = {"content": str | _list[_any_of[tuple(_PARTS)]], "name": str, "tool_call_id": str | None}
_custom |= {"tool_calls": _list[_CALL] | None, "reasoning": str | None, "tools": _list[_TOOL] | None}
ANY_MESSAGE: Any = _any_of[
    _said("developer", [_TEXT]),
    _said("system", [_TEXT]),
    _said("user", [_TEXT, _IMAGE, _SOUND, _FILE]),
    _typed("ChatCompletionAssistantMessageParam", _assistant, role=_is["assistant"]),
    _said("tool", [_TEXT], {}, tool_call_id=str),
    _typed("ChatCompletionFunctionMessageParam", content=str | None, name=str, role=_is["function"]),
    _typed("CustomChatCompletionMessageParam", _custom | {"task": str | None}, role=str),
    _MESSAGE,
]

_URLS = {
    f"{x}_url": TypeAdapter[Any](kind)
    for x, kind in zip(("image", "audio", "video"), (_IMAGE, _AUDIO, _VIDEO), strict=True)
}


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
        _URLS[kind].validate_python(part)
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
