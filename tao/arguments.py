"""What the command line understands: commands, options, and the help that documents every key."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import fields
from typing import Any

import tao
from tao import bench, experiments, library, planners
from tao.comparisons import DEFAULT_POLICIES
from tao.families import FAMILIES
from tao.metrics import METRICS
from tao.model import Params
from tao.policies import POLICIES
from tao.profiles import DEFAULT_PROFILE, PROFILES
from tao.traces import READERS
from tao.traces.export import FORMATS
from tao.workloads import WORKLOADS

WORKERS = 64  # TAO paper: among those of its runs
TASKS = 300  # TAO paper: tasks per run of SWE-Lite

WITH_PRESET = ("preset", "tasks", "seeds", "json")  # what may be given together with a preset

PLAN_KEYS = """
keys of --json, a list with one object per planner:
  planner            the planner asked for
  problem            "true" token sizes, or sizes "quantized" up to quanta
  exact              no plan of that problem is worth more
  reason             why another planner had to place (dp beyond its state budget: bfd); "" if not
  credit, ready, tokens
                     the plan's value: decayed cache tokens kept, sessions needed within the
                     horizon, context tokens; compared in this order
  states             states that the search opened besides one per session
  bound              {credit, ready, tokens}: no plan on true sizes is worth more
  gap                {credit, ready, tokens}: bound minus value; 0 where proven, null after the
                     first part that is not
  kernel_ms          median milliseconds of the planner alone, warm, without reading the snapshot
  admitted           [{session, node}]
  deferred           [{session, reason}]
with --explain also:
  certificate        {prices, nodes, words, credit}: prices of sessions and what each node keeps at
                     most after them, together the credit that no plan exceeds; and why, in words
  more_room, who_should_leave
                     [{node, tokens, leaver, change, exact}]: how the value of the best plan changes
                     with 1,000 more tokens on a node, or if a resident leaves, the best one first"""

BENCH_KEYS = """
keys of --json for 'planner', a list with one object per planner or solver and size:
  family, n, nodes, room_tokens
                     the snapshots (tao.workloads.snapshots); "crowded": nearly full nodes
  planner            a planner or solver; "yardstick": one pass of max and add over as many cells
  snapshots          how many were planned
  kernel_mean_ms, kernel_median_ms, kernel_p95_ms, kernel_worst_ms
                     milliseconds of the planner alone, or of a solver's search
  plan_mean_ms, plan_median_ms, plan_p95_ms, plan_worst_ms
                     the same of plan(), or of a solver's model and search
  proven, proven_credit, proven_ready
                     share of plans proven in all three parts, in the first, in the first two
  gap_median, gap_p95
                     share of the bound's credit that the plan does not reach
  tokens_gap_p95     the same of tokens, where credit and ready are proven; null if nowhere
  states_median, states_worst
                     states of the search
  fallbacks          share of plans that another planner placed
  note               why a solver was not asked; such a row has nothing else but planner
keys of --json for 'import':
  mb, turns          size of the log, and requests in it
  parse_s, load_s, times_parse, us_per_turn
                     CPU seconds of json.loads on its lines and of tao.traces.load, and their ratio
  base_mb, peak_mb, allowed_mb
                     memory of a process before and while it loads, and 150 MB and 200 bytes a turn more
keys of --json for 'notebooks', where a row has those that concern it:
  what, cores        what is done, and on which cores of this machine the server does it
  median_ms, worst_ms
                     from the key to the last change; of a notebook, all cells but the one that warms up
  progress_shown, jumps
                     presses during which a bar was seen, and the panel's height changed
  warm_up_ms, peak_mb
                     that one cell, and the kernel's memory
keys of --json for 'live', where a row has those that concern it:
  lag_p50_ms, lag_p95_ms, lag_max_ms, worst_p95_ms, bare_lag_p95_ms
                     from a server's socket to the parsed chunk; the worst run; over bare sockets
  step_ms            between two tokens of a stream
  client_cores, bare_client_cores, server_cores, other_cores
                     CPU seconds per second
  running, queued, ended, until_open_s, until_ended_s
                     streams open at once, and seconds from the first request
  start_s, worst_start_s, bare_start_s
                     to the first /health; of the imports of other packages alone
  turns, failed, client_mb, client_mb_per_min, server_mb, server_mb_per_min
                     memory at the end, and its slope over the last half"""


def parser() -> argparse.ArgumentParser:
    """The parser of every command; `command` of what it returns names the one to run."""
    top = argparse.ArgumentParser(
        prog="tao", description=tao.__doc__.splitlines()[0] if tao.__doc__ else None
    )
    top.add_argument("--version", action="version", version=f"tao {tao.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_runs(commands)
    _add_bench(commands)
    _add_import(commands)
    _add_export(commands)
    _add_serve(commands)
    _add_doctor(commands)
    _add_calibrate(commands)
    _add_observe(commands)
    _add(
        commands,
        "lab",
        "open the notebooks in JupyterLab (no internet needed); further options go to JupyterLab",
    )
    return top


def _planner_help() -> str:
    first_lines = (
        (name, (solve.__doc__ or "").partition("\n")[0]) for name, solve in planners.PLANNERS.items()
    )
    return "planners:\n" + "".join(f"  {name:12} {line}\n" for name, line in first_lines)


def _add_plan(commands: Any) -> None:
    sub = _add(
        commands,
        "plan",
        "decide one snapshot with several planners, with reasons",
        _planner_help() + PLAN_KEYS,
    )
    sub.add_argument(
        "snapshot",
        nargs="?",
        metavar="NAME_OR_FILE",
        help=f"a JSON file, {', '.join(library.PRESETS)}, or replay_01, replay_02, ...",
    )
    sub.add_argument(
        "--planner", nargs="+", action="extend", metavar="NAME", help=f"of {', '.join(planners.PLANNERS)}"
    )
    sub.add_argument(
        "--explain",
        action="store_true",
        help="also why no plan can do better, and what more room would be worth",
    )
    _add_json(sub)
    _add_set(sub)


def _add_runs(commands: Any) -> None:
    keys = "\n".join(f"  {name:26} {text}" for name, text in METRICS.items())
    run = _add(commands, "simulate", "run one policy", f"keys of --json, beside settings:\n{keys}")
    run.add_argument("--policy", default="tao", help=f"of {', '.join(POLICIES)} (default: tao)")
    run.add_argument("--seed", type=int, default=0, help="draws the sessions (default: 0)")
    form = (
        "keys of --json: {settings, policies: [{policy, <metric>: {mean, lo, hi}}]}; lo and hi are a 95 %\n"
        "confidence interval of the mean over seeds, null with one seed; the metrics:\n"
    )
    preset = (
        "\n\nkeys of --json with --preset: {label, seeds, notes, presets: [{name, experiment, what, ours,\n"
        f"cannot, settings}}], rows: [...]}}; of a row, null where there is none:\n"
        f"{textwrap.fill(', '.join(experiments.COLUMNS), 88)}"
    )
    race = _add(commands, "compare", "race policies over the same sessions", form + keys + preset)
    race.add_argument(
        "--preset",
        metavar="NAME",
        help="an experiment of the TAO paper (E1, E2, E3, E5, E6, E7, E8) or one setting of it, beside what "
        "the paper reports; 'losses': settings where TAO loses; 'list' lists all settings",
    )
    race.add_argument(
        "--policies",
        default=",".join(DEFAULT_POLICIES),
        metavar="A,B",
        help=f"of {', '.join(POLICIES)} (default: {','.join(DEFAULT_POLICIES)})",
    )
    race.add_argument("--seeds", type=int, default=8, metavar="S", help="seeds 0 to S-1 (default: 8)")
    for sub in (run, race):
        _add_run(sub)


def _add_run(sub: argparse.ArgumentParser) -> None:
    names = ", ".join(WORKLOADS)
    sub.add_argument(
        "--workload",
        default="swe-lite",
        metavar="NAME_OR_FILE",
        help=f"a log, a folder of logs, or {names}",
    )
    sub.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME_OR_FILE",
        help=f"a JSON file, or {', '.join(PROFILES)} (default: {DEFAULT_PROFILE})",
    )
    sub.add_argument("--nodes", type=int, default=2, metavar="N", help="nodes (default: 2)")
    sub.add_argument(
        "--workers",
        type=int,
        metavar="W",
        help=f"sessions at a time (default: {WORKERS}; compare on logs: from few to many)",
    )
    sub.add_argument(
        "--tasks",
        type=int,
        metavar="T",
        help=f"sessions in all (default: {TASKS}, or all of a recorded file)",
    )
    sub.add_argument(
        "--capacity-tokens", type=int, metavar="C", help="KV tokens per node (default: the profile's)"
    )
    sub.add_argument(
        "--strict", action="store_true", help="sessions larger than a node are an error, not left out"
    )
    _add_json(sub)
    _add_set(sub)


def _add_bench(commands: Any) -> None:
    sub = _add(
        commands,
        "bench",
        "time planners, simulator, imports, notebooks or live runs on this machine",
        BENCH_KEYS,
    )
    sub.add_argument("what", choices=[*bench.BENCHES, "live"], help="what to time")
    sub.add_argument(
        "--family",
        metavar="F",
        help=f"snapshots to plan, in all their sizes: {', '.join(FAMILIES)} (default: a short choice of all)",
    )
    sub.add_argument(
        "--count",
        type=int,
        metavar="K",
        help="snapshots per row, however long it takes (default: as many as go in 4 s; without F, 1)",
    )
    sub.add_argument("--mb", type=int, metavar="MB", help="size of the log to import (default: 64)")
    sub.add_argument("--minutes", type=float, metavar="M", help="of a live load, for its memory alone")
    sub.add_argument(
        "--limit-s", type=float, metavar="S", help="time for a solver per snapshot (default: 5; without F, 1)"
    )
    _add_json(sub)


def _add_import(commands: Any) -> None:
    sub = _add(
        commands,
        "import",
        "read the logs of agents, report what is in them, and write one file for --workload",
        f"formats, told apart by content: {', '.join(READERS)}; plain, .gz or .zst\n"
        "of a log only counts, durations and classes are kept; sessions are numbered\n\n"
        "keys of --json: files, rows, sessions, turns, calls, clock_s (resolution of time stamps),\n"
        "unknown_share (of tool calls, those of unknown length), signs (what makes it doubtful), loses;\n"
        "formats, unread, skipped, repaired: [[what, times, [places]]]",
    )
    _add_logs(sub)
    sub.add_argument("-o", "--output", metavar="FILE", help="write it there (default: report only)")
    sub.add_argument("--statistics", action="store_true", help="also turns, contexts, tools, structure")
    sub.add_argument("--twin", metavar="FILE", help="fit parameters, to publish instead of the logs")
    _add_format(sub)
    _add_json(sub)


def _add_export(commands: Any) -> None:
    sub = _add(commands, "export", "write logs in another format, and say what it loses")
    _add_logs(sub)
    sub.add_argument("-o", "--output", metavar="FILE", required=True)
    _add_format(sub)


def _add_logs(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("paths", nargs="+", metavar="PATH", help="logs, or folders of logs")
    sub.add_argument("--keep-names", action="store_true", help="of unknown tools, which else are tool-1, ...")
    sub.add_argument("--classes", metavar="FILE", help='more command classes: {"bazel test": "test"}')
    sub.add_argument("--max-line-mb", type=int, metavar="MB", help="skip longer lines (default: 16)")
    sub.add_argument("--max-mb", type=int, metavar="MB", help="of a file, once decompressed")


def _add_format(sub: argparse.ArgumentParser) -> None:
    forms = ", ".join(FORMATS)
    sub.add_argument("--format", default="native", metavar="F", help=f"of {forms} (default: native)")


def _add_serve(commands: Any) -> None:
    sub = _add(
        commands,
        "serve",
        "simulated vLLM servers on this machine, one port per node, until Ctrl-C",
        'a fault is JSON, such as {"kind": "slow", "node": 1, "at_s": 5, "for_s": 10, "factor": 10};\n'
        "kinds: crash, sigterm, hang, slow, restart, truncate, overload",
    )
    sub.add_argument("--nodes", type=int, default=4, metavar="N", help="servers (default: 4)")
    sub.add_argument(
        *("--profile", "-p"), default=DEFAULT_PROFILE, metavar="NAME_OR_FILE", help="how long steps take"
    )
    sub.add_argument("--kv-tokens", type=int, default=0, metavar="C", help="of each (default: the profile's)")
    sub.add_argument("--speedup", type=float, default=1.0, metavar="X", help="simulated seconds per second")
    sub.add_argument("--replies", default="", metavar="FILE", help="scripted answers, JSON lines")
    sub.add_argument(
        "--tokenizer", default="", metavar="DIR", help="a model's folder (default: pieces of about 4 bytes)"
    )
    sub.add_argument("--api-key-env", default="", metavar="NAME", help="variable that holds the API key")
    sub.add_argument("--host", default="127.0.0.1", help="another one needs a key (default: 127.0.0.1)")
    sub.add_argument("--port", type=int, default=0, help="of the first node (default: free ones)")
    sub.add_argument("--vllm", default="0.32", dest="version", help="release to imitate: 0.10, 0.20, 0.32")
    sub.add_argument("--max-num-queued-reqs", type=int, default=0, metavar="N", help="refuse more (503)")
    sub.add_argument("--max-num-queued-tokens", type=int, default=0, metavar="N", help="of prompts (503)")
    sub.add_argument("--scheduling-policy", default="fcfs", help="fcfs, or priority (default: fcfs)")
    sub.add_argument("--dev-mode", action="store_true", help="offer /reset_prefix_cache")
    sub.add_argument("--kv-events", default="", metavar="URL", help="ipc://PATH or tcp://127.0.0.1:PORT")
    sub.add_argument("--keep-alive-s", type=float, default=10.0, metavar="S", help="comments in idle streams")
    sub.add_argument("--stamps", action="store_true", help="~~~ in a scripted answer tells when it was sent")
    sub.add_argument("--fault", action="append", default=[], dest="faults", metavar="JSON", help="see below")


def _add_doctor(commands: Any) -> None:
    sub = _add(
        commands,
        "doctor",
        "what vLLM servers are, and what to change in how they are started",
        "each server gets a few short requests\n\n"
        "keys of --json, a row per server: node, version, model, KV tokens, block (its tokens), seen,\n"
        "lost prefix (tokens that a turn cannot find again), freed after (a client has left), clock lag,\n"
        "change; of one that does not answer: node, change",
    )
    sub.add_argument("urls", nargs="*", metavar="URL", help="addresses (default: those in $TAO_NODES)")
    _add_node(sub)
    _add_json(sub)


def _add_calibrate(commands: Any) -> None:
    sub = _add(
        commands,
        "calibrate",
        "measure the step times of one idle vLLM server, and write a profile for --profile",
        "what it will ask of the server comes first, on stderr; Ctrl-C leaves nothing running there\n\n"
        "keys of --json: profile (its fields), load {requests, prompt_tokens, generated_tokens, seconds},\n"
        "notes, points: [{kind (decode, prefill, mixed), decodes, context_tokens, new_tokens,\n"
        "cached_tokens, measured_ms, predicted_ms, error, repeats, held_out}]",
    )
    sub.add_argument("url", metavar="URL", help="address of the server")
    sub.add_argument("-o", "--output", default="profile.json", metavar="FILE", help="default: profile.json")
    sub.add_argument("--max-s", type=float, default=60.0, metavar="S", help="at most so long (default: 60)")
    sub.add_argument("--max-requests", type=int, default=600, metavar="N", help="at most (default: 600)")
    _add_node(sub)
    _add_json(sub)


def _add_observe(commands: Any) -> None:
    sub = _add(
        commands,
        "observe",
        "what TAO would have done with the requests of one's own log; nothing is sent but GET /metrics",
        "the log has one JSON object a line, a request each: session, node, time (when it was sent there),\n"
        "prompt_tokens, output_tokens, and where known cached_tokens, first_token, finished; times are\n"
        "seconds since 1970 or ISO 8601, UTC without a zone\n\n"
        "keys of --json: rows [{time_s, session, node, tao (null: held back), credit, tao_credit,\n"
        "cached_tokens, held_s}], summary, notes",
    )
    sub.add_argument("--log", required=True, metavar="FILE", help="JSON lines")
    sub.add_argument(
        "--nodes", nargs="+", metavar="URL", help="or NAME=URL, where the log names it otherwise"
    )
    sub.add_argument("--kv-tokens", type=int, metavar="C", help="of each node that does not tell them")
    _add_node(sub)
    _add_json(sub)


def _add_node(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--key-env", metavar="NAME", help="variable that holds the API key")
    sub.add_argument("--ca", metavar="FILE", help="certificate of a private authority")


def _add(commands: Any, name: str, text: str, epilog: str = "") -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return sub


def _add_json(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_set(sub: argparse.ArgumentParser) -> None:
    names = ", ".join(f"{f.name}={f.default}" for f in fields(Params))
    sub.add_argument("--set", action="append", metavar="NAME=VALUE", help=f"change a parameter: {names}")
