"""How quickly notebooks answer in a browser, and what running them costs."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tao import library
from tao.bench import browser

REPEATS = 20
PANEL = ".tao-panel"


Press = tuple[str, str, str]


class Way(NamedTuple):
    """A control to press again and again: the notebook, the panel's place there, and what is pressed in turn.

    Each press is a list of (role, name, key or text); only the last of it is timed. `first`: what is pressed
    once, before all.
    """

    what: str
    notebook: str
    panel: int
    presses: tuple[tuple[Press, ...], ...]
    first: tuple[Press, ...] = ()


WAYS = (
    Way(
        "re-plan: another planner",
        "00_start_here.ipynb",
        0,
        tuple((("button", name, "Enter"),) for name in ("short_first", "dp")),
    ),
    Way(
        "re-plan: next and previous snapshot",
        "00_start_here.ipynb",
        0,
        tuple((("button", name, "Enter"),) for name in ("Next", "Previous")),
    ),
    Way(
        "re-simulate: 2 policies x 8 seeds",
        "08_simulate_and_tune.ipynb",
        0,
        tuple(
            (("spinbutton", "Workers", f"{6 + k}"), ("button", "Run", "Enter")) for k in range(REPEATS + 2)
        ),
        tuple(("checkbox", rival, "Space") for rival in ("thunderagent", "vllm_cache_aware")),
    ),
)

WATCH = """panel => {
  const box = document.querySelectorAll('.tao-panel')[panel];
  const heard = () => [box.querySelector('[role=status]').textContent,
    ...[...box.querySelectorAll('svg.marks [aria-label]')].map(m => m.getAttribute('aria-label'))].join('|');
  const before = heard(), height = box.getBoundingClientRect().height;
  const seen = window.taoSeen = {start: null, end: null, progress: false, jumped: false};
  document.addEventListener('keydown', e => { seen.start = e.timeStamp; }, {capture: true, once: true});
  const look = () => {
    const bar = box.querySelector('[role=progressbar], .progress');
    if (bar && getComputedStyle(bar).visibility === 'visible') seen.progress = true;
    if (seen.start !== null && heard() !== before) seen.end = performance.now();
    if (box.getBoundingClientRect().height !== height) seen.jumped = true;
  };
  const watch = new MutationObserver(look);
  watch.observe(box, {subtree: true, childList: true, attributes: true, characterData: true});
  window.taoStop = () => watch.disconnect();
}"""


def notebooks(progress: Callable[[float], None] = lambda share: None) -> list[dict[str, Any]]:
    """Milliseconds from a key to the changed text of a panel, on all cores and on one; then whole notebooks.

    The last rows are how long all cells of a notebook take, with compiled kernels, its kernel's peak memory,
    and the time from starting JupyterLab with nothing compiled to the first figure.
    Raises `InputError` where there is no Chromium or JupyterLab.
    """
    path = browser.chromium()
    names = sorted(file.name for file in library.folder("notebooks").glob("*.ipynb"))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        places = (Path(scratch) / str(k) for k in range(9))
        cores = sorted(os.sched_getaffinity(0))
        for count, allowed in (("all", None), ("one", {cores[-1]})):
            progress(len(rows) / 20)
            rows += _answers(path, next(places), count, allowed)
        for k, name in enumerate(names):
            progress((6 + k) / 20)
            rows.append(_whole(name))
        progress(18 / 20)
        rows.append(_first_figure(path, next(places)))
    return rows


def _answers(path: str, home: Path, count: str, cores: set[int] | None) -> list[dict[str, Any]]:
    home.mkdir()
    rows = []
    with browser.jupyterlab(home, cores=cores) as lab, browser.page_of(path, home / "browser") as page:
        opened = ""
        for way in WAYS:
            if way.notebook != opened:
                opened = way.notebook
                browser.open_notebook(page, lab, opened)
                browser.run_all(page)
            rows.append(_pressed(page, way) | {"cores": count})
    return rows


def _pressed(page: Any, way: Way) -> dict[str, Any]:
    """A row: presses in turn, the first two of which do not count."""
    taken, shown, jumped = [], 0, 0
    for role, name, key in way.first:
        page.locator(PANEL).nth(way.panel).get_by_role(role, name=name, exact=True).press(key)
    for k in range(REPEATS + 2):
        seen = _press(page, way.panel, way.presses[k % len(way.presses)])
        if k >= 2:
            taken.append(seen["end"] - seen["start"])
            shown += seen["progress"]
            jumped += seen["jumped"]
    return {
        "what": way.what,
        "median_ms": statistics.median(taken),
        "worst_ms": max(taken),
        "progress_shown": shown,
        "jumps": jumped,
    }


def _press(page: Any, place: int, presses: tuple[Press, ...]) -> dict[str, Any]:
    panel = page.locator(PANEL).nth(place)
    *before, (role, name, key) = presses
    for other, label, value in before:
        field = panel.get_by_role(other, name=label, exact=True)
        field.fill(value)
        field.press("Tab")
    control = panel.get_by_role(role, name=name, exact=True)
    page.wait_for_timeout(400)  # what the fields said is settled by then
    control.focus()
    page.evaluate(WATCH, place)
    page.keyboard.press(key)
    page.wait_for_function("window.taoSeen.end !== null")
    last = None
    while last != (last := page.evaluate("window.taoSeen.end")):
        page.wait_for_timeout(250)  # the last change counts
    page.evaluate("window.taoStop()")
    seen: dict[str, Any] = page.evaluate("window.taoSeen")
    return seen


def _whole(name: str) -> dict[str, Any]:
    """All cells of a notebook in a kernel of its own, after a run that does not count."""
    import nbformat
    from nbclient import NotebookClient

    folder = library.folder("notebooks")
    for _ in range(2):
        notebook: Any = nbformat.read(folder / name, as_version=4)  # type: ignore[no-untyped-call]
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
        with client.setup_kernel(stderr=subprocess.DEVNULL):  # a kernel warns of things that no cell wrote
            taken = [0.0, 0.0]  # of the cell that makes kernels ready, of all others
            for k, cell in enumerate(notebook.cells):
                start = time.perf_counter()
                client.execute_cell(cell, k)
                taken["tao.ready(" not in cell.source] += time.perf_counter() - start
            kernel: Any = client.km
            peak = _peak_mb(kernel.provisioner.pid)
    warm_up, rest = (1000 * seconds for seconds in taken)
    return {"what": f"all cells of {name}", "median_ms": rest, "warm_up_ms": warm_up, "peak_mb": peak}


def _peak_mb(pid: int) -> float:
    """The most memory that a process has held so far, MB; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1000 if found else 0.0


def _first_figure(path: str, home: Path) -> dict[str, Any]:
    """From starting JupyterLab, with no kernel compiled, to the first figure of the first notebook."""
    home.mkdir()
    cold = {"NUMBA_CACHE_DIR": str(home / "cache")}
    with browser.page_of(path, home / "browser") as page:
        start = time.perf_counter()
        with browser.jupyterlab(home / "lab", cold) as lab:
            browser.open_notebook(page, lab, "00_start_here.ipynb")
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            page.locator(f"{PANEL} svg.marks").first.wait_for(timeout=browser.RUN_MS)
            taken = time.perf_counter() - start
    return {"what": "JupyterLab, nothing compiled, to the first figure", "median_ms": 1000 * taken}


NOTE = (
    f"from a key pressed in Chromium to the last change of the text, {REPEATS} presses; one core: server\n"
    "and kernel share it, the browser does not; progress shown: in how many of them a bar was seen;\n"
    "notebooks: a second run, in a kernel of its own; warm up: its cell with tao.ready; the last row: one run"
)


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed.

    >>> cells({"what": "x", "median_ms": 12.34, "jumps": 0})
    {'what': 'x', 'median_ms': '12', 'jumps': '0'}
    """
    return {name: x if isinstance(x, str) else f"{x:,.0f}" for name, x in row.items()}
