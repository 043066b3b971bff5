"""The forms that a request may want its answer in, by vLLM's rules; no grammar is compiled here."""

from __future__ import annotations

import json as jsons
import re
from dataclasses import field, replace
from typing import Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass

from tao.live.double.errors import LateRefusal, Refusal

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
SCHEMA_TYPES = {"string", "number", "integer", "boolean", "null", "object", "array"}
VALUES = ("const", "enum", "default", "examples")  # keys of a schema that hold data, not schemas
PLAIN = ("missing )", "unbalanced", "unterminated char", "nothing to repeat")  # mistakes in any dialect
DEEPEST = 64  # levels of a JSON schema


def _model(title: str, **fields: Any) -> Any:
    return create_model(title, __config__=ConfigDict(extra="allow"), **fields)


_many: Any = list
_text, _tag, _schema = (str, ...), (Literal["structural_tag"], ...), Field(None, alias="schema")
_given: Any = {
    "name": _text,
    "description": (str | None, None),
    "json_schema": (dict[str, Any] | None, _schema),
}
_JSON = _model("JsonSchemaResponseFormat", **_given, strict=(bool | None, None))
_kind: Any = (Literal["text", "json_object", "json_schema"], ...)
_FORM = _model("ResponseFormat", type=_kind, json_schema=(_JSON | None, None))
_TAG = _model("StructuralTagResponseFormat", type=_tag, format=(Any, ...))
_given = {"begin": _text, "structural_tag_schema": (dict[str, Any] | None, _schema), "end": _text}
_given = {"structures": (_many[_model("LegacyStructuralTag", **_given)], ...), "triggers": (list[str], ...)}
_OLD_TAG = _model("LegacyStructuralTagResponseFormat", type=_tag, **_given)
AnyFormat: Any = _FORM | _TAG | _OLD_TAG


@dataclass
class StructuredOutputsParams:
    """What the answer must match: exactly one of its kinds."""

    json: str | dict[Any, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    _backend: str | None = field(default=None, init=False)  # vLLM's error shows these two as well
    _backend_was_auto: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Raise `Refusal` unless there is exactly one kind."""
        count = sum(getattr(self, kind) is not None for kind in KINDS)
        if count != 1:
            rule = ("only use one", "multiple") if count else ("must use one", "none")
            text = f"You {'can ' * (count > 1)}{rule[0]} kind of structured outputs constraint but {rule[1]}"
            raise Refusal(f"{text} are specified: {self.__dict__}")

    def check_engine(self) -> None:
        """Raise `LateRefusal` for what no grammar can be made of, as far as that shows without making one."""
        if self.choice == []:
            raise LateRefusal("Choice '[]' cannot be an empty list")
        for name in ("grammar", "json", "structural_tag"):
            if isinstance(given := getattr(self, name), str) and not given.strip():
                raise LateRefusal(f"structured_outputs.{name} cannot be an empty string")
        if self.json_object is False:
            text = "structured_outputs.json_object must be True if set; omit structured_outputs to disable"
            raise LateRefusal(f"{text} structured outputs")
        try:
            schema = jsons.loads(self.json) if isinstance(self.json, str) else self.json
        except (ValueError, RecursionError):
            raise LateRefusal("Invalid JSON grammar specification.") from None
        _check_schema(schema)
        if self.grammar and ":" not in self.grammar:
            raise LateRefusal("Invalid grammar specification: it has no rule.")
        try:
            re.compile(self.regex or "")
        except re.error as error:  # Python and vLLM know different extensions
            if error.msg.startswith(PLAIN):
                raise LateRefusal(f"Grammar error: invalid regex {self.regex!r}: {error}") from None


def _check_schema(schema: Any, depth: int = 1, types: bool = True) -> None:
    if depth > DEEPEST and isinstance(schema, dict | list):
        text = f"The JSON schema is nested too deeply: objects and arrays may nest at most {DEEPEST} levels"
        raise LateRefusal(text)
    kind = schema.get("type") if isinstance(schema, dict) and types else None
    if isinstance(kind, str) and kind not in SCHEMA_TYPES:
        raise LateRefusal(f"Grammar error: Invalid type: {kind}")
    inner = (
        schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    )
    for key, value in inner:
        _check_schema(value, depth + 1, types and key not in VALUES)


@dataclass
class RepetitionDetectionParams:
    """When an answer that repeats itself ends; here none does."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        """Raise `Refusal` for sizes that make no sense."""
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            text = (
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
            )
            raise Refusal(f"{text}Set both to 0 to disable repetitive pattern detection.")
        if self.max_pattern_size and self.min_count < 2:
            text = (
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do not wish "
            )
            raise Refusal(f"{text}to detect repetitive patterns, set max_pattern_size to 0.")


def check_format(given: Any) -> None:
    """The rules of `response_format` that go before its types."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "json_schema" and given.get("json_schema") is None:
        text = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise Refusal(text, "response_format")
    if kind == "structural_tag":
        try:
            TypeAdapter(_OLD_TAG | _TAG).validate_python(given)
        except ValidationError:
            text = "Invalid response_format structural_tag specification."
            raise Refusal(text, "response_format") from None


def check_outputs(given: Any, param: str | None, choice: Any = "none") -> None:
    """Likewise of `structured_outputs`, which go without a named tool."""
    if given is None:
        return
    count = sum(given.get(kind) is not None for kind in KINDS[:3])
    if count > 1:
        text = (
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        )
        raise Refusal(text, param)
    if count and choice not in ("none", "auto", "required"):
        raise Refusal("You can only either use constraints for structured outputs or tools, not both.")
    if (tag := given.get("structural_tag")) is not None:
        try:
            jsons.loads(tag)
        except (TypeError, ValueError):
            text = "Invalid structured_outputs structural_tag specification."
            raise Refusal(text, "structured_outputs") from None


def wanted(outputs: StructuredOutputsParams | None, form: Any) -> StructuredOutputsParams | None:
    """What `structured_outputs` and `response_format` come to; raises `Refusal`."""
    if form is None or form.type == "text":
        return outputs
    if form.type == "json_object":
        more: dict[str, Any] = {"json_object": True}
    elif form.type == "json_schema":
        more = {"json": form.json_schema.json_schema}
    else:
        more = {"structural_tag": jsons.dumps(form.model_dump(by_alias=True))}
    return replace(outputs, **more) if outputs else StructuredOutputsParams(**more)
