"""The commands that speak to servers, or are some."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path

from tao import output
from tao.model import InputError


def _need(*packages: str) -> None:
    if missing := [name for name in packages if find_spec(name) is None]:
        raise InputError(f"{missing[0]} is not installed here; pip install 'tao-scheduler[live]'")


def _answered(command: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """The command; a server that fails it is told like a user's mistake."""

    def run(args: argparse.Namespace) -> None:
        _need("aiohttp", "prometheus_client")
        from tao.live.faults import LiveError

        try:
            command(args)
        except LiveError as error:
            raise InputError(str(error)) from None

    return run


def _serve(args: argparse.Namespace) -> None:
    _need("uvicorn", "pydantic", "prometheus_client")
    from tao.live.double.serve import Deployment, Plan

    options = {f.name: getattr(args, f.name) for f in fields(Plan)} | {"faults": tuple(args.faults)}
    with Deployment(Plan(**options)) as deployment:
        print(f"SIMULATED vLLM {args.version} on {len(deployment.urls)} ports; stop with Ctrl-C")
        print("\n".join(deployment.urls), flush=True)
        try:
            deployment.wait()
        except KeyboardInterrupt:
            print("stopped")
            return
    raise InputError("the simulated servers ended by themselves; see the lines above and start them again")


def _doctor(args: argparse.Namespace) -> None:
    _need("aiohttp", "prometheus_client")
    from tao.live.connection import connect

    with connect(args.urls or None, fallback=False, key_env=args.key_env, ca=args.ca) as connection:
        rows = connection.doctor()
    if args.json:
        output.print_json(rows)
    else:
        print(f"{connection.banner}\n\n{rows}")


@_answered
def _calibrate(args: argparse.Namespace) -> None:
    from tao.live.calibration import calibrate
    from tao.live.client import Client

    path = Path(args.output)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--output is {args.output!r}; it must be a file in a folder that exists")
    options = {"max_s": args.max_s, "max_requests": args.max_requests}
    with Client(args.url, key_env=args.key_env, ca=args.ca) as client:
        found = calibrate(client, tell=lambda line: print(line, file=sys.stderr, flush=True), **options)
    path.write_text(found.profile.to_json() + "\n", "utf-8")
    if args.json:
        output.print_json(asdict(found))
        return
    head = ("point", "sequences", "context", "new", "cached", "measured ms", "law ms", "error", "repeats")
    rows = [
        (
            point["kind"] + " (held out)" * point["held_out"],
            *(f"{point[name]:,}" for name in ("decodes", "context_tokens", "new_tokens", "cached_tokens")),
            *(output.number(point[name]) for name in ("measured_ms", "predicted_ms")),
            f"{point['error']:+.1%}",
            str(point["repeats"]),
        )
        for point in found.points
    ]
    print(f"measured on {client.name}; the law is that of {path}\n")
    output.print_table(head, rows)
    print(f"\n{found.profile.provenance}\nknown error: {found.profile.known_error}")
    print(", ".join(f"{name.replace('_', ' ')} {output.number(x)}" for name, x in found.load.items()))


@_answered
def _observe(args: argparse.Namespace) -> None:
    from tao.live.observation import observe

    found = observe(args.log, args.nodes, kv_tokens=args.kv_tokens, key_env=args.key_env, ca=args.ca)
    if args.json:
        output.print_json(asdict(found))
        return
    s = found.summary
    share = {
        name: f"{s[name]:,} ({s[name] / s['requests']:.0%})" for name in ("same_node", "other_node", "held")
    }
    known = f"{s['cached_tokens']:,} against {s['credit_where_known']:,}"
    lines = [
        ("requests of the log", f"{s['requests']:,} of {s['sessions']:,} sessions"),
        ("TAO would take the same node", share["same_node"]),
        ("TAO would take another node", share["other_node"]),
        ("TAO would hold back", share["held"]),
        ("  for, at least, in all and the longest", f"{s['held_s']:,.1f} s, {s['longest_held_s']:,.1f} s"),
        ("idle sessions that TAO would pause", f"{s['pauses']:,}"),
        ("cache credit where the log sent them", f"{s['credit_tokens']:,} tokens"),
        ("more of it where TAO would", f"{s['credit_left_tokens']:,} tokens"),
        ("cached tokens against credit, where known", known if s["cached_known"] else "unknown"),
    ]
    output.print_table(("observed", "in the log"), lines)
    print("\nTAO's answers to each moment of the log. What had followed from them nobody knows: with other")
    print("placements the requests after them would have come at other times and found other caches.")
    for note in found.notes:
        print(f"note: {note}")


RUN: dict[str, Callable[[argparse.Namespace], None]] = {
    "calibrate": _calibrate,
    "doctor": _doctor,
    "observe": _observe,
    "serve": _serve,
}
