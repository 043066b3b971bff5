"""The double beside two real vLLM servers on the CPU: the same requests, and what differs in the answers.

`TAO_REAL_VLLM` names a virtual environment with vLLM 0.32 for the CPU. The two servers differ in their options.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from parity_cases import RAW, cases
from test_double import QWEN, Server, Settings, client, httpx, virtual
from tiny_model import tiny_model

from tao.live.double.text import FolderTokenizer

pytestmark = pytest.mark.real_vllm
FLAGS = """--served-model-name tiny --host 127.0.0.1 --load-format dummy --enforce-eager --block-size 32
    --max-model-len 8192 --enable-prefix-caching --enable-prompt-tokens-details --enable-request-id-headers
    --enable-server-load-tracking --kv-cache-metrics"""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
SERVERS = {  # more options of the real server, those of the double, its profile, and the API key
    "roomy": ("--num-gpu-blocks-override 1024 --enable-per-request-metrics", {"kv_tokens": 1024 * 32}, {}, ""),
    "tight": (
        "--num-gpu-blocks-override 513 --scheduling-policy priority --max-num-queued-reqs 8 --api-key sesame "
        "--max-num-seqs 4 --max-num-batched-tokens 2048",
        {"kv_tokens": 513 * 32, "scheduling_policy": "priority", "max_num_queued_reqs": 8}
        | {"per_request_metrics": False},
        {"max_seqs": 4, "max_batched_tokens": 2048},
        "sesame",
    ),
}
MASKED = ("id", "created", "system_fingerprint", "root", "tokens_per_second", "x-request-id")
# Where the double is known to differ: a name, whether an exchange is of that kind, and why.
DIFFERENCES = [
    (
        "which message type",
        lambda real: str(real[3].get("error", {}).get("param", "")).startswith("body.messages.0"),
        "a malformed message fails to be each of vLLM's message types, of which the double has one; "
        "status and type are compared",
    ),
]  # fmt: skip


def shape(logprobs, forced):
    """What of log probabilities does not depend on the model."""
    if logprobs is None:
        return None
    if isinstance(logprobs, list):  # of a prompt
        return [x and sorted(next(iter(x.values()))) for x in logprobs]
    if "content" in logprobs:
        tops = [len(x["top_logprobs"]) for x in logprobs["content"]]
        said = [x["token"] if forced else "" for x in logprobs["content"]]
        return tops, said, [sorted(x) for x in logprobs["content"]]
    known = [logprobs["tokens"], logprobs["text_offset"]] if forced else len(logprobs["tokens"])
    tops = [x is None for x in logprobs["top_logprobs"]]
    return sorted(logprobs), known, tops, [x is None for x in logprobs["token_logprobs"]]


def comparable(x, forced, key=""):
    """An answer without what differs from run to run, and, unless the text was forced, without its text."""
    if key in ("logprobs", "prompt_logprobs"):
        return shape(x, forced)
    if isinstance(x, dict):
        return {k: comparable(v, forced, k) for k, v in x.items()}
    if isinstance(x, list):
        return len(x) if key == "token_ids" and not forced else [comparable(v, forced, key) for v in x]
    hidden = key in MASKED or key.endswith("_ms") or (key in ("content", "text") and not forced)
    return "..." if x is not None and hidden else x


def told(status, headers, text, forced):
    """Status, the headers that matter, and the comparable body; of a stream, its events."""
    kind = headers.get("content-type", "")
    if "event-stream" in kind:
        assert re.fullmatch(r"((data: .*|: keep-alive)\n\n)+", text)
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        chunks = [comparable(json.loads(e), forced) if e != "[DONE]" else e for e in events]
        # How the choices of one stream alternate depends on time.
        last = lambda c: c["choices"][0]["index"] if isinstance(c, dict) and c.get("choices") else 99  # noqa: E731
        body = sorted(chunks, key=last)
    else:
        body = comparable(json.loads(text), forced) if "json" in kind else text
    return status, kind, headers.get("allow"), body


def ask(http, key, method, path, body, headers):
    """A request, the same for both."""
    content = None if body is None else body if isinstance(body, str | bytes) else json.dumps(body)
    kind = {"content-type": "text/plain" if body == RAW[6] else "application/json"}
    bearer = {"authorization": f"Bearer {key}"} if key else {}
    return http.request(method, path, content=content, headers=kind | bearer | headers)


def forced(body):
    """Whether a request leaves no choice of what is said."""
    only = body.get("allowed_token_ids") if isinstance(body, dict) else None
    return isinstance(only, list) and len(only) == 1


def differing(asked, ours, theirs):
    """The exchanges that differ, without those that may; and how many of which those are."""
    found, excused = [], Counter()
    for case, mine, real in zip(asked, ours, theirs, strict=True):
        a, b = told(*mine, forced(case[3])), told(*real, forced(case[3]))
        if a == b:
            continue
        for name, fits, _ in DIFFERENCES:
            if isinstance(b[3], dict) and fits(b) and a[:2] == b[:2] and a[3].keys() == b[3].keys():
                excused[name] += 1
                break
        else:
            found.append((case, a, b))
    return found, excused


def counted(page):
    """The counters and sums of a metrics page that do not depend on time, by name and labels."""
    value = {}
    for line in page.splitlines():
        name, _, number = line.rpartition(" ")
        if not name.startswith("vllm:") or re.search(r"_info\{|_created|_seconds|estimated|engine_sleep|_block_", name):
            continue
        value[name] = float(number)
    return value


def names(page):
    """Names and labels of a metrics page."""
    return {line.rpartition(" ")[0] for line in page.splitlines() if re.match(r"vllm:(?!.*_info\{)", line)}


def double(model, name):
    """What the double answers to all cases, and its metrics."""
    _, options, profile, key = SERVERS[name]

    async def run():
        tokenizer = FolderTokenizer(str(model))
        settings = Settings(**{"model": "tiny", "max_model_len": 8192} | options)
        about = dataclasses.replace(QWEN, block_tokens=32, **profile)
        http = client(Server(about, settings, tokenizer, api_key=key or None))
        answers = []
        for _, *case in cases(letters(tokenizer)):
            reply = await ask(http, key, *case)
            answers.append((reply.status_code, dict(reply.headers), reply.text))
        return answers, (await http.get("/metrics")).text

    return virtual(run())


def letters(tokenizer):
    """Tokens that are one letter."""
    return {letter: tokenizer.encode(letter)[0] for letter in "abcdxyz"}
