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


def _calibrate(args: argparse.Namespace) -> None:
    _need("aiohttp", "prometheus_client")
    from tao.live.calibration import calibrate
    from tao.live.client import Client
    from tao.live.faults import LiveError

    path = Path(args.output)
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--output is {args.output!r}; it must be a file in a folder that exists")
    with Client(args.url, key_env=args.key_env, ca=args.ca) as client:
        try:
            options = {"max_s": args.max_s, "max_requests": args.max_requests}
            found = calibrate(client, tell=lambda line: print(line, file=sys.stderr, flush=True), **options)
        except LiveError as error:
            raise InputError(str(error)) from None
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


RUN: dict[str, Callable[[argparse.Namespace], None]] = {"calibrate": _calibrate, "serve": _serve}
