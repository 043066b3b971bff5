"""`import tao` is light, and works where nothing can be written.

Each check runs in a process of its own, because this one has imported everything already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from modes import OBEY_MODES, unwritable

import tao

PACKAGE = Path(tao.__file__).parent
LIVE = ("aiohttp", "yarl", "pydantic", "prometheus_client", "uvicorn", "tao.live")
HEAVY = ("pandas", "altair", "ipywidgets", "IPython", "matplotlib", "httpx", "requests", "tqdm", *LIVE)

PLAN = """
import tao._jit
from tao import Node, Session, Snapshot, plan
snapshot = Snapshot(0.0, (Node("n0", 10_000), Node("n1", 7_000)), (Session("a", 8_000), Session("b", 5_000)))
assert plan(snapshot, PLANNER).node_of() == {"a": "n0", "b": "n1"}
"""


def planning(planner):
    """Code that plans and checks the plan; each kernel that the planner needs costs a compilation."""
    return PLAN.replace("PLANNER", repr(planner))


def run(code, cwd=PACKAGE.parent, **environment):
    """Run the code in a new interpreter that sees the package in `cwd`; returns what it printed."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "NUMBA_DISABLE_JIT", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(cwd)!r})\n{code}"],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=kept | environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Light


def test_what_the_live_part_lacks_is_named():
    code = """
sys.modules["aiohttp"] = None
try:
    from tao.live import Client
except ImportError as error:
    print(error)
"""
    assert "pip install 'tao-scheduler[live]'" in run(code)


def test_importing_the_package_brings_no_table_chart_widget_or_http_library():
    loaded = json.loads(run("import json, tao; print(json.dumps(sorted(sys.modules)))"))
    assert "tao.model" in loaded
    assert [name for name in (*HEAVY, "numba") if name in loaded] == []


@pytest.mark.parametrize("module", ["tao.charts", "tao.panels"])
def test_charts_and_panels_build_no_parsers_of_addresses(module):
    code = f"import {module}; print('rfc3987_syntax' in sys.modules, 'altair' in sys.modules)"
    assert run(code) == "False True\n"
    pytest.importorskip("rfc3987_syntax")  # it is there, and can still be had
    code = f"import {module}, rfc3987_syntax; print(rfc3987_syntax.__name__)"
    assert run(code) == "rfc3987_syntax\n"


def test_planning_and_simulating_bring_none_either():
    code = f"""
{planning("bfd")}
tao.plan(tao.load("session_177"), "bfd")
tao.simulate("swe-lite", "sticky", nodes=1, workers=2, tasks=2)
print([name for name in {HEAVY} if name in sys.modules])
"""
    assert run(code) == "[]\n"


def test_only_a_table_brings_pandas():
    code = """
import tao
snapshot = tao.load("two_nodes_trap")
before = "pandas" in sys.modules
frame = snapshot.to_frame()
print(before, "pandas" in sys.modules, len(frame) == len(snapshot.sessions))
"""
    assert run(code) == "False True True\n"


def test_importing_writes_nothing_and_prints_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    assert run("import tao", HOME=str(home)) == ""
    assert list(home.iterdir()) == []


def test_the_public_names_are_there():
    assert [name for name in tao.__all__ if not hasattr(tao, name)] == []
    assert {"load", "plan", "simulate", "Snapshot", "Params", "InputError"} <= set(tao.__all__)


# Where nothing can be written


@pytest.fixture
def read_only(tmp_path):
    """A copy of the package, without compiled files, in which nothing can be written."""
    copy = tmp_path / "checkout"
    shutil.copytree(PACKAGE, copy / "tao", ignore=shutil.ignore_patterns("__pycache__"))
    with unwritable(copy):
        yield copy


def test_a_read_only_checkout_without_a_home_imports_and_plans(read_only):
    """Nothing is faked: no HOME, every folder that numba would cache in refuses to be written."""
    if not sys.platform.startswith("linux"):
        pytest.skip("dropping root's right to write anywhere is done the Linux way")
    code = f"""
{OBEY_MODES}
{planning("dp")}
assert tao.__file__.startswith({str(read_only)!r})
cached = [hasattr(k, "_cache") and type(k._cache).__name__ for k in tao._jit.KERNELS]
print(set(cached) <= {{False, "NullCache"}}, len(cached) > 3)
"""
    assert run(code, read_only, XDG_CACHE_HOME=str(read_only / "none")) == "True True\n"
    assert list(read_only.rglob("__pycache__")) == []


def test_where_numba_finds_no_place_for_a_cache_the_package_compiles_without():
    """The same as numba sees it: only its cache locator for zip files is left, which finds nothing."""
    code = f"""
{planning("bfd")}
print({{hasattr(k, "_cache") and type(k._cache).__name__ for k in tao._jit.KERNELS}})
"""
    out = run(code, NUMBA_CACHE_LOCATOR_CLASSES="ZipCacheLocator")
    assert out in ("{'NullCache'}\n", "{False}\n")


def test_with_a_place_for_a_cache_the_second_process_compiles_nothing(tmp_path):
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("NUMBA_DISABLE_JIT=1: nothing is compiled")
    code = f"""
{planning("bfd")}
print(sum(sum(k.stats.cache_misses.values()) for k in tao._jit.KERNELS))
"""
    first, second = (int(run(code, NUMBA_CACHE_DIR=str(tmp_path))) for _ in range(2))
    assert (first > 0, second) == (True, 0)
