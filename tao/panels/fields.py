"""What the fields of a panel take, told before they are filled: a field moves what is out of its bounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tao import checks
from tao.checks import InputError, listing, shown

Numbers = Mapping[str, tuple[str, Any, Any]]  # name: what it is called, least, most
Choices = Mapping[str, Sequence[str]]


def checked(values: Mapping[str, Any], numbers: Numbers, choices: Choices) -> dict[str, Any]:
    """The values as fields of these names hold them; raises `InputError` for one that a field does not take.

    Numbers are whole where their least one is. What is in neither table is taken as it is.

    >>> checked({"nodes": 3, "delay": "none"}, {"nodes": ("Nodes", 1, 16)}, {"delay": ["none", "1 to 5 s"]})
    {'nodes': 3, 'delay': 'none'}
    """
    found = {name: os.fspath(x) if isinstance(x, os.PathLike) else x for name, x in values.items()}
    for name, value in found.items():
        if name in numbers:
            _, least, most = numbers[name]
            check = checks.whole if isinstance(least, int) else checks.within
            found[name] = check(value, name, least, most)
        elif name in choices and value not in choices[name]:
            raise InputError(f"{name} is {shown(value)}; it must be one of {listing(choices[name], 20)}")
    return found


def choices_of(fields: Mapping[str, Any]) -> Choices:
    """What may be chosen in each of these widgets that has options."""
    return {name: list(field.options) for name, field in fields.items() if hasattr(field, "options")}
