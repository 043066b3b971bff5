"""The commands on logs of one's own: `tao import` and `tao export`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from tao import checks, output, traces
from tao.model import InputError
from tao.traces import export
from tao.traces.files import MB, Limits


def _import(args: argparse.Namespace) -> None:
    """Reads logs of any known format, writes one file in ours, and reports."""
    recording = _loaded(args)
    loses = ""
    if args.output is not None:
        if not len(recording.turns):
            raise InputError(
                f"no request found in {len(args.paths)} paths, nothing written\n{recording.report}"
            )
        loses = export.write(recording, args.output, args.format)
    if args.json:
        output.print_json(dataclasses.asdict(recording.report) | {"loses": loses})
    else:
        print(recording.report)
    _check_turns(recording)
    if args.output is not None and not args.json:
        _wrote(args.output, args.format, loses)


def _export(args: argparse.Namespace) -> None:
    """Writes logs in another format."""
    recording = _loaded(args)
    if not len(recording.turns):
        print(recording.report)
    _check_turns(recording)
    _wrote(args.output, args.format, export.write(recording, args.output, args.format))


def _check_turns(recording: traces.Recording) -> None:
    if not len(recording.turns):
        raise InputError("no request found in these logs; the report tells why")


def _loaded(args: argparse.Namespace) -> traces.Recording:
    for name in ("max_line_mb", "max_mb"):
        if getattr(args, name) is not None:
            checks.whole(getattr(args, name), "--" + name.replace("_", "-"), 1)
    limits = Limits(
        line=args.max_line_mb * MB if args.max_line_mb else Limits.line,
        content=args.max_mb * MB if args.max_mb else None,
    )
    classes = _classes(args.classes) if args.classes else None
    return traces.load(*args.paths, keep_names=args.keep_names, classes=classes, limits=limits)


def _classes(path: str) -> dict[str, str]:
    """The user's command classes: a JSON object {"program words": "class"}."""
    wanted = f'--classes {path!r}: must be a JSON object such as {{"bazel test": "test"}}'
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as e:
        raise InputError(f"--classes {path!r} cannot be read ({e.strerror}); check the path") from None
    except (ValueError, RecursionError):
        raise InputError(wanted) from None
    if not isinstance(found, dict) or not all(k.strip() and isinstance(v, str) for k, v in found.items()):
        raise InputError(wanted)
    return found


def _wrote(path: str, form: str, loses: str) -> None:
    print(f"wrote {path} ({form})" + (f"; lost: {loses}" if loses else ""), file=sys.stderr)


RUN: dict[str, Callable[[argparse.Namespace], None]] = {"import": _import, "export": _export}
