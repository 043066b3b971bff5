"""The first minute on a machine: kernels compile in other processes, their Python source runs in their place.

Interpreted, a small snapshot is planned in milliseconds, which is enough to look at it.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tao import _jit

_compilers: list[subprocess.Popen[bytes]] = []


def is_cold(kernels: Iterable[Callable[..., Any]]) -> bool:
    """Whether one of these is to be compiled, and could be kept on disk."""
    return any(_jit.cached(kernel) is False for kernel in kernels)


def begin(jobs: Iterable[str]) -> None:
    """Run each of `jobs`, Python statements, in a process that fills the disk cache; interpret until then."""
    if _compilers:
        return
    kernels: list[Any] = _jit.KERNELS
    _exchange({id(kernel): kernel.py_func for kernel in kernels})
    home = Path(__file__).parents[1]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    _compilers.extend(subprocess.Popen([sys.executable, "-c", job], cwd=home, **quiet) for job in jobs)


def settle(wait: bool = False) -> None:
    """Go over to the compiled kernels, if they are there; `wait`: once they are.

    What calls kernels from Python begins with this. Only the main thread goes over, between two calls.
    """
    if not _compilers or threading.current_thread() is not threading.main_thread():
        return
    if wait:
        for compiler in _compilers:
            compiler.wait()
    if all(compiler.poll() is not None for compiler in _compilers):
        kernels: list[Any] = _jit.KERNELS
        _exchange({id(kernel.py_func): kernel for kernel in kernels})
        _compilers.clear()


def _exchange(new: dict[int, Any]) -> None:
    """Put `new`, by the id of what it stands for, into all modules, also those imported meanwhile."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "tao"]
    for namespace in map(vars, modules):
        namespace.update({name: new[id(x)] for name, x in namespace.items() if id(x) in new})


@atexit.register
def _stop() -> None:
    for compiler in _compilers:
        compiler.kill()
