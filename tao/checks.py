"""Checks of what comes in from outside, with messages that say what was given and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, get_args

MAX_TOKENS = 2**40  # ours: keeps every sum of a plan far inside int64; no real node comes close


class InputError(ValueError):
    """A user's mistake: the message says what was given, what is allowed and what to do."""

    __module__ = "tao"  # where users find it, and what a traceback should call it


def shown(x: object) -> str:
    """How an error message quotes what was given: its `repr`, cut if it is long."""
    try:
        text = repr(x)
    except (ValueError, RecursionError):  # thousands of digits, or nested too deeply to print
        return f"of type {type(x).__name__} and too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def listing(names: Sequence[str], limit: int = 8) -> str:
    """The first names of a list, for a message."""
    text = ", ".join(names[:limit])
    return (text + (", ..." if len(names) > limit else "")) or "none"


def name(x: Any, what: str) -> None:
    """Refuse what is not a string, or is empty."""
    if not isinstance(x, str) or not x:
        raise InputError(f"{what} is {shown(x)}; it must be a string that is not empty")
    if not x.isascii() and any("\ud800" <= c <= "\udfff" for c in x):
        raise InputError(f"{what} is {ascii(x)[:60]}; it holds half a character (a surrogate), take that out")


def text(x: Any, what: str) -> None:
    """Refuse what is neither a string nor null."""
    if x is not None and not isinstance(x, str):
        raise InputError(f"{what} is {shown(x)}; it must be a string or null")


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and -1e15 < x < 1e15


def finite(x: Any, what: str) -> None:
    """Refuse what is not a finite number of seconds."""
    if not _number(x):
        raise InputError(f"{what} is {shown(x)}; it must be a finite number of seconds")


def at_least_zero(x: Any, what: str) -> None:
    """Refuse what is not a finite number, 0 or more."""
    if not _number(x) or x < 0:
        raise InputError(f"{what} is {shown(x)}; it must be a finite number, 0 or more")


def positive(x: Any, what: str) -> None:
    """Refuse what is not a finite number above 0."""
    if not _number(x) or x <= 0:
        raise InputError(f"{what} is {shown(x)}; it must be a finite number above 0")


def within(x: Any, what: str, least: float, most: float) -> float:
    """A finite number from `least` to `most`."""
    if not _number(x) or not least <= x <= most:
        raise InputError(f"{what} is {shown(x)}; it must be a number from {least:g} to {most:g}")
    return float(x)


def whole(x: Any, what: str, least: int, most: int = MAX_TOKENS) -> int:
    """A whole number from `least` to `most` as a plain int, whatever integer type it comes in."""
    try:
        number = operator.index(x)
    except TypeError:
        number = least - 1
    if isinstance(x, bool) or not least <= number <= most:
        top = "2**40" if most == MAX_TOKENS else f"{most:,}"
        raise InputError(f"{what} is {shown(x)}; it must be a whole number from {least} to {top}")
    return number


def one_of(x: Any, allowed: Any, what: str) -> None:
    """Refuse what is not one of the values of a `Literal`."""
    if x not in get_args(allowed):
        names = ", ".join(map(repr, get_args(allowed)))
        raise InputError(f"{what} is {shown(x)}; it must be one of {names}")


def all_of(items: Any, kind: type, what: str) -> tuple[Any, ...]:
    """`items` as a tuple, every one of them of that kind."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InputError(f"{what} is {shown(items)}; it must be a sequence of {kind.__name__}")
    found = tuple(items)
    for x in found:
        if not isinstance(x, kind):
            raise InputError(f"{what} holds {shown(x)}; each must be a {kind.__name__}")
    return found


def unique(ids: list[str], what: str) -> None:
    """Refuse a list in which a name appears twice."""
    seen: set[str] = set()
    for x in ids:
        if x in seen:
            raise InputError(f"{what} id {shown(x)} appears twice; ids must be unique, rename one")
        seen.add(x)
