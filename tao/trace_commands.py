"""The commands on logs of one's own: `tao import` and `tao export`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from tao import checks, output, recipes, traces
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
    if args.statistics and not args.json:
        from tao import statistics  # pandas, which takes a while to import

        print(f"\n{statistics.summary(recording)}")
    if args.twin is not None:
        _write_twin(recording, args.twin)


def _export(args: argparse.Namespace) -> None:
    """Writes logs in another format."""
    recording = _loaded(args)
    if not len(recording.turns):
        print(recording.report)
    _check_turns(recording)
    _wrote(args.output, args.format, export.write(recording, args.output, args.format))


def _write_twin(recording: traces.Recording, path: str) -> None:
    """Fits parameters, writes them, and tells how near sessions drawn from them come."""
    from tao import twins

    recipe = twins.fit(recording)
    try:
        Path(path).write_text(recipes.to_json(recipe) + "\n", encoding="utf-8")
    except OSError as e:
        raise InputError(f"--twin {path!r} cannot be written ({e.strerror}); choose another path") from None
    print("\nrecorded beside 300 sessions drawn from the parameters (simulated; ks: greatest distance)\n")
    rows = []
    for row in twins.goodness(recording, recipe).to_dict("records"):
        median = (
            "p50" if row["recorded_p50"] == row["recorded_p50"] else "mean"
        )  # of shares there is no median
        figures = (row[f"recorded_{median}"], row[f"twin_{median}"], row["ks"])
        cells = (output.number(None if x != x else float(x)) for x in figures)
        rows.append((str(row["quantity"]), *cells, str(row["verdict"])))
    output.print_table(("quantity", "median", "twin's", "ks", "verdict"), rows)
    print(f"wrote {path} (parameters; --workload takes them)", file=sys.stderr)


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
