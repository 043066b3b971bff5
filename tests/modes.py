"""Folders that nobody can write to, not even root."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Root may write anywhere; without this capability (CAP_DAC_OVERRIDE) the mode of a folder binds root too.
OBEY_MODES = """
import ctypes, sys
libc = ctypes.CDLL(None)
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[0] &= ~0b10
assert libc.capset(header, sets) == 0
try:
    open("written", "w")
except PermissionError:
    pass
else:
    sys.exit("this process may write where it should not")
"""
"""What a process runs first that is to fail at writing; its working directory is such a folder. Linux."""


@contextmanager
def unwritable(folder: Path) -> Iterator[Path]:
    """Within, nobody who obeys modes can write to the folder or anything in it."""
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        yield folder
    finally:
        for path in everything:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
