"""What the simulated server accepts: vLLM's fields and rules.

A `pydantic` schema finds wrong types, `Refusal` carries what a rule objects to. Fields that change nothing
here are accepted like unknown ones.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from tao.live.double.errors import LateRefusal, Refusal

USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
MAX_N = 16_384  # vLLM's default of VLLM_MAX_N_SEQUENCES
MAX_PROMPTS = 1024  # vLLM's default of VLLM_MAX_COMPLETION_PROMPTS
MAX_LOGPROBS = 20  # of vLLM's --max-logprobs
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Natural = Annotated[int, Field(ge=0)]


def whole(text: str) -> int | None:
    """A whole number as Python reads it, or None.

    >>> whole("-7"), whole("--7")
    (-7, None)
    """
    try:
        return int(text)
    except ValueError:
        return None


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    """What a stream says of its usage."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Sampling(_Open):
    """What chat and completions share."""

    _counts: ClassVar[tuple[str, ...]] = ()  # fields whose values are looked at before all types

    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    bad_words: list[str] = []
    add_special_tokens: bool = True
    priority: Int64 = 0
    request_id: str = ""
    session_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    cache_salt: str | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _rules(cls, data: Any) -> Any:
        """Rules that vLLM applies before it looks at types, in its order."""
        if not isinstance(data, dict):
            return data
        cls._own_rules(data)
        for name in cls._counts:
            given = data.get(name)
            if given is not None and not isinstance(given, int | float):
                raise Refusal(f"`{name}` must be an integer.", name, given)
        for name in cls._counts:
            given = data.get(name) or 0
            if name == "prompt_logprobs" and data.get("stream") and (given > 0 or given == -1):
                raise Refusal("`prompt_logprobs` are not available when `stream=True`.", name)
            if given < 0 and given != -1:
                raise Refusal(f"`{name}` must be a positive value or -1.", name, given)
        if "top_logprobs" in cls._counts and data.get("top_logprobs") and not data.get("logprobs"):
            raise Refusal("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        if data.get("stream_options") and not data.get("stream"):
            raise Refusal("Stream options can only be defined when `stream=True`.", "stream_options")
        salt = data.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise Refusal("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        if salt is not None and (len(salt) > 128 or set(salt) & set("@/\\\x00")):
            raise Refusal(
                "Parameter 'cache_salt' must be at most 128 characters and must "
                "not contain '@', '/', '\\\\', or NUL.",
                "cache_salt",
            )
        return data

    @classmethod
    def _own_rules(cls, data: dict[str, Any]) -> None:
        """Rules of one endpoint."""

    @property
    def chosen(self) -> int | None:
        """How many log probabilities each token of the answer gets; None: none."""
        raise NotImplementedError

    @property
    def asked(self) -> int | None:
        """How many each token of the prompt gets; None: none, and only then the cache is read."""
        raise NotImplementedError

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def check(self, limit: int) -> None:
        """What vLLM checks of the sampling before an answer begins, for `limit` tokens to come."""
        n = 1 if self.n is None else self.n
        t = 1.0 if self.temperature is None else self.temperature
        self._check_values(n, t, limit)
        if n > 1 and not t:  # above 0, vLLM takes at least 0.01, which is no longer greedy
            raise Refusal(f"n must be 1 when using greedy sampling, got {n}.")

    def check_engine(self, prompt: list[int], size: int) -> None:
        """What the engine checks, of `size` tokens in all; raises `LateRefusal`."""
        for kind, name, wanted in (
            ("sample", "logprobs", self.chosen),
            ("prompt", "prompt_logprobs", self.asked),
        ):
            count = size or 2**31 if wanted == -1 else wanted or 0
            if count > MAX_LOGPROBS:
                text = (
                    f"Requested {kind} logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
                )
                raise LateRefusal(text, name, count)
        for name, ids in (
            ("logit_bias", map(int, self.logit_bias or ())),
            ("stop_token_ids", self.stop_token_ids),
        ):
            if bad := [i for i in ids or () if not 0 <= i < (size or 2**63)]:
                text = f"token_id(s) {bad} in {name} contain out-of-vocab token ids. Vocabulary size: {size}"
                raise LateRefusal(text, name, bad)
        if self.allowed_token_ids == []:
            raise LateRefusal("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
        if bad := [i for i in self.allowed_token_ids or () if not 0 <= i < (size or 2**63)]:
            raise LateRefusal("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", bad)
        if not prompt:
            raise LateRefusal("The decoder prompt cannot be empty")
        if (worst := max(prompt)) >= (size or 2**63):
            raise LateRefusal(f"Token id {worst} is out of vocabulary")

    def _check_values(self, n: int, t: float, limit: int) -> None:
        if bad := [key for key in self.logit_bias or () if whole(key) is None]:
            text = "logit_bias contains key(s) that cannot be converted to integer token IDs"
            raise Refusal(f"{text}: {bad}", "logit_bias", bad)
        if n < 1:
            raise Refusal(f"n must be at least 1, got {n}.")
        if n > MAX_N:
            more = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            raise Refusal(f"n must be at most {MAX_N}, got {n}. {more}")
        penalty = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= (x := getattr(self, name) or 0.0) <= 2:
                raise Refusal(f"{name} must be in [-2, 2], got {x}.")
        if not math.isfinite(penalty) or penalty <= 0:
            rule = "greater than zero" if math.isfinite(penalty) else "a finite number"
            raise Refusal(f"repetition_penalty must be {rule}, got {penalty}.")
        if not math.isfinite(t) or not 0 <= t <= 2:
            rule = "a finite number" if not math.isfinite(t) else "non-negative" if t < 0 else "in [0, 2]"
            raise Refusal(f"temperature must be {rule}, got {t}.", "temperature", t)
        p = 1.0 if self.top_p is None else self.top_p
        if not 0 < p <= 1:
            raise Refusal(f"top_p must be in (0, 1], got {p}.", "top_p", p)
        if (k := self.top_k or 0) < -1:
            raise Refusal(f"top_k must be 0 (disable), or at least 1, got {k}.")
        if not 0 <= (m := self.min_p or 0.0) <= 1:
            raise Refusal(f"min_p must be in [0, 1], got {m}.")
        if limit < 1:
            raise Refusal(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        if self.min_tokens < 0:
            raise Refusal(f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if self.min_tokens > limit:
            rule = f"min_tokens must be less than or equal to max_tokens={limit}"
            raise Refusal(f"{rule}, got {self.min_tokens}.")
        if "" in self.stops:
            raise Refusal("stop cannot contain an empty string.")
        if "" in self.bad_words:
            raise Refusal(f"bad_words cannot contain an empty string. Got bad_words={self.bad_words}")


class Message(_Open):
    """One message of a conversation."""

    role: str
    content: str | list[Any] | None = None

    @model_validator(mode="after")
    def _speaks(self) -> Message:
        if self.role != "assistant" and "content" in self.model_fields_set and self.content is None:
            raise ValueError("only an assistant may say nothing")
        return self


class Named(_Open):
    """The name of a function."""

    name: str


class Function(Named):
    """A function that a model may call."""

    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(_Open):
    """A tool that a model may call."""

    type: Literal["function"] = "function"
    function: Function


class NamedTool(_Open):
    """The one tool that a model must call."""

    function: Named
    type: Literal["function"] = "function"


class ChatRequest(_Sampling):
    """The body of `/v1/chat/completions`."""

    _counts = ("prompt_logprobs", "top_logprobs")
    messages: list[Message]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = "none"
    parallel_tool_calls: bool | None = True
    echo: bool = False
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def chosen(self) -> int | None:
        """How many log probabilities each token of the answer gets; None: none."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def asked(self) -> int | None:
        """How many each token of the prompt gets; None: none."""
        return self.top_logprobs or 0 if self.prompt_logprobs is None and self.echo else self.prompt_logprobs

    @property
    def wanted(self) -> tuple[str, int | None]:
        """The field that bounds the answer, and its tokens."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def role(self) -> str:
        """Who speaks next."""
        return "assistant" if self.add_generation_prompt else self.messages[-1].role

    @classmethod
    def _own_rules(cls, data: dict[str, Any]) -> None:
        iter(data.get("messages", ()))  # vLLM goes through them before it knows what they are
        tools, choice = data.get("tools"), data.get("tool_choice")
        if data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        if tools == []:
            text = "`tools` must not be an empty array. Either provide at least one tool or omit the field"
            raise Refusal(f"{text} entirely.", "tools")
        if "tool_choice" not in data and tools:
            data["tool_choice"] = "auto"
        if choice not in (None, "none") and tools is None:
            raise Refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if choice not in (None, "none", "auto", "required") and not isinstance(choice, dict):
            raise Refusal(
                f"Invalid value for `tool_choice`: {choice}! Only named tools, "
                '"none", "auto" or "required" are supported.',
                "tool_choice",
            )
        if isinstance(choice, dict):
            function = choice.get("function")
            if not isinstance(function, dict):
                text = f"Invalid value for `function`: `{function}` in `tool_choice`! {USAGE}"
                raise Refusal(text, "tool_choice.function")
            if "name" not in function:
                text = f"Expected field `name` in `function` in `tool_choice`! {USAGE}"
                raise Refusal(text, "tool_choice.function.name")


class CompletionRequest(_Sampling):
    """The body of `/v1/completions`."""

    _counts = ("prompt_logprobs", "logprobs")
    model: str | None = None
    prompt: list[Natural] | list[list[Natural]] | str | list[str] | None = None
    max_tokens: int | None = 16
    n: int = 1
    suffix: str | None = None
    echo: bool | None = False
    logprobs: int | None = None

    @property
    def chosen(self) -> int | None:
        """How many log probabilities each token of the answer gets; None: none."""
        return self.logprobs

    @property
    def asked(self) -> int | None:
        """How many each token of the prompt gets; None: none."""
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs

    @property
    def wanted(self) -> tuple[str, int | None]:
        """The field that bounds the answer, and its tokens."""
        return "max_tokens", 16 if self.max_tokens is None else self.max_tokens

    @property
    def silent(self) -> bool:
        """Whether only the prompt is wanted; vLLM makes one token all the same."""
        return bool(self.echo) and self.max_tokens == 0

    @classmethod
    def _own_rules(cls, data: dict[str, Any]) -> None:
        given = data.get("prompt")
        count = len(given) if isinstance(given, list) else 0
        if count > MAX_PROMPTS and not all(isinstance(x, int) for x in given or ()):
            text = (
                f"prompt list length {count} exceeds the maximum allowed count of {MAX_PROMPTS}. To increase "
            )
            raise Refusal(
                f"{text}this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.", "prompt"
            )
        if data.get("prompt") in (None, ""):
            raise Refusal("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


class TokenizePrompt(_Open):
    """The body of `/tokenize` with a text."""

    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class TokenizeChat(_Open):
    """The body of `/tokenize` with a conversation."""

    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None


TOKENIZE = TypeAdapter[TokenizePrompt | TokenizeChat](TokenizePrompt | TokenizeChat)


class DetokenizeRequest(_Open):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]
