"""Notebooks: they run, their printed numbers are current, and the committed files are in normal form."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from tao import library

FOLDER = library.folder("notebooks")
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LIMIT_BYTES = 150 * 1024
WIDGET = "application/vnd.jupyter.widget-view+json"


def script() -> Any:
    """The module `notebooks/execute.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


execute = script()
v4: Any = nbformat.v4


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def notebook(path: Path) -> NotebookNode:
    notebook: NotebookNode = execute.read(path)
    return notebook


def notebook_of(*sources: str) -> NotebookNode:
    notebook: NotebookNode = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_first_notebook_is_there() -> None:
    assert NOTEBOOKS[0].name == "00_start_here.ipynb"
    assert len(execute.read(NOTEBOOKS[0]).cells) <= 12


def test_it_runs_and_prints_the_numbers_that_are_committed(notebook: NotebookNode) -> None:
    again = execute.normalize(execute.run(notebook, FOLDER))
    assert execute.changed_cells(notebook, again) == []
    kinds = [sorted(output.get("data", {"stream": ""})) for output in outputs(notebook)]
    assert kinds == [sorted(output.get("data", {"stream": ""})) for output in outputs(again)]


def test_the_committed_file_is_in_normal_form_and_small(notebook: NotebookNode, path: Path) -> None:
    assert execute.normalize(notebook) == notebook
    assert "widgets" not in notebook.metadata
    assert all(WIDGET not in output.get("data", {}) for output in outputs(notebook))
    assert path.stat().st_size <= LIMIT_BYTES


def test_no_output_complains_or_names_a_machine(notebook: NotebookNode) -> None:
    for output in outputs(notebook):
        assert output.get("name") != "stderr"
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        assert not any(
            mark in text
            for mark in ("Error", "Warning", "/home/", "/tmp/", str(Path(__file__).parents[1]), "\\Users\\")
        )


def test_it_has_one_title_a_goal_and_its_limits(notebook: NotebookNode) -> None:
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    lines = [line for source in text for line in source.splitlines()]
    assert [line for line in lines if line.startswith("# ")] == [lines[0]]
    assert "you can" in text[0]
    assert "## What this does not show" in lines
    assert len(notebook.cells) <= 25


def test_each_picture_has_a_text_beside_it(notebook: NotebookNode) -> None:
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert pictures or execute.MEASURED in str(notebook.cells)
    assert all(len(output.data["text/plain"]) > 200 for output in pictures)


def test_a_cell_that_writes_to_stderr_fails(tmp_path: Path) -> None:
    loud = notebook_of("import sys; print('careful', file=sys.stderr)")
    with pytest.raises(RuntimeError, match="careful"):
        execute.run(loud, tmp_path)


def test_a_busy_machine_may_be_mentioned_where_something_is_measured(tmp_path: Path) -> None:
    loud = f"import sys; print({execute.BUSY + ' with 10'!r}, file=sys.stderr)"
    again = execute.normalize(execute.run(notebook_of(f"# measured\n{loud}"), tmp_path))
    assert outputs(again) == []
    with pytest.raises(RuntimeError, match="keep up"):
        execute.run(notebook_of(loud), tmp_path)


def test_a_changed_number_is_found_and_a_changed_last_digit_is_not() -> None:
    def printed(text: str) -> NotebookNode:
        notebook = notebook_of("...", "...")
        notebook.cells[1].outputs = [v4.new_output("stream", text=text)]
        return notebook

    assert execute.changed_cells(printed("credit 16,791 of 8"), printed("credit 16,791 of 8")) == []
    assert execute.changed_cells(printed("0.123412"), printed("0.123409")) == []
    assert execute.changed_cells(printed("credit 16,791"), printed("credit 13,624")) == [2]
    assert execute.changed_cells(printed("by +7.0%"), printed("by −7.0%")) == [2]
    assert execute.changed_cells(printed("TAO better"), printed("TAO worse")) == [2]


def test_what_was_measured_may_differ() -> None:
    def printed(source: str, text: str) -> NotebookNode:
        notebook = notebook_of(source)
        notebook.cells[0].outputs = [v4.new_output("stream", text=text)]
        return notebook

    for source, changed in (("# measured\nprint(x)", []), ("print(x)  # measured", [1])):
        assert execute.changed_cells(printed(source, "1.5 s"), printed(source, "1.6 s")) == changed


def test_what_was_measured_is_cleared() -> None:
    notebook = notebook_of("# measured")
    table = "SIMULATED: 2 nodes\n  s1  127.0.0.1:46341  40.43\n  s12  127.0.0.1:42391  1,639.7\n  all  −3%"
    data = {"text/plain": table, "image/png": "..."}
    notebook.cells[0].outputs = [
        v4.new_output("stream", text="vLLM 0.32.0, 27.77 s"),
        v4.new_output("display_data", data),
    ]
    stream, shown = outputs(execute.normalize(notebook))
    assert stream.text == "vLLM …, … s"
    assert shown.data == {"text/plain": "SIMULATED: … nodes\n  s…  …  …\n  all  …%"}


def test_no_version_is_committed_and_other_numbers_are() -> None:
    assert (
        execute.without_versions("vLLM 0.32.0, 2 nodes at 127.0.0.1, 0.95")
        == "vLLM …, 2 nodes at 127.0.0.1, 0.95"
    )


def test_the_live_notebook_says_where_it_ran_and_commits_no_measured_number() -> None:
    notebook = execute.read(FOLDER / "09_live.ipynb")
    assert "SIMULATED: 2 nodes" in outputs(notebook)[1]["text"]
    measured = [cell for cell in notebook.cells if cell.source.startswith(execute.MEASURED)]
    assert "… of … sessions done" in str(measured[0].outputs)
    for output in (output for cell in measured for output in cell.outputs):
        assert "image/png" not in output.get("data", {})


def test_each_has_something_to_predict_or_to_place(notebook: NotebookNode) -> None:
    assert any(kind in cell.source for cell in notebook.cells for kind in ("Lock(", "GamePanel("))


def test_no_answer_stands_open_behind_a_lock(notebook: NotebookNode) -> None:
    for lock, after in pairwise(notebook.cells):
        if "Lock(" in lock.source and after.cell_type == "markdown":
            assert not after.source.startswith(("**Read it", "**Why", "**The answer"))


@pytest.mark.long  # it runs a notebook twice; the panel's own test sees the same faster
def test_running_cells_again_leaves_nothing_behind(tmp_path: Path) -> None:
    cells = (
        "import tao\nfrom tao.panels import LivePanel, SnapshotPanel\n"
        "panel = SnapshotPanel([('mine', tao.load('two_nodes_trap'))])\npanel.show()",
        "connection = tao.connect('', plan=tao.live.Plan(nodes=1, kv_tokens=8192, speedup=40))",
        "live = LivePanel(connection)\nlive.submit(sessions=2, turns=30)\nlive.show()",
        "import psutil, threading\nfrom ipywidgets.widgets import widget\nthis = psutil.Process()\n"
        "print(len(widget._instances), len(this.children()), len(this.net_connections('tcp')) < 30,\n"
        "      sum(each.name == 'tao-live' for each in threading.enumerate()))",
    )
    again = execute.run(notebook_of(*cells * 3), tmp_path)
    counts = [output.text for output in outputs(again) if output.get("name") == "stdout"]
    assert len(counts) == 3
    assert len(set(counts)) == 1, counts
    assert counts[0].endswith(" 1 True 1\n")
