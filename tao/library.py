"""The snapshots and notebooks that come with the package, in a checkout or an installed wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from tao import codec
from tao.checks import shown
from tao.model import InputError, Snapshot

_HERE = Path(__file__).parent

PRESETS = {
    "dp_beats_short_first": "constructed to match the reported totals (TAO paper: DP keeps 16,791 tokens of "
    "cache credit, short-first 13,624)",
    "session_177": "constructed to match the reported totals (TAO paper: DP admits 7 sessions with the long "
    "session 177 among them, short-first defers it and admits 6)",
    "two_nodes_trap": "constructed: both sessions prefer n0, only a joint decision sends one to n1",
    "starved_large": "constructed: the small sessions keep the large one out, in the optimum on true sizes "
    "too; rounding to quanta lets dp admit only two of them",
    "quantum_hurts": "constructed: rounding to quanta makes DP lose to every heuristic",
}
"""What each named snapshot shows, and where it comes from; replay_* are recorded from simulated runs."""


def folder(name: str) -> Path:
    """The folder `data` or `notebooks`: inside an installed package, or beside it in a checkout."""
    installed = _HERE / f"_{name}"
    return installed if installed.is_dir() else _HERE.parent / name


def own_notebooks() -> Path:
    """The notebooks where they may be edited: the checkout's, or a copy in ./tao-notebooks.

    Files already in that folder are left as they are. Raises `InputError` if it cannot be written.
    """
    source = folder("notebooks")
    if source.parent != _HERE:
        return source
    target = Path.cwd() / "tao-notebooks"
    try:
        target.mkdir(exist_ok=True)
        for file in sorted(source.iterdir()):  # with the glossary and the notes that notebooks link to
            if file.suffix in (".ipynb", ".md") and not (target / file.name).exists():
                shutil.copy(file, target)
    except OSError as e:
        raise InputError(f"cannot write {target} ({e.strerror}); run it in a folder of your own") from None
    return target


def snapshot_names() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(path.stem for path in (folder("data") / "snapshots").glob("*.json"))


def describe(name: str) -> str:
    """Where a snapshot of the package comes from and what it shows, in one line; KeyError for others."""
    if name.startswith("replay_"):
        return "recorded: a decision of policy tao in our simulator, swe-lite, 48 workers on 2 nodes"
    return PRESETS[name]


def load(name_or_path: str | Path) -> Snapshot:
    """A snapshot by name (see `snapshot_names`) or from a JSON file; raises `InputError` if it is neither.

    >>> len(load("dp_beats_short_first").nodes) >= 1
    True
    """
    path = Path(name_or_path)
    if str(name_or_path) in snapshot_names() and not path.is_file():
        path = folder("data") / "snapshots" / f"{name_or_path}.json"
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        why = "it is not UTF-8 text"
    except OSError as e:
        why = e.strerror or "it cannot be read"
    except ValueError:
        why = "no file can have that name"
    else:
        return codec.from_json(text, str(name_or_path))
    raise InputError(
        f"no snapshot {shown(str(name_or_path))} ({why}); give a JSON file, or one of {', '.join(PRESETS)}, "
        "replay_01, replay_02, ..."
    )
