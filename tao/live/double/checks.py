"""What vLLM checks of a request once its prompts are known."""

from __future__ import annotations

import math
from typing import Any

from tao.live.double import formats
from tao.live.double import requests as req
from tao.live.double.errors import LateRefusal, Refusal

MAX_N = 16_384  # vLLM's default of VLLM_MAX_N_SEQUENCES
MAX_LOGPROBS, MAX_LOGPROB_IDS = 20, 128  # of vLLM's --max-logprobs, and a constant of its own


def check(request: Any, limit: int) -> None:
    """What vLLM checks of the sampling before an answer begins, for `limit` tokens to come."""
    formats.wanted(request.structured_outputs, request.response_format)
    n = 1 if request.n is None else request.n
    t = 1.0 if request.temperature is None else request.temperature
    _check_values(request, n, t, limit)
    if n > 1 and not t:  # above 0, vLLM takes at least 0.01, which is no longer greedy
        raise Refusal(f"n must be 1 when using greedy sampling, got {n}.")


def check_engine(request: Any, prompt: list[int], size: int, rank: int | None) -> None:
    """What the engine checks, of `size` tokens in all; raises `LateRefusal`."""
    for kind, name, wanted in (
        ("sample", "logprobs", None if request.logprob_token_ids else request.chosen),
        ("prompt", "prompt_logprobs", request.asked),
    ):
        count = size or 2**31 if wanted == -1 else wanted or 0
        if count > MAX_LOGPROBS:
            text = f"Requested {kind} logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
            raise LateRefusal(text, name, count)
    if (count := len(request.logprob_token_ids or ())) > MAX_LOGPROB_IDS:
        text = f"Requested logprob_token_ids of length {count}, which is greater than max allowed:"
        raise LateRefusal(f"{text} {MAX_LOGPROB_IDS}", "logprob_token_ids", count)
    for name, ids in (
        ("logprob_token_ids", request.logprob_token_ids),
        ("logit_bias", map(int, request.logit_bias or ())),
        ("stop_token_ids", request.stop_token_ids),
    ):
        if bad := [i for i in ids or () if not 0 <= i < (size or 2**63)]:
            text = f"token_id(s) {bad} in {name} contain out-of-vocab token ids. Vocabulary size: {size}"
            raise LateRefusal(text, name, bad)
    if request.allowed_token_ids == []:
        raise LateRefusal("allowed_token_ids is not None and empty!", "allowed_token_ids", [])
    if bad := [i for i in request.allowed_token_ids or () if not 0 <= i < (size or 2**63)]:
        raise LateRefusal("allowed_token_ids contains out-of-vocab token id!", "allowed_token_ids", bad)
    if form := formats.wanted(request.structured_outputs, request.response_format):
        form.check_engine()
    if request.thinking_token_budget is not None:
        text = "thinking_token_budget is set but reasoning_config is not configured. Please set "
        raise LateRefusal(f"{text}--reasoning-parser and/or --reasoning-config to use thinking_token_budget.")
    if rank not in (None, 0):
        raise LateRefusal(f"data_parallel_rank {rank} is out of range [0, 1).")
    if not prompt:
        raise LateRefusal("The decoder prompt cannot be empty")
    if (worst := max(prompt)) >= (size or 2**63):
        raise LateRefusal(f"Token id {worst} is out of vocabulary")
    if (start := request.routed_experts_prompt_start) > len(prompt):
        text = (
            f"routed_experts_prompt_start must be between 0 and the prompt length ({len(prompt)}), inclusive."
        )
        raise LateRefusal(text, "routed_experts_prompt_start", start)


def _check_values(request: Any, n: int, t: float, limit: int) -> None:
    if bad := [key for key in request.logit_bias or () if req.whole(key) is None]:
        text = "logit_bias contains key(s) that cannot be converted to integer token IDs"
        raise Refusal(f"{text}: {bad}", "logit_bias", bad)
    if n < 1:
        raise Refusal(f"n must be at least 1, got {n}.")
    if n > MAX_N:
        more = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        raise Refusal(f"n must be at most {MAX_N}, got {n}. {more}")
    penalty = 1.0 if request.repetition_penalty is None else request.repetition_penalty
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= (x := getattr(request, name) or 0.0) <= 2:
            raise Refusal(f"{name} must be in [-2, 2], got {x}.")
    if not math.isfinite(penalty) or penalty <= 0:
        rule = "greater than zero" if math.isfinite(penalty) else "a finite number"
        raise Refusal(f"repetition_penalty must be {rule}, got {penalty}.")
    if not math.isfinite(t) or not 0 <= t <= 2:
        rule = "a finite number" if not math.isfinite(t) else "non-negative" if t < 0 else "in [0, 2]"
        raise Refusal(f"temperature must be {rule}, got {t}.", "temperature", t)
    p = 1.0 if request.top_p is None else request.top_p
    if not 0 < p <= 1:
        raise Refusal(f"top_p must be in (0, 1], got {p}.", "top_p", p)
    if (k := request.top_k or 0) < -1:
        raise Refusal(f"top_k must be 0 (disable), or at least 1, got {k}.")
    if not 0 <= (m := request.min_p or 0.0) <= 1:
        raise Refusal(f"min_p must be in [0, 1], got {m}.")
    if limit < 1:
        raise Refusal(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if request.min_tokens < 0:
        raise Refusal(f"min_tokens must be greater than or equal to 0, got {request.min_tokens}.")
    if request.min_tokens > limit:
        rule = f"min_tokens must be less than or equal to max_tokens={limit}"
        raise Refusal(f"{rule}, got {request.min_tokens}.")
    if "" in request.stops:
        raise Refusal("stop cannot contain an empty string.")
    if "" in request.bad_words:
        raise Refusal(f"bad_words cannot contain an empty string. Got bad_words={request.bad_words}")
