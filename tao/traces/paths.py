"""Which files there are to read: each once, however often it is named or copied."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tao.checks import InputError


def paths_of(paths: list[str | os.PathLike[str]]) -> list[Path]:
    """The files among `paths` and in the folders among them, each once, in order of name.

    Links in folders are not followed. Raises `InputError` for what is not there.
    """
    found: dict[Path, Path] = {}  # by where it really is
    for given in paths:
        path = Path(given)
        try:
            if path.is_dir():
                inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
                inside = (p for p in inside if p.is_file() and not p.is_symlink() and p.name[:1] != ".")
                here = sorted(inside)
            elif path.is_file():
                here = [path]
            else:
                raise FileNotFoundError(2, "no such file or folder")
            for one in here:
                found.setdefault(one.resolve(), one)
        except (ValueError, OSError) as e:
            why = getattr(e, "strerror", None) or e
            raise InputError(f"{os.fspath(given)!r:.200} cannot be opened ({why}); check the path") from None
    return list(found.values())


def copies(paths: Iterable[Path]) -> set[Path]:
    """Those among some files that hold the very same as one before them; only files of one size are read."""
    sizes: dict[Path, int] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            sizes[path] = path.stat().st_size
    often, seen, found = Counter(sizes.values()), set[bytes](), set[Path]()
    for path, size in sizes.items():
        if size and often[size] > 1:
            with contextlib.suppress(OSError), path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
                found |= {path} if digest in seen else set()
                seen.add(digest)
    return found
