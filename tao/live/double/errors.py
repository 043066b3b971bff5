"""How the simulated server says no: one function writes the bodies of all errors, as vLLM does."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

MAX_ERRORS, MAX_SHOWN, MAX_LINE = 10, 200, 1000  # what an answer repeats of a bad request, as in vLLM
# What to vLLM's eyes is a path of the server's.
PATHS = r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+", r"(?:/[\w\-]+)+/[\w\-]+\.\w+"
# Branches of a union and other steps of `pydantic`'s own, left out of a path.
STEPS = """tokenizeprompt tokenizechat namedtool responseformat structuraltagresponseformat
legacystructuraltagresponseformat chain default nullable union call arguments callable str int float bool
bytes bytearray list tuple dict set frozenset complex none nonetype"""
TYPE_NAMES = frozenset(STEPS.split())
# Of several wrong fields, vLLM names the one first that comes first in its own schema.
SHARED = """use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side"""
LAST = """structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_prompt_text mm_payload return_mm_kwargs cache_salt
kv_transfer_params ec_transfer_params vllm_xargs repetition_detection"""
ORDER = {
    "ChatRequest": f"""messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens
    max_completion_tokens n presence_penalty response_format seed stop stream stream_options temperature top_p
    tools tool_choice reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user
    {SHARED} prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt
    continue_final_message add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs
    mm_processor_kwargs {LAST} stream_interval""",
    "CompletionRequest": f"""model prompt echo frequency_penalty logit_bias logprobs max_tokens n
    presence_penalty seed stop stream stream_options suffix temperature top_p user {SHARED}
    allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds add_special_tokens
    response_format {LAST} thinking_token_budget stream_interval""",
}


log = logging.getLogger(__name__)


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


class LateRefusal(Refusal):
    """What the engine itself objects to: a stream has begun by then, and tells it as an event."""


def refused(error: Exception) -> Refusal | ValidationError | BodyError:
    """The answer when something fails; as in vLLM, a value that Python minds is the client's fault."""
    if isinstance(error, Refusal | ValidationError | BodyError):
        return error
    theirs = isinstance(error, ValueError | TypeError | OverflowError)
    if theirs or any(c.__name__ == "TemplateError" for c in type(error).__mro__):
        return Refusal(str(error))
    log.error("a request failed", exc_info=error)
    return Refusal(str(error), status=500)


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
        about = {"type": error.kind, "param": error.param, "code": error.status}
        return {"error": {"message": _clean(str(error))} | about}
    if isinstance(error, BodyError):
        problems: list[dict[str, Any]] = [error.problem]
    else:
        rank = {name: k for k, name in reversed(list(enumerate(ORDER.get(error.title, "").split())))}
        problems = [{**p, "loc": ("body", *p["loc"])} for p in error.errors(include_url=False)]
        problems.sort(key=lambda p: rank.get(p["loc"][1], len(rank)) if len(p["loc"]) > 1 else -1)
    count, shown = len(problems), problems[:MAX_ERRORS]
    word = "error" if count == 1 else "errors"
    lines = [f"{count} validation {word}:", *(f"  {_problem(p)}" for p in shown)]
    lines += [f"  ...and {count - MAX_ERRORS} more {word}"] * (count > MAX_ERRORS)
    param = _path(problems[0]["loc"])
    told = _clean("\n".join(lines))
    return {"error": {"message": told, "type": "Bad Request", "param": param, "code": 400}}


def _clean(message: str) -> str:
    """A message without what could be a path or an address of the server's, even if a client sent it."""
    message = re.sub(r" at 0x[0-9a-fA-F]+>", ">", message)
    for path in PATHS:
        message = re.sub(path, "<path>", message)
    return message.strip()


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
