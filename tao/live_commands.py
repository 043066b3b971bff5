"""The commands that speak to servers, or are some."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec

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


def _doctor(args: argparse.Namespace) -> None:
    _need("aiohttp", "prometheus_client")
    from tao.live.connection import connect

    with connect(args.urls or None, fallback=False, key_env=args.key_env, ca=args.ca) as connection:
        rows = connection.doctor()
    if args.json:
        output.print_json(rows)
    else:
        print(f"{connection.banner}\n\n{rows}")


RUN: dict[str, Callable[[argparse.Namespace], None]] = {"doctor": _doctor, "serve": _serve}
