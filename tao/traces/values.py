"""Values from logs, of which any may be of any type: taken where they are what they should be, else left."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_COMMANDS = ("cmd", "command", "keystrokes", "script")  # ours: arguments that are a shell command
_LARGEST = 1e300  # of numbers that are converted to float


def mapping(x: Any) -> Mapping[str, Any]:
    """A JSON object, empty where it is none."""
    return x if isinstance(x, dict) else {}


def mappings(x: Any) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in a list."""
    return (part for part in (x if isinstance(x, list) else ()) if isinstance(part, dict))


def texts(x: Any) -> list[str]:
    """The texts in a list."""
    return [part for part in x if isinstance(part, str)] if isinstance(x, list) else []


def name(x: Any) -> str | None:
    """A text, or a number as text, that may name something."""
    if isinstance(x, str):
        return x or None
    return str(x) if isinstance(x, int) and not isinstance(x, bool) and abs(x) < _LARGEST else None


def scaled(x: Any, unit: float) -> Any:
    """A number times its unit, nan for None; what is no number is left for `Builder` to refuse.

    >>> scaled(1500, 1e-3), scaled("soon", 1e-3)
    (1.5, 'soon')
    """
    if isinstance(x, bool) or not isinstance(x, int | float) or abs(x) > _LARGEST:
        return x
    return x * unit


def arguments(x: Any) -> Mapping[str, Any]:
    """The arguments of a tool call: a JSON object, or its text."""
    for loads in (orjson.loads, json.loads) if isinstance(x, str) else ():  # the slow one takes odd text
        try:
            return mapping(loads(x))
        except (ValueError, RecursionError):
            pass
    return mapping(x)


def command(given: Mapping[str, Any]) -> str | None:
    """The shell command among the arguments of a tool call, a text or a list of words.

    >>> command({"command": ["bash", "-lc", "pytest -q"]})
    'pytest -q'
    """
    for key in _COMMANDS:
        found = given.get(key)
        if isinstance(found, str):
            return found
        if isinstance(found, list) and found and all(isinstance(word, str) for word in found):
            return found[2] if len(found) > 2 and found[1] in ("-c", "-lc") else shlex.join(found)
    return None
