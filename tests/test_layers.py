"""The shape of the package: imports go strictly downwards, files and functions stay readable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tao

PACKAGE = Path(tao.__file__).parent
DEF = ast.FunctionDef | ast.AsyncFunctionDef

LEVELS = {  # the name of a subpackage stands for all modules in it
    **dict.fromkeys(("_jit", "checks", "shell", "workload_params"), 0),
    **dict.fromkeys(("_cold", "params", "commands", "kernels", "mixtures"), 1),
    **dict.fromkeys(("model", "durations"), 2),
    **dict.fromkeys(("changes", "codec", "bounds", "dp", "valuation", "readiness", "profiles"), 3),
    **dict.fromkeys(("exact", "library", "node"), 4),
    "assign": 5,
    **dict.fromkeys(("planners", "state", "history", "families"), 6),
    **dict.fromkeys(("byhand", "proof", "whatif", "worker", "view", "workloads"), 7),
    **dict.fromkeys(("explain", "policies", "ranking", "recipes"), 8),
    **dict.fromkeys(("host", "traces"), 9),
    **dict.fromkeys(("cluster", "engine"), 10),
    **dict.fromkeys(("invariants", "runner"), 11),
    "simulator": 12,
    **dict.fromkeys(("metrics", "quality", "playback", "statistics", "timeline"), 13),
    **dict.fromkeys(("jobs", "twins"), 14),
    "executors": 15,
    **dict.fromkeys(("sweeps", "bench"), 16),
    **dict.fromkeys(("_altair", "comparisons"), 17),
    **dict.fromkeys(("crowding", "experiments", "charts", "lab", "tuning"), 18),
    **dict.fromkeys(("live", "warmup"), 19),
    **dict.fromkeys(("panels", "exercises"), 20),
    "tao": 21,  # the public names, in tao/__init__.py
    "output": 17,
    "arguments": 22,
    "live_commands": 22,
    "trace_commands": 22,
    "cli": 23,
}
NEVER = 99
FROM_LEVEL = {  # at the top of a module; a function may import what it alone needs
    "pandas": LEVELS["metrics"],
    "altair": LEVELS["_altair"],
    **dict.fromkeys(("ipywidgets", "anywidget", "IPython", "vl_convert", "PIL"), LEVELS["panels"]),
    "tqdm": LEVELS["cli"],
    **dict.fromkeys(("ortools", "highspy"), NEVER),
    **dict.fromkeys(("http", "socket", "aiohttp"), LEVELS["live"]),
    **dict.fromkeys(("pydantic", "prometheus_client", "uvicorn"), LEVELS["live"]),
    **dict.fromkeys(("urllib", "httpx", "requests", "websockets", "openai", "tokenizers", "jinja2"), NEVER),
}
ONLY_LIVE = ("aiohttp", "yarl", "prometheus_client", "ssl")  # even inside functions

MAX_FILE, MAX_FUNCTION, MAX_PACKAGE = 400, 60, 39_300  # lines
LONG_FILES: dict[str, str] = {}  # module: why


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module, by its name below `tao`; `tao` is the package itself."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        ".".join(p for p in parts if p != "__init__") or "tao": ast.parse(path.read_text("utf-8"))
        for path, parts in names.items()
    }


def entry(module: str) -> str:
    """The module's key in LEVELS: its own name or that of its subpackage."""
    return module.partition(".")[0]


def internal(tree: ast.AST) -> Iterator[str]:
    """The modules of `tao` that are imported anywhere in a module, even inside its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in dotted:
            if name.partition(".")[0] == "tao":
                below = name.removeprefix("tao").lstrip(".")
                while below and below not in modules():  # the last part is a class or function
                    below = below.rpartition(".")[0]
                yield below or "tao"


def foreign_at_the_top(tree: ast.Module) -> set[str]:
    """The foreign packages that a module imports as soon as it is imported itself."""
    found = set()
    todo = list[ast.AST](tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif not isinstance(node, DEF | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return found - {"tao"}


def test_every_module_has_a_level():
    assert {entry(module) for module in modules()} <= set(LEVELS)


@pytest.mark.parametrize("module", modules())
def test_imports_go_strictly_downwards(module):
    upwards = [
        other
        for other in internal(modules()[module])
        if entry(other) != entry(module) and LEVELS[entry(other)] >= LEVELS[entry(module)]
    ]
    assert upwards == []


def test_no_imports_go_in_circles():
    TopologicalSorter({name: set(internal(tree)) - {name} for name, tree in modules().items()}).prepare()


@pytest.mark.parametrize("module", modules())
def test_big_libraries_stay_in_the_outer_shell(module):
    level = LEVELS[entry(module)]
    early = [name for name in foreign_at_the_top(modules()[module]) if level < FROM_LEVEL.get(name, 0)]
    assert early == []


def test_only_the_live_part_knows_the_network():
    knowing = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        for imported in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if imported.partition(".")[0] in ONLY_LIVE
    }
    assert {entry(name) for name in knowing} == {"live"}


def test_only_one_module_knows_numba():
    knowing = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(a.name.partition(".")[0] == "numba" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numba")
    ]
    assert set(knowing) == {"_jit"}


# Sizes


def lines(module: str) -> int:
    """The lines of a module's file."""
    path = PACKAGE.joinpath(*([] if module == "tao" else module.split(".")))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return len(path.read_text("utf-8").splitlines())


@pytest.mark.parametrize("module", modules())
def test_files_stay_short(module):
    if module in LONG_FILES:
        assert MAX_FILE < lines(module) <= 1.5 * MAX_FILE, "no exception is needed, or a greater one"
    else:
        assert lines(module) <= MAX_FILE


def test_the_package_stays_readable():
    assert sum(map(lines, modules())) <= MAX_PACKAGE


@pytest.mark.parametrize("module", modules())
def test_functions_stay_short(module):
    long = {
        node.name: node.end_lineno - body(node).lineno + 1
        for node in ast.walk(modules()[module])
        if isinstance(node, DEF) and node.end_lineno - body(node).lineno + 1 > MAX_FUNCTION
    }
    assert long == {}


def body(function: DEF) -> ast.stmt:
    """The first statement after signature and docstring, which may say as much as there is to say."""
    first, *rest = function.body
    return rest[0] if rest and ast.get_docstring(function) else first


# Docstrings


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The public classes, functions and methods; what a Protocol documents is said once, there."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    protocols = [c for c in classes if "Protocol" in map(ast.unparse, c.bases)]
    promised = {m.name for c in protocols for m in c.body if isinstance(m, DEF)}
    for node in tree.body:
        if isinstance(node, DEF | ast.ClassDef) and node.name[0] != "_":
            yield node.name, node
            for method in node.body if isinstance(node, ast.ClassDef) else []:
                if not isinstance(method, DEF) or method.name[0] == "_":
                    continue
                setter = any(ast.unparse(d).endswith(".setter") for d in method.decorator_list)
                if not setter and (node in protocols or method.name not in promised):
                    yield f"{node.name}.{method.name}", method


@pytest.mark.parametrize("module", modules())
def test_whatever_is_public_is_documented(module):
    assert ast.get_docstring(modules()[module]), "the module itself"
    bare = [name for name, node in public(modules()[module]) if not ast.get_docstring(node)]
    assert bare == []
