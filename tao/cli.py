"""The command line: plain tables for people, `--json` for programs, one clear line on a mistake."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tao import (
    arguments,
    bench,
    codec,
    experiments,
    explain,
    library,
    live_commands,
    output,
    planners,
    trace_commands,
)
from tao.comparisons import Comparison, compare
from tao.crowding import Crowding, crowding, verdict
from tao.metrics import METRICS, measure
from tao.model import InputError, Params, Plan, Snapshot
from tao.simulator import simulate, workload_of
from tao.workloads import WORKLOADS

PAIRED = ("task_latency_s", "ttft_s", "decode_tok_s")  # metrics of which differences are printed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 fine, 2 a user's mistake, 130 interrupted."""
    parser = arguments.parser()
    args, rest = parser.parse_known_args(argv)
    if rest and args.command != "lab":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        RUN[args.command](args)
        sys.stdout.flush()
    except InputError as e:
        print(f"tao: error: {e}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, SystemError) as e:
        # Compiled code that was about to return wraps the interrupt.
        if isinstance(e, SystemError) and not isinstance(e.__cause__, KeyboardInterrupt):
            raise
        print("tao: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"tao: error: cannot write the output: {e.strerror}", file=sys.stderr)
        return 2
    return 0


def _plan(args: argparse.Namespace) -> None:
    names = [name for text in args.planner or () for name in text.split(",") if name]
    if args.snapshot is None and names and names[-1] not in planners.PLANNERS:
        args.snapshot = names.pop()  # `--planner dp NAME`: the last one is no planner
    if args.snapshot is None:
        raise InputError(f"no snapshot named; give a JSON file, or one of {', '.join(library.PRESETS)}")
    snapshot = library.load(args.snapshot)
    params = _params(args)
    names = names or [name for name in planners.PLANNERS if name != "exhaustive"]
    plans = {name: planners.plan(snapshot, name, params) for name in names}
    if args.json:
        rows = [_plan_row(snapshot, name, plan, params) for name, plan in plans.items()]
        proofs = _proofs(snapshot, plans, params) if args.explain else [{}] * len(rows)
        output.print_json([row | proof for row, proof in zip(rows, proofs, strict=True)])
        return
    free = snapshot.free_tokens(params)
    print(f"{args.snapshot}: {len(snapshot.pool)} sessions in the pool")
    rooms = [
        f"{node} {tokens:,}" if tokens >= 0 else f"{node} 0 (over by {-tokens:,})"
        for node, tokens in free.items()
    ]
    print(f"  free tokens: {', '.join(rooms) or 'there is no node'}")
    if args.snapshot in library.snapshot_names():
        print(f"  {library.describe(args.snapshot)}")
    print()
    head = ("planner", "credit", "ready", "tokens", "admitted", "states", "exact for", "gap to bound")
    output.print_table(head, [_plan_line(name, plan) for name, plan in plans.items()])
    for name, plan in plans.items():
        _print_reasons(snapshot, name, plan, params)
        if args.explain:
            print("  = " + explain.certificate(snapshot, plan, params).words.replace("\n", "\n    "))
    if args.explain:
        leaving = list(explain.who_should_leave(snapshot, params).values())
        print("\nwhat if (exact)")
        for answer in (*explain.more_room(snapshot, params).values(), *leaving[:1]):
            print(f"  ? {answer.words}")


def _plan_row(snapshot: Snapshot, name: str, plan: Plan, params: Params) -> dict[str, Any]:
    reasons = explain.why_deferred(snapshot, plan, params)
    row = codec.plan_dict(plan) | {"planner": name}
    row["deferred"] = [{"session": s, "reason": reasons[s]} for s in plan.deferred]
    admitted = row.pop("admitted")
    deferred = row.pop("deferred")
    problem = planners.case(snapshot, params)
    kernel_ms = 1000 * bench.median_s(lambda: planners.PLANNERS[name](problem), repeats=3)
    return row | {"kernel_ms": kernel_ms, "admitted": admitted, "deferred": deferred}


def _proofs(snapshot: Snapshot, plans: dict[str, Plan], params: Params) -> list[dict[str, Any]]:
    """For each plan its certificate, and what other room would be worth to the best plan."""
    room, leaving = explain.more_room(snapshot, params), explain.who_should_leave(snapshot, params)
    what_if = {
        name: [w._asdict() | {"change": w.change._asdict()} for w in answers.values()]
        for name, answers in (("more_room", room), ("who_should_leave", leaving))
    }
    proofs = [explain.certificate(snapshot, plan, params) for plan in plans.values()]
    return [{"certificate": proof._asdict() | {"credit": proof.credit}} | what_if for proof in proofs]


def _plan_line(name: str, plan: Plan) -> tuple[str, ...]:
    gap = next((f"{x:,} {part}" for part, x in plan.gap._asdict().items() if x), "0, proven")
    exact = {"true": "true sizes", "quantized": "quanta"}[plan.problem] if plan.exact else "-"
    return (
        name,
        *(f"{x:,}" for x in plan.value),
        str(len(plan.placements)),
        f"{plan.states:,}" if plan.states else "-",
        exact,
        gap,
    )


def _print_reasons(snapshot: Snapshot, name: str, plan: Plan, params: Params) -> None:
    print(f"\n{name}{': ' + plan.reason if plan.reason else ''}")
    admitted = explain.why_admitted(snapshot, plan, params)
    for p in plan.placements:
        print(f"  + {p.session} on {p.node}: {admitted[p.session]}")
    for session, reason in explain.why_deferred(snapshot, plan, params).items():
        print(f"  - {session}: {reason}")


def _simulate(args: argparse.Namespace) -> None:
    with output.progress(f"simulating {args.policy}") as report:
        history = simulate(policy=args.policy, seed=args.seed, progress=report, **_shared(args))
    values = measure(history)
    if args.json:
        output.print_json({"settings": history.settings | {"notes": history.notes}, **values})
        return
    print(_setting_line(history.settings))
    output.print_table(
        ("metric", "simulated"), [(name, output.number(value)) for name, value in values.items()]
    )
    _print_provenance(history.settings, history.notes)


def _compare(args: argparse.Namespace) -> None:
    if args.preset is not None:
        _preset(args)
        return
    policies = [name.strip() for name in args.policies.split(",") if name.strip()]
    own = args.workload not in WORKLOADS
    if own and args.workers is None:
        found = _crowd(args, policies)
        if args.json:
            output.print_json(found.to_dict())
        else:
            _print_crowding(found)
        return
    with output.progress("comparing") as report:
        result = compare(policies=policies, seeds=args.seeds, progress=report, **_shared(args))
    told = {"verdict": verdict(_crowd(args, policies))} if own else {}
    if args.json:
        output.print_json(result.to_dict() | told)
    else:
        _print_comparison(result)
        print("".join(f"\n{text}" for text in told.values()), end="\n" if told else "")


def _crowd(args: argparse.Namespace, policies: list[str]) -> Crowding:
    """The policies on resamples of a log, at the workers asked for or around where memory fills up."""
    shared = _shared(args)
    work = workload_of(shared.pop("workload"), 0, shared.pop("tasks"))
    workers = shared.pop("workers")
    counts = None if args.workers is None else [workers]
    with output.progress("resampling") as report:
        return crowding(work, policies, workers=counts, seeds=args.seeds, progress=report, **shared)


def _print_crowding(found: Crowding) -> None:
    rows = found.rows()
    first = rows[0].policy
    others = [row.policy for row in rows if row.workers == rows[0].workers][1:]
    print(f"simulated: mean task latency of {first} in seconds, and how far the others are from it [95 %]\n")
    lines = []
    for workers in found.races:
        here = {row.policy: row for row in rows if row.workers == workers}
        changes = [
            "-"
            if row.change is None
            else f"{row.change:+.1%}" + ("" if row.lo is None else f" [{row.lo:+.1%}, {row.hi:+.1%}]")
            for row in (here[name] for name in others)
        ]
        base = here[first]
        lines.append((f"{workers:,}", f"{base.capacity_over_live:.2f}", output.number(base.mean), *changes))
    output.print_table(("workers", "capacity/live", first, *others), lines)
    _print_provenance(found.settings, found.notes)
    print(f"\n{verdict(found)}")


def _preset(args: argparse.Namespace) -> None:
    """An experiment of the paper: all but its size is given."""
    given = vars(arguments.parser().parse_args(["compare"]))
    others = [n for n in given if getattr(args, n) != given[n] and n not in arguments.WITH_PRESET]
    if others:
        options = ", ".join("--" + name.replace("_", "-") for name in others)
        raise InputError(f"--preset fixes {options}; give only --tasks, --seeds and --json with it")
    if args.preset == "list":
        rows = [(p.name, p.what) for p in experiments.PRESETS.values()]
        if args.json:
            output.print_json([{"name": name, "what": what} for name, what in rows])
        else:
            print("\n".join(f"{name:32} {what}" for name, what in rows))
        return
    many = len(experiments.chosen(args.preset)) > 1
    with output.progress(args.preset) as progress:
        report = experiments.run(
            *(args.preset, args.seeds),
            tasks=args.tasks,
            executor=os.cpu_count() if many else None,
            progress=progress,
        )
    if args.json:
        output.print_json(report.to_dict())
        return
    print("\n".join(experiments.intro(report)) + "\n")
    output.print_table(experiments.HEAD, experiments.cells(report))
    print("\n" + "\n".join(experiments.remarks(report)))


def _print_comparison(result: Comparison) -> None:
    settings = result.settings
    data = result.to_dict()["policies"]
    seeds = len(settings["seeds"])
    print(_setting_line(settings))
    print(
        f"simulated; mean over {seeds} seeds, with its 95 % confidence interval\n"
        if seeds > 1
        else "simulated; one run\n"
    )
    head = ("metric", *(row["policy"] for row in data))
    output.print_table(
        head, [(metric, *(output.with_interval(row[metric]) for row in data)) for metric in METRICS]
    )
    _print_paired(result)
    ratios = [row["capacity_over_live"]["mean"] for row in data]
    print(
        f"\nKV capacity is {min(ratios):.2f} to {max(ratios):.2f} x the live contexts: {_zone(min(ratios))}"
    )
    _print_provenance(settings, settings["notes"])


def _print_paired(result: Comparison) -> None:
    first, seeds = result.runs["policy"].iloc[0], result.runs["seed"].nunique()
    if seeds < 2 or result.runs["policy"].nunique() < 2:
        return
    print(f"\ndifference to {first}, seed by seed, and on how many of {seeds} seeds it is higher\n")
    columns = {metric: result.paired(metric).set_index("policy") for metric in PAIRED}
    rows = [
        (
            metric,
            *(f"{x['mean']:+.1%} [{x.lo:+.1%}, {x.hi:+.1%}], {x.above:.0f}" for _, x in table.iterrows()),
        )
        for metric, table in columns.items()
    ]
    output.print_table(("metric", *next(iter(columns.values())).index), rows)


def _zone(ratio: float) -> str:
    """What a capacity of so many times the live contexts means."""
    if ratio > 1.2:
        return "there is room for all, so expect little difference"
    return "at the knee, where policies differ most" if ratio >= 0.85 else "overload"


def _print_provenance(settings: dict[str, Any], notes: Sequence[str]) -> None:
    print(f"\nprofile {settings['profile']}: {settings['provenance'] or 'origin not stated'}")
    print(f"known error: {settings['known_error'] or 'not stated'}")
    for note in notes:
        print(f"note: {note}")


def _bench(args: argparse.Namespace) -> None:
    of = {"family": "planner", "count": "planner", "limit_s": "planner", "minutes": "live", "mb": "import"}
    given = {name: x for name in of if (x := getattr(args, name)) is not None}
    if wrong := [name for name in given if of[name] != args.what]:
        raise InputError(f"--{wrong[0].replace('_', '-')} is for 'bench {of[wrong[0]]}'; drop it")
    name = bench.BENCHES.get(args.what, args.what)
    timed: Any = _live_bench() if name == "live" else getattr(bench, name)
    with output.progress("timing") as report:
        rows = getattr(timed, name)(report, **given)
    if args.json:
        output.print_json(rows)
        return
    print(timed.NOTE)
    cells = [timed.cells(row) for row in rows if "note" not in row]
    head = list(dict.fromkeys(name for row in cells for name in row))
    names = [name.replace("_", " ") for name in head]
    output.print_table(names, [[row.get(name, "-") for name in head] for row in cells])
    for row in rows:
        if "note" in row:
            print(f"note: {row['note']}")


def _live_bench() -> Any:
    try:
        return import_module("tao.live.bench")
    except ModuleNotFoundError as e:
        raise InputError(f"{e.name} is not installed here; pip install 'tao-scheduler[live]'") from None


def _lab(args: argparse.Namespace) -> None:
    if find_spec("jupyterlab") is None:
        raise InputError("JupyterLab is not installed here; pip install 'tao-scheduler[lab]'")
    notebook = library.own_notebooks() / "00_start_here.ipynb"
    print(f"opening {notebook}")
    sys.stdout.flush()
    os.environ.setdefault("TAO_OFFLINE", "1")  # on one's own machine charts need no server on the internet
    command = [sys.executable, "-m", "jupyterlab", str(notebook), *args.rest]
    if os.name == "posix":  # Jupyter takes this process over, so that Ctrl-C and kill reach it
        os.execv(sys.executable, command)
    raise SystemExit(subprocess.run(command).returncode)


def _params(args: argparse.Namespace) -> Params:
    changes: dict[str, Any] = {}
    types = {f.name: type(f.default) for f in fields(Params)}
    for setting in args.set or ():
        name, _, text = setting.partition("=")
        if name not in types:
            raise InputError(
                f"--set {setting!r}: unknown parameter {name!r}; it must be one of {', '.join(types)}"
            )
        changes[name] = _parsed(types[name], text, setting)
    return replace(Params(), **changes)


def _parsed(kind: type, text: str, setting: str) -> Any:
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"--set {setting!r}: {text!r} must be true or false")
    try:
        return kind(text)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"--set {setting!r}: {text!r} is not {expected}; write NAME=VALUE") from None


def _shared(args: argparse.Namespace) -> dict[str, Any]:
    """The options that `simulate` and `compare` have in common, as their arguments."""
    names = ("workload", "nodes", "profile", "capacity_tokens", "strict")
    workers = arguments.WORKERS if args.workers is None else args.workers
    given = {"workers": workers, "tasks": _tasks(args), "params": _params(args)}
    return {name: getattr(args, name) for name in names} | given


def _tasks(args: argparse.Namespace) -> int | None:
    if args.tasks is not None:
        return int(args.tasks)
    return arguments.TASKS if args.workload in WORKLOADS else None


def _setting_line(s: dict[str, Any]) -> str:
    return (
        f"{s['workload']}: {s['tasks']} sessions, {s['workers']} workers on {s['nodes']} x {s['profile']}, "
        f"{s['capacity_tokens']:,} KV tokens each"
        + "".join(f", {name} {value}" for name, value in s["params"].items())
    )


RUN: dict[str, Callable[[argparse.Namespace], None]] = {
    "plan": _plan,
    "simulate": _simulate,
    "compare": _compare,
    "bench": _bench,
    "lab": _lab,
    **live_commands.RUN,
    **trace_commands.RUN,
}


if __name__ == "__main__":
    sys.exit(main())
