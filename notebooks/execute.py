"""Run notebooks and write them back in one normal form, small and the same on every machine.

    python notebooks/execute.py                  run all, write them
    python notebooks/execute.py --check          run all, write nothing, fail if what is printed has changed
    python notebooks/execute.py 00_start_here    only this one

Normal form: executed in order, no widget state, no ids of widgets, no versions, no times. The static picture
of a panel stays (its bytes may differ between machines and are not compared). A cell that begins with
`# measured` prints what differs from run to run: its picture is dropped, its numbers are cleared, and it is
not compared.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

import tao

HERE = Path(__file__).parent
TIMEOUT_S = 120  # per cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MEASURED = "# measured"
BUSY = "tao serve: this machine cannot keep up"
WIDGET = "application/vnd.jupyter.widget-view+json"


def read(path: Path) -> NotebookNode:
    """The notebook at `path`, checked against its schema."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    return notebook


def run(notebook: NotebookNode, folder: Path = HERE) -> NotebookNode:
    """An executed copy; raises if a cell fails or writes to stderr, unless that is about a busy machine."""
    fresh: NotebookNode = copy.deepcopy(notebook)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(fresh, timeout=TIMEOUT_S, resources=resources, store_widget_state=False).execute()
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr" and not _slow(cell, output):
                raise RuntimeError(f"cell wrote to stderr: {output.text}\n{cell.source}")
    return fresh


def normalize(notebook: NotebookNode) -> NotebookNode:
    """A copy in normal form (see above); an executed notebook in, the file to commit out."""
    normal: NotebookNode = copy.deepcopy(notebook)
    normal.metadata = METADATA
    count = 0
    for place, cell in enumerate(normal.cells, start=1):
        cell.id, cell.metadata = f"cell-{place:02d}", {}
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            kept = [output for output in cell.outputs if not _slow(cell, output)]
            measured = cell.source.startswith(MEASURED)
            cell.outputs = [_normal_output(output, count, measured) for output in kept]
    return normal


def _slow(cell: NotebookNode, output: NotebookNode) -> bool:
    """Whether simulated servers say there that this machine is too busy, which a measurement may show."""
    said = output.get("text", "") if output.get("name") == "stderr" else ""
    busy = bool(said) and all(line.startswith(BUSY) for line in said.splitlines())
    return busy and bool(cell.source.startswith(MEASURED))


def _normal_output(output: NotebookNode, count: int, measured: bool) -> NotebookNode:
    if "execution_count" in output:
        output.execution_count = count
    clear = cleared if measured else without_versions
    if "data" in output:
        output.data.pop(WIDGET, None)
        output.metadata = {}
        if measured:
            output.data.pop("image/png", None)
        output.data["text/plain"] = clear(output.data["text/plain"])
    elif "text" in output:
        output.text = clear(output.text)
    return output


def without_versions(text: str) -> str:
    """The text with `…` for each version of a program."""
    return re.sub(r"(?<![\d.])\d+(?:\.\d+){2}(?![\d.])", "…", text)


def cleared(text: str) -> str:
    """The text with `…` for each number, and of rows that are then the same only the first."""
    kept: list[str] = []
    for line in re.sub(r"[-−+]?\d(?:[\d.,:]*\d)?", "…", text).splitlines():
        if not kept or line.split() != kept[-1].split():
            kept.append(line)
    return "\n".join(kept)


def printed(notebook: NotebookNode) -> list[list[str]]:
    """What each cell printed: words, and numbers to four digits; pictures and measurements do not count."""
    texts = ("" if cell.source.startswith(MEASURED) else _printed(cell) for cell in notebook.cells)
    return [_NUMBER.sub(_four_digits, text).split() for text in texts]


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _four_digits(number: re.Match[str]) -> str:
    return f"{float(number[0].replace(',', '')):.4g}"


def _printed(cell: NotebookNode) -> str:
    outputs = cell.get("outputs", [])
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)


def changed_cells(old: NotebookNode, new: NotebookNode) -> list[int]:
    """The cells, counted from 1, whose printed numbers or words differ."""
    pairs = zip(printed(old), printed(new), strict=True)
    return [place for place, (before, after) in enumerate(pairs, start=1) if before != after]


def main(arguments: list[str]) -> int:
    """Run the named notebooks (default: all); exit status 1 if `--check` finds changes."""
    parser = argparse.ArgumentParser(description="Run notebooks and write them in normal form.")
    parser.add_argument("names", nargs="*", help="notebooks without .ipynb; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing, compare what is printed")
    options = parser.parse_args(arguments)
    known = sorted(path.stem for path in HERE.glob("*.ipynb"))
    for name in options.names:
        if name not in known:
            parser.error(f"no notebook {name!r}; there are {', '.join(known)}")
    tao.ready(simulator=True, lab=True)  # so that notebooks find their kernels, whatever ran before
    failed = False
    for path in [HERE / f"{name}.ipynb" for name in options.names or known]:
        old = read(path)
        new = normalize(run(old))
        changed = changed_cells(old, new) if options.check else []
        failed |= bool(changed)
        print(f"{path.name}: {f'numbers changed in cells {changed}' if changed else 'ok'}")
        if not options.check:
            nbformat.write(new, path)  # type: ignore[no-untyped-call]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
