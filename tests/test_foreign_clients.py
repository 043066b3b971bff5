"""Clients that nobody here wrote, against the simulated servers: openai, aiperf and mini-swe-agent.

The last two get an environment of their own in the folder that TAO_CLIENTS names, made where it is missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import venv
from functools import partial
from pathlib import Path

import httpx
import pytest

from tao.live.double.serve import Deployment, Plan

openai = pytest.importorskip("openai")
HI = [{"role": "user", "content": "Which files are there?"}]
BASH = {"name": "bash", "description": "Runs it.", "parameters": {"type": "object", "properties": {}}}
ANSWERS = [
    {"content": "I look.", "tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
    {"content": "Done."},
]


def script(folder, answers):
    """A file of scripted answers."""
    path = folder / "replies.jsonl"
    path.write_text("\n".join(map(json.dumps, answers)))
    return str(path)


def page(url):
    """The counters of a server, by name and labels, those of engine and model left out."""
    text = httpx.get(url + "/metrics").text
    found = re.findall(r"^(vllm:\w+?)(?:_total)?\{(.*?)\} (\S+)$", text, re.MULTILINE)
    plain = partial(re.sub, r'(engine|model_name)="[^"]*",?', "")
    return {(name, plain(labels).strip(",")): float(value) for name, labels, value in found}


# openai, asynchronous and asked for every failure; tests/test_double.py has the plain way


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    hang = json.dumps({"kind": "hang", "node": 1})
    refuse = json.dumps({"kind": "overload", "node": 2})
    replies = script(tmp_path_factory.mktemp("replies"), ANSWERS)
    plan = Plan(
        nodes=3, speedup=50, replies=replies, kv_tokens=16_384, faults=(hang, refuse), keep_alive_s=0.1
    )
    with Deployment(plan) as running:
        yield running.urls


def connected(kind, url, **options):
    """A client of that kind that tries once."""
    return kind(base_url=url + "/v1", api_key="none", max_retries=0, **options)


def test_openai_streams_a_tool_call_asynchronously_and_leaves_early(nodes):
    async def run():
        async with connected(openai.AsyncOpenAI, nodes[0]) as api:
            model = (await api.models.list()).data[0].id
            asked = {"model": model, "messages": HI, "tools": [{"type": "function", "function": BASH}]}
            arguments = ""
            async with api.chat.completions.stream(**asked) as stream:
                async for event in stream:
                    if event.type == "tool_calls.function.arguments.delta":
                        arguments += event.arguments_delta
                whole = await stream.get_final_completion()
            assert json.loads(arguments) == {"command": "ls"}
            assert whole.choices[0].message.tool_calls[0].function.arguments == arguments
            assert whole.choices[0].finish_reason == "tool_calls"
            many = await asyncio.gather(*(api.chat.completions.create(**asked) for _ in range(8)))
            assert {r.choices[0].message.content for r in many} == {"I look."}
            text = await api.completions.create(model=model, prompt="import", max_tokens=5, stream=True)
            assert "".join([part.choices[0].text async for part in text])
            gone = await api.completions.create(
                model=model, prompt="import", max_tokens=9000, stream=True, extra_body={"ignore_eos": True}
            )
            await anext(aiter(gone))
            await gone.close()

    asyncio.run(run())
    until = page(nodes[0])
    for _ in range(100):
        if until["vllm:num_requests_running", ""] == 0:
            break
        until = page(nodes[0])
    assert until["vllm:num_requests_running", ""] == 0
    assert until["vllm:request_success", 'finished_reason="stop"'] == 9


def test_openai_sees_every_failure_as_its_own_exception_and_asks_once(nodes):
    with connected(openai.OpenAI, nodes[2]) as api:
        with pytest.raises(openai.InternalServerError, match="currently busy") as caught:
            api.chat.completions.create(model="qwen3-32b-2xh100", messages=HI)
        assert caught.value.status_code == 503
    assert page(nodes[2])["vllm:admission_rejections", 'reason="max_num_queued_reqs"'] == 1
    with connected(openai.OpenAI, nodes[1], timeout=0.3) as api, pytest.raises(openai.APITimeoutError):
        api.chat.completions.create(model="qwen3-32b-2xh100", messages=HI)  # it hangs
    with connected(openai.OpenAI, "http://127.0.0.1:1") as api, pytest.raises(openai.APIConnectionError):
        api.models.list()
    with connected(openai.OpenAI, nodes[0]) as api:
        for change in ({"temperature": -1}, {"max_tokens": 0}, {"messages": []}, {"messages": [{"role": 7}]}):
            with pytest.raises(openai.BadRequestError) as bad:
                api.chat.completions.create(**{"model": "qwen3-32b-2xh100", "messages": HI} | change)
            assert bad.value.body["code"] == 400


# aiperf and mini-swe-agent, each in an environment of its own


def environment(package):
    """The environment's folder of programs; skips where TAO_CLIENTS is not set."""
    if not (folder := os.environ.get("TAO_CLIENTS")):
        pytest.skip("TAO_CLIENTS names no folder for their environments")
    home = Path(folder, package)
    if not (home / "bin" / "pip").exists():
        venv.create(home, with_pip=True)
    if not list(home.glob(f"lib/*/site-packages/{package.replace('-', '_')}-*")):
        subprocess.run([home / "bin" / "pip", "install", "-q", package], check=True, timeout=900)
    return home / "bin"


def ran(command, home, **more):
    """Run it with little of our environment; it must end well."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"], **more}
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=home, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


COUNTED = (
    "request_count",
    "request_error_rate",
    "total_usage_prompt_tokens",
    "total_usage_completion_tokens",
)
COUNTED += ("total_usage_prompt_cache_read_tokens",)


@pytest.mark.clients
def test_aiperf_completes_and_counts_as_the_server_does(tmp_path):
    programs = environment("aiperf")
    make = """
import importlib, pathlib, sys, types
sys.modules["pytest"] = types.SimpleNamespace(importorskip=lambda name, **_: importlib.import_module(name))
from tiny_model import tiny_tokenizer
tiny_tokenizer(pathlib.Path(sys.argv[1]))
"""
    ran([programs / "python", "-c", make, tmp_path], tmp_path, PYTHONPATH=str(Path(__file__).parent))
    with Deployment(Plan(nodes=1, speedup=20, kv_tokens=200_000)) as running:
        command = f"""--model qwen3-32b-2xh100 --url {running.urls[0]} --endpoint-type chat --streaming
            --tokenizer {tmp_path} --concurrency 8 --request-count 100 --synthetic-input-tokens-mean 400
            --output-tokens-mean 30 --random-seed 1 --ui none --artifact-dir {tmp_path / "out"}
            --shared-system-prompt-length 100 --use-server-token-count --extra-inputs ignore_eos:true
            --no-gpu-telemetry"""
        ran([programs / "aiperf", "profile", *command.split()], tmp_path)
        ours = page(running.urls[0])
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    told = {name: report[name]["avg"] for name in COUNTED}
    assert told["request_error_rate"] == 0
    assert told["request_count"] == ours["vllm:request_success", 'finished_reason="length"'] == 100
    assert told["total_usage_completion_tokens"] == ours["vllm:generation_tokens", ""] == 3000
    assert told["total_usage_prompt_tokens"] == ours["vllm:prompt_tokens", ""]
    assert told["total_usage_prompt_cache_read_tokens"] == ours["vllm:prefix_cache_hits", ""] > 0


FILE = "printf 'def double(x):\\n    return 2 * x\\n' > solution.py"
LOOK = "python3 -c 'import solution; print(solution.double(21))'"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.mark.clients
@pytest.mark.parametrize("configuration", ["mini.yaml", "mini_textbased.yaml"])
def test_mini_swe_agent_solves_a_scripted_task(configuration, tmp_path):
    programs = environment("mini-swe-agent")
    commands = (FILE, LOOK, SUBMIT)
    by_text = configuration == "mini_textbased.yaml"
    answers = [
        {"content": f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```"}
        if by_text
        else {"content": "Next.", "tool_calls": [{"name": "bash", "arguments": {"command": command}}]}
        for command in commands
    ]
    with Deployment(
        Plan(nodes=1, speedup=20, replies=script(tmp_path, answers), kv_tokens=100_000)
    ) as running:
        options = ["-m", "openai/qwen3-32b-2xh100", "-t", "Write double(x).", "-y", "--exit-immediately"]
        options += ["-o", tmp_path / "trajectory.json", "-c", configuration]
        options += ["-c", f"model.model_kwargs.api_base={running.urls[0]}/v1"]
        options += ["--model-class", "litellm_textbased"] if by_text else []
        about = {"OPENAI_API_KEY": "none", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true"}
        ran([programs / "mini", *options], tmp_path, **about, LITELLM_LOCAL_MODEL_COST_MAP="True")
        ours = page(running.urls[0])
    trajectory = json.loads((tmp_path / "trajectory.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert trajectory["info"]["model_stats"]["api_calls"] == len(commands)
    assert (tmp_path / "solution.py").read_text() == "def double(x):\n    return 2 * x\n"
    assert any("42" in str(message["content"]) for message in trajectory["messages"])
    used = [
        m["extra"]["response"]["usage"] for m in trajectory["messages"] if "response" in m.get("extra", {})
    ]
    assert sum(u["prompt_tokens"] for u in used) == ours["vllm:prompt_tokens", ""]
    assert sum(u["completion_tokens"] for u in used) == ours["vllm:generation_tokens", ""]
    hits = [u["prompt_tokens_details"]["cached_tokens"] for u in used]
    assert sum(hits) == ours["vllm:prefix_cache_hits", ""]
    assert hits[0] == 0 < hits[1] < hits[2]  # each turn finds the one before
