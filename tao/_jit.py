"""The one place that imports numba: how kernels are compiled, cached and warmed up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import types
from numba.core.ccallback import CFunc
from numba.experimental import structref
from numba.extending import intrinsic, overload

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_POINTERS: dict[Any, Any] = {}
KERNELS: list[Callable[..., Any]] = []
"""Every kernel compiled through `njit`, in order of definition."""


def njit(function: F) -> F:
    """Compile a kernel: cached on disk where a place can be found, releasing the GIL as it runs."""
    try:
        kernel = cast(F, numba.njit(cache=True, nogil=True)(function))
        _watch_sources(kernel)
    except RuntimeError:  # numba found no folder to cache in (a read-only tree and no HOME)
        kernel = cast(F, numba.njit(nogil=True)(function))
    KERNELS.append(kernel)
    return kernel


@cache
def _stamp() -> str:
    """A hash over all source files that hold kernels; copies of the package have the same one."""
    texts = (f.read_bytes() for f in sorted(Path(__file__).parent.rglob("*.py")))
    return sha256(b"".join(text for text in texts if b"njit" in text)).hexdigest()


def _watch_sources(kernel: Any) -> None:
    """Kernels contain what they call, but numba looks only whether their own file has changed."""
    if hasattr(kernel, "_cache"):
        kernel._cache._cache_file._source_stamp = _stamp()


def pointer(kernel: Any, result: str, values: Any, numbers: int) -> Any:
    """A kernel as a value that compiled code can call without containing it; interpreted, the kernel itself.

    Its arguments are the NamedTuple `values`, by reference, and so many whole numbers.
    """
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return kernel
    if kernel in _POINTERS:
        return _POINTERS[kernel]
    kind = numba.typeof(values)  # type: ignore[no-untyped-call]
    kinds = [by_reference_type(kind), *[types.int64] * numbers]
    made = CFunc(kernel.py_func, (tuple(kinds), getattr(types, result)), locals={}, options={})
    try:
        made.enable_caching()
        _watch_sources(made)
    except RuntimeError:  # as in `njit`
        pass
    made.compile()
    _POINTERS[kernel] = made
    return made


def cached(kernel: Any) -> bool | None:
    """Whether the disk cache has this kernel for this machine; None where nothing can be cached."""
    if not hasattr(getattr(kernel, "_cache", None), "_cache_file"):
        return None
    machine = kernel.targetctx.codegen().magic_tuple()
    return any(key[1] == machine for key in kernel._cache._cache_file._load_index())


def cache_misses() -> int:
    """How many signatures of all kernels had to be compiled in this process; 0 if compiling is disabled."""
    return sum(sum(k.stats.cache_misses.values()) for k in KERNELS if hasattr(k, "stats"))


@structref.register
class Reference(types.StructRef):
    """The type of what `by_reference` makes."""


def by_reference(values: T) -> T:
    """A NamedTuple of arrays that compiled functions pass on as one pointer; interpreted, the tuple itself.

    As a tuple, each of its dozens of arrays would be copied in eight parts at every call, and compiling
    that takes minutes.
    """
    return values


@overload(by_reference)
def _by_reference(values):  # type: ignore[no-untyped-def] # numba compares the signatures
    if not isinstance(values, types.NamedTuple):
        return None
    reference = by_reference_type(values)
    lines = [
        f" made.{name} = {_copied(kind).format(f'values.{name}')}"
        for name, kind in zip(values.fields, values.types, strict=True)
    ]
    scope = {
        "new": structref.new,
        "reference": reference,
        "by_reference": by_reference,
        "borrowed": _borrowed,
    }
    exec("\n".join(["def copy(values):", " made = new(reference)", *lines, " return made"]), scope)
    return scope["copy"]


def by_reference_type(kind: Any) -> Reference:
    """The numba type that `by_reference` gives to a NamedTuple's type."""
    fields = [
        (name, by_reference_type(of) if _is_tuple(of) else of)
        for name, of in zip(kind.fields, kind.types, strict=True)
    ]
    return Reference(fields)  # type: ignore[no-untyped-call]


def _is_tuple(kind: Any) -> bool:
    return isinstance(kind, types.NamedTuple)


def _copied(kind: Any) -> str:
    """How `by_reference` copies a field; arrays lose their owner, so that nobody counts references."""
    if _is_tuple(kind):
        return "by_reference({0})"
    return "borrowed({0})" if isinstance(kind, types.Array) else "{0}"


@intrinsic
def _borrowed(typing_context, array):  # type: ignore[no-untyped-def]
    """The array without its owner; whoever called the compiled code keeps it alive."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        made = context.make_array(signature.args[0])(context, builder, values[0])
        made.meminfo = made.meminfo.type(None)
        made.parent = made.parent.type(None)
        return made._getvalue()

    return array(array), generate
