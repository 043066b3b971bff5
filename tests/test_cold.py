"""The first minute on a machine: compiling elsewhere, interpreting here, and going over between two plans."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tao
from tao import _cold, _jit, assign, planners, proof, warmup
from tao.exact import search

pytestmark = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="NUMBA_DISABLE_JIT=1: nothing is compiled"
)
NAMES = "session_177", "starved_large", "quantum_hurts", "replay_00"
ENDLESS = "import time; time.sleep(600)"


@pytest.fixture
def compiling() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two compilers that do not end by themselves."""
    _cold.begin([ENDLESS, ENDLESS])
    yield _cold._compilers
    end(_cold._compilers)
    _cold.settle()


def end(compilers: list[subprocess.Popen[bytes]]) -> None:
    for compiler in compilers:
        compiler.kill()
        compiler.wait()


def all_plans() -> list[object]:
    """What every planner says of some snapshots, and the certificates."""
    snapshots = [tao.load(name) for name in NAMES if name in tao.snapshot_names()]
    found: list[object] = []
    for snapshot in snapshots:
        found += [planners.plan(snapshot, name) for name in planners.PLANNERS if name != "exhaustive"]
        found.append(proof.certificate(snapshot, planners.plan(snapshot, "exact")).words)
    return found


def test_the_interpreter_makes_the_same_plans_until_all_have_compiled() -> None:
    expected, kernel = all_plans(), search.solve
    signatures = {id(k): len(k.signatures) for k in _jit.KERNELS}  # type: ignore[attr-defined]
    _cold.begin([ENDLESS, ENDLESS])
    compilers = list(_cold._compilers)
    try:
        assert search.solve is kernel.py_func  # type: ignore[attr-defined]
        assert all_plans() == expected
        compilers[0].kill()
        compilers[0].wait()
        planners.plan(tao.load("session_177"))
        assert search.solve is kernel.py_func  # type: ignore[attr-defined] # one is still at work
    finally:
        end(compilers)
    assert planners.plan(tao.load("session_177")) in expected
    assert search.solve is kernel
    assert _cold._compilers == []
    assert all_plans() == expected
    assert signatures == {id(k): len(k.signatures) for k in _jit.KERNELS}  # type: ignore[attr-defined]


def test_only_the_main_thread_goes_over(compiling: list[subprocess.Popen[bytes]]) -> None:
    end(compiling)
    thread = threading.Thread(target=_cold.settle)
    thread.start()
    thread.join()
    assert _cold._compilers
    _cold.settle()
    assert not _cold._compilers


def test_a_module_imported_meanwhile_gets_the_compiled_kernels_as_well(
    compiling: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ModuleType("tao.late")
    monkeypatch.setitem(sys.modules, "tao.late", late)
    late.solve = search.solve  # type: ignore[attr-defined] # as `from tao.exact.search import solve` does
    end(compiling)
    _cold.settle()
    assert late.solve is search.solve  # type: ignore[attr-defined]
    assert hasattr(late.solve, "py_func")


def test_a_second_begin_changes_nothing(compiling: list[subprocess.Popen[bytes]]) -> None:
    before = list(compiling)
    _cold.begin([ENDLESS])
    assert compiling == before


def test_what_needs_compiled_kernels_waits_for_them() -> None:
    expected = tao.simulate("swe-lite", nodes=1, workers=2, tasks=2).turns
    _cold.begin(["import time; time.sleep(0.5)"])
    assert tao.simulate("swe-lite", nodes=1, workers=2, tasks=2).turns == expected
    assert not _cold._compilers


def test_without_waiting_ready_returns_while_others_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warmup, "JOBS", (ENDLESS,))
    monkeypatch.setattr(_cold, "is_cold", lambda kernels: True)
    try:
        tao.ready(wait=False)
        assert capsys.readouterr().out.startswith("tao is ready, and compiles its kernels in the background")
        assert len(_cold._compilers) == 1
    finally:
        end(_cold._compilers)
        _cold.settle()


def test_every_job_is_a_program_that_plans() -> None:
    """With warm kernels, so that it takes a second."""
    tao.ready()
    for job in warmup.JOBS:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", job],
            cwd=Path(tao.__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_fresh_cache_is_cold_and_a_filled_one_is_not(tmp_path: Path) -> None:
    tao.ready()
    assert not _cold.is_cold(warmup.LAST)
    code = "from tao import _cold, warmup; print(_cold.is_cold(warmup.LAST))"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(tao.__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


def test_where_nothing_can_be_cached_nothing_is_cold() -> None:
    assert _jit.cached(assign.solve_dp.py_func) is None  # type: ignore[attr-defined]
