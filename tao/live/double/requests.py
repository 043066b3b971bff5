"""What the simulated server accepts: vLLM's fields and rules.

A `pydantic` schema finds wrong types, `Refusal` carries what a rule objects to. Fields that change nothing
here are checked all the same.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from tao.live.double import formats
from tao.live.double.errors import Refusal
from tao.live.double.messages import ANY_MESSAGE

USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
MAX_PROMPTS = 1024  # vLLM's default of VLLM_MAX_COMPLETION_PROMPTS
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


class _Sampling(_Open, defer_build=True):
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
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    logprob_token_ids: list[int] | None = None
    response_format: formats.AnyFormat | None = None
    structured_outputs: formats.StructuredOutputsParams | None = None
    repetition_detection: formats.RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None
    watermarking: bool | None = None
    routed_experts_prompt_start: Natural = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    priority: Int64 = 0
    request_id: str = ""
    session_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    cache_salt: str | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None

    @field_validator("thinking_token_budget", mode="before")
    @classmethod
    def _thinks(cls, given: Any) -> Any:
        if given is not None and (type(given) is not int or given < -1):
            text = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
            raise Refusal(text, "thinking_token_budget", given)
        return None if given == -1 else given

    @model_validator(mode="before")
    @classmethod
    def _rules(cls, data: Any) -> Any:
        """Rules that vLLM applies before it looks at types, in its order."""
        if not isinstance(data, dict):
            return data
        cls._own_rules(data)
        cls._check_counts(data)
        cls._later_rules(data)
        formats.check_format(data.get("response_format"))
        salt = data.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise Refusal("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
        if salt is not None and (len(salt) > 128 or set(salt) & set("@/\\\x00")):
            text = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', "
            raise Refusal(f"{text}'\\\\', or NUL.", "cache_salt")
        return data

    @classmethod
    def _check_counts(cls, data: dict[str, Any]) -> None:
        if data.get("logprob_token_ids"):
            name, asked = "logprob_token_ids", data.get("logprobs")
            if data.get("use_beam_search"):
                raise Refusal(f"`{name}` is not supported with beam search.", name)
            if asked is None or ("top_logprobs" in cls._counts and not asked):
                more = " to true" * ("top_logprobs" in cls._counts)
                raise Refusal(f"when using `{name}`, `logprobs` must be set{more}.", name)
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

    @staticmethod
    def _check_stream(data: dict[str, Any]) -> None:
        if data.get("stream_options") and not data.get("stream"):
            raise Refusal("Stream options can only be defined when `stream=True`.", "stream_options")

    @classmethod
    def _own_rules(cls, data: dict[str, Any]) -> None:
        """Rules of one endpoint."""

    @classmethod
    def _later_rules(cls, data: dict[str, Any]) -> None:
        """Those that come after the counts."""

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


class Named(_Open):
    """The name of a function."""

    name: str


class Function(Named):
    """A function that a model may call."""

    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(_Open):
    """A tool that a model may call."""

    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None


class NamedTool(_Open):
    """The one tool that a model must call."""

    function: Named
    type: Literal["function"] = "function"


class _Templated(_Open, defer_build=True):
    """What a chat template makes a prompt of."""

    model: str | None = None
    messages: list[ANY_MESSAGE]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    @model_validator(mode="before")
    @classmethod
    def _ends(cls, data: Any) -> Any:
        both = ("continue_final_message", "add_generation_prompt")
        if isinstance(data, dict) and all(data.get(name) for name in both):
            raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data


class ChatRequest(_Sampling, _Templated, defer_build=False):
    """The body of `/v1/chat/completions`."""

    _counts = ("prompt_logprobs", "top_logprobs")
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tool_choice: Literal["none"] | Literal["auto"] | Literal["required"] | NamedTool | None = "none"
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    echo: bool = False
    documents: list[dict[str, str]] | None = None
    return_prompt_text: bool | None = None

    @model_validator(mode="after")
    def _calls(self) -> ChatRequest:
        for message in self.messages:
            if isinstance(message, dict) and message.get("tool_calls") is not None:
                message["tool_calls"] = list(message["tool_calls"])
        return self

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
        return "assistant" if self.add_generation_prompt else str(self.messages[-1]["role"])

    @classmethod
    def _own_rules(cls, data: dict[str, Any]) -> None:
        iter(data.get("messages", ()))  # vLLM goes through them before it knows what they are
        tools, choice = data.get("tools"), data.get("tool_choice")
        if tools == []:
            text = "`tools` must not be an empty array. Either provide at least one tool or omit the field"
            raise Refusal(f"{text} entirely.", "tools")
        if "tool_choice" not in data and tools:
            data["tool_choice"] = "auto"
        if choice not in (None, "none"):
            cls._check_choice(choice, tools)
        formats.check_outputs(data.get("structured_outputs"), None, data.get("tool_choice", "none"))

    @classmethod
    def _check_choice(cls, choice: Any, tools: Any) -> None:
        if tools is None:
            raise Refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if choice not in ("auto", "required") and not isinstance(choice, dict):
            raise Refusal(
                f"Invalid value for `tool_choice`: {choice}! Only named tools, "
                '"none", "auto" or "required" are supported.',
                "tool_choice",
            )
        if isinstance(choice, dict):
            function, where = choice.get("function"), "tool_choice.function"
            if not isinstance(function, dict):
                raise Refusal(f"Invalid value for `function`: `{function}` in `tool_choice`! {USAGE}", where)
            where += ".name"
            if "name" not in function:
                raise Refusal(f"Expected field `name` in `function` in `tool_choice`! {USAGE}", where)
            name = function["name"]
            if not isinstance(name, str) or not name:
                text = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {USAGE}"
                raise Refusal(text, where)
            if not any(tool["function"]["name"] == name for tool in tools):
                text = "The tool specified in `tool_choice` does not match any of the specified `tools`"
                raise Refusal(text, "tool_choice")

    @classmethod
    def _later_rules(cls, data: dict[str, Any]) -> None:
        cls._check_stream(data)
        given = data.get("messages")
        for message in given if isinstance(given, list) else ():
            if isinstance(message, dict):
                if message.get("tool_calls") is not None:
                    message["tool_calls"] = list(message["tool_calls"])
                thought = message.pop("reasoning_content", None)  # its name of old
                if thought is not None and message.get("reasoning") is None:
                    message["reasoning"] = thought


class CompletionRequest(_Sampling, defer_build=False):
    """The body of `/v1/completions`."""

    _counts = ("prompt_logprobs", "logprobs")
    model: str | None = None
    prompt: list[Natural] | list[list[Natural]] | str | list[str] | None = None
    max_tokens: int | None = 16
    n: int = 1
    suffix: str | None = None
    echo: bool | None = False
    logprobs: int | None = None
    prompt_embeds: bytes | list[bytes] | None = None
    add_special_tokens: bool = True

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
            text = f"prompt list length {count} exceeds the maximum allowed count of {MAX_PROMPTS}. To"
            text += " increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
            raise Refusal(text, "prompt")
        if data.get("prompt") in (None, "") and data.get("prompt_embeds") in (None, []):
            raise Refusal("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        cls._check_stream(data)

    @classmethod
    def _later_rules(cls, data: dict[str, Any]) -> None:
        formats.check_outputs(data.get("structured_outputs"), "structured_outputs")


class TokenizePrompt(_Open):
    """The body of `/tokenize` with a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChat(_Templated, defer_build=False):
    """The body of `/tokenize` with a conversation."""

    return_token_strs: bool | None = False


TOKENIZE = TypeAdapter[TokenizePrompt | TokenizeChat](TokenizePrompt | TokenizeChat)


class DetokenizeRequest(_Open):
    """The body of `/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]
