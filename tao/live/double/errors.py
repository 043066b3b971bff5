"""How the simulated server says no: one function writes the bodies of all errors, as vLLM does."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

MAX_ERRORS, MAX_SHOWN, MAX_LINE = 10, 200, 1000  # what an answer repeats of a bad request, as in vLLM
# Branches of a union, left out of a path.
TYPE_NAMES = {"str", "int", "float", "bool", "list", "dict", "tokenizeprompt", "tokenizechat"}
# Of several wrong fields, vLLM names the one first that comes first in its own schema.
ORDER = """
messages model prompt frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
presence_penalty seed stop stream stream_options temperature top_p tools tool_choice"""


class Refusal(Exception):  # noqa: N818 - it becomes an answer, not a traceback
    """A request that is refused: status, type of error, and the parameter at fault."""

    def __init__(
        self, message: str, param: str | None = None, value: object = None, status: int = 400, kind: str = ""
    ) -> None:
        more = [f"parameter={param}"] * (param is not None) + [f"value={value}"] * (value is not None)
        super().__init__(f"{message} ({', '.join(more)})" if more and status == 400 else message)
        self.param, self.status = param, status
        named = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
        self.kind = kind or named.get(status) or HTTPStatus(status).phrase

    @classmethod
    def bare(cls, message: str, param: str) -> Refusal:
        """One whose text does not repeat the parameter."""
        error = cls(message)
        error.param = param
        return error


class BodyError(Exception):
    """A body that is empty or no JSON, as a problem in the form that `pydantic` gives its own."""

    def __init__(self, kind: str, message: str, where: tuple[int, ...] = (), **more: object) -> None:
        super().__init__(message)
        self.problem = {"type": kind, "loc": ("body", *where), "msg": message, "input": None} | more


def error_body(error: Refusal | ValidationError | BodyError) -> dict[str, Any]:
    """The body of any refused request.

    >>> error_body(Refusal("no", "n", 0))["error"]["message"]
    'no (parameter=n, value=0)'
    """
    if isinstance(error, Refusal):
        if error.kind == "detail":  # the framework's own form
            return {"detail": str(error)}
        found = {"message": str(error), "type": error.kind, "param": error.param, "code": error.status}
        return {"error": found}
    if isinstance(error, BodyError):
        problems: list[dict[str, Any]] = [error.problem]
    else:
        rank = {name: k for k, name in enumerate(ORDER.split())}
        problems = [{**p, "loc": ("body", *p["loc"])} for p in error.errors(include_url=False)]
        problems.sort(key=lambda p: rank.get(p["loc"][1], len(rank)) if len(p["loc"]) > 1 else -1)
    count, shown = len(problems), problems[:MAX_ERRORS]
    word = "error" if count == 1 else "errors"
    lines = [f"{count} validation {word}:", *(f"  {_problem(p)}" for p in shown)]
    lines += [f"  ...and {count - MAX_ERRORS} more {word}"] * (count > MAX_ERRORS)
    param = _path(problems[0]["loc"])
    return {"error": {"message": "\n".join(lines), "type": "Bad Request", "param": param, "code": 400}}


def _problem(problem: dict[str, Any]) -> str:
    text = str(problem | {"loc": _path(problem["loc"]), "input": _summary(problem["input"])})
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + "...[truncated]"


def _path(loc: tuple[int | str, ...]) -> str:
    parts = [str(x) for x in loc]
    return ".".join(p for p in parts if not set("[](){}") & set(p) and p.lower() not in TYPE_NAMES)


def _summary(value: object) -> object:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...[truncated]"
