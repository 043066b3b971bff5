"""What Binder does with the folder `binder`, without Docker: install, build, start, and compile nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from modes import OBEY_MODES, unwritable

ROOT = Path(__file__).parents[1]
LIMIT_S, START_S = 1200, 120

COUNT = """
import json, sys
import tao
from tao import _jit
from numba.core.registry import cpu_target
done = [kernel.stats for kernel in _jit.KERNELS]
_, cpu, features = cpu_target.target_context.codegen().magic_tuple()
print(json.dumps({
    "file": tao.__file__, "cpu": cpu, "features": features,
    "hits": sum(sum(s.cache_hits.values()) for s in done),
    "misses": sum(sum(s.cache_misses.values()) for s in done),
}))
"""
READY = "import tao; tao.ready(simulator=True, lab=True)"
PLAN = """
import tao
assert tao.plan(tao.load("two_nodes_trap"), "bfd").node_of() == {"anna": "n0", "ben": "n1"}
"""
LESSONS = """
import json, os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
os.chdir("notebooks")
for path in sorted(Path().glob("*.ipynb")):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"])).raise_error()
"""


Done = subprocess.CompletedProcess[str]


class Image(NamedTuple):
    """A repository that has been built, its Python environment, and its user's home."""

    repository: Path
    environment: Path
    home: Path


def python_of_binder() -> str:
    """A Python of the version that `binder/runtime.txt` names, and that can make environments."""
    version = (ROOT / "binder" / "runtime.txt").read_text().strip().replace("-", "")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    number = version.removeprefix("python")
    found = [sys.executable, version, *sorted(map(str, pyenv.glob(f"{number}.*/bin/python")))]
    if shutil.which("uv"):
        found += subprocess.run(
            ["uv", "python", "find", number], capture_output=True, text=True, check=False
        ).stdout.split()
    probe = f"import ssl, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != {number!r})"
    for each in filter(shutil.which, found):
        if subprocess.run([each, "-c", probe], capture_output=True, check=False).returncode == 0:
            return each
    if os.environ.get("CI"):
        pytest.fail(f"the test of Binder's image needs Python {number}")
    pytest.skip(f"no Python {number} here")


def copy_of_the_repository(target: Path) -> None:
    """What a clone would hold, with the times of now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [Path(name) for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    if not names:
        left = [name.rstrip("/") for name in (ROOT / ".gitignore").read_text().split()] + [".git"]
        shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*left), copy_function=shutil.copy)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def inside(image: Image, *command: str, cwd: Path | None = None, **more: str) -> Done:
    """Run a command as in the image; its status must be 0."""
    done = subprocess.run(
        command,
        cwd=cwd or image.repository,
        env=environment(image) | more,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def environment(image: Image) -> dict[str, str]:
    """The image's variables: nothing of this process that could change what Python or numba do."""
    ours = re.compile("NUMBA_|PYTHON|JUPYTER|IPYTHON|TAO_|XDG_|VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not ours.match(name)}
    return kept | {
        "HOME": str(image.home),
        "PATH": f"{image.environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "NB_PYTHON_PREFIX": str(image.environment),
    }


def started(image: Image, code: str, cwd: Path | None = None, **more: str) -> dict[str, Any]:
    """Run Python code through `binder/start`; returns what COUNT counted, and all that was said."""
    done = inside(image, "binder/start", "python", "-c", f"{code}\n{COUNT}", cwd=cwd, **more)
    *said, counted = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(counted)
    return result | {"said": "\n".join(said), "stderr": done.stderr}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The repository as Binder builds it: lock installed, `postBuild` run."""
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("NUMBA_DISABLE_JIT=1: nothing is compiled")
    python = python_of_binder()
    folder = tmp_path_factory.mktemp("binder")
    image = Image(folder / "repository", folder / "environment", folder / "home")
    image.home.mkdir()
    copy_of_the_repository(image.repository)
    subprocess.run([python, "-m", "venv", str(image.environment)], check=True, timeout=LIMIT_S)
    # Without dependencies: what is missing from the lock shall be missing from the image. The home is ours,
    # for it may say where packages come from.
    pip = ("install", "--quiet", "--no-input", "--no-deps", "--no-compile", "-r", "binder/requirements.txt")
    inside(image, "python", "-m", "pip", *pip, HOME=str(Path.home()))
    inside(image, "binder/postBuild")
    return image


@pytest.fixture
def read_only(image: Image, tmp_path: Path) -> Iterator[Path]:
    """A copy of the repository with nothing compiled, in which nothing can be written."""
    if not sys.platform.startswith("linux"):
        pytest.skip("dropping root's right to write anywhere is done the Linux way")
    copy_of_the_repository(tmp_path / "read_only")
    with unwritable(tmp_path / "read_only") as folder:
        yield folder


def test_the_lock_is_complete_and_fits_together(image):
    assert inside(image, "python", "-m", "pip", "check").stdout == "No broken requirements found.\n"


def test_jupyterlab_starts_with_the_notebook_of_the_badge_and_our_settings(image):
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    options = ("--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=")
    log = image.home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            ["binder/start", "jupyter", "lab", *options],
            cwd=image.repository,
            env=environment(image),
            stdout=out,
            stderr=out,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and server.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/api/status", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        asked = f"{url}/lab/api/settings/@jupyterlab/apputils-extension:notification"
        with urllib.request.urlopen(asked, timeout=60) as answer:
            properties = json.load(answer)["schema"]["properties"]
        first = f"{url}/api/contents/notebooks/00_start_here.ipynb?content=0"
        with urllib.request.urlopen(first, timeout=60) as answer:
            assert json.load(answer)["type"] == "notebook"
    except OSError as error:
        pytest.fail(f"{error}\n{log.read_text()[-2000:]}")
    finally:
        server.terminate()
        server.wait(30)
    assert properties["fetchNews"]["default"] == "false"
    assert properties["checkForUpdates"]["default"] is False


def test_no_notebook_compiles_anything(image):
    """All ten in one process, as IPython runs their cells; live ones on simulated servers."""
    counted = started(image, LESSONS)
    assert counted["file"] == str(image.repository / "tao" / "__init__.py")
    assert (counted["cpu"], counted["features"]) == ("generic", "")
    assert counted["misses"] == 0
    assert counted["hits"] > 0


def test_a_copy_elsewhere_with_other_times_compiles_nothing(image, tmp_path):
    copy = shutil.copytree(image.repository, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / "binder" / "start").chmod(0o755)
    counted = started(image, READY, copy)
    assert counted["file"] == str(copy / "tao" / "__init__.py")
    assert counted["said"] == "tao is ready: its kernels were in the disk cache"
    assert counted["misses"] == 0
    assert counted["hits"] > 0


def test_a_read_only_repository_caches_at_home(image, read_only, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    first, second = (started(image, OBEY_MODES + PLAN, read_only, HOME=str(home)) for _ in range(2))
    assert first["file"] == second["file"] == str(read_only / "tao" / "__init__.py")
    assert (first["misses"] > 0, second["misses"]) == (True, 0)
    assert second["hits"] > 0
    assert list((home / ".cache" / "numba").rglob("*.nbi"))


def test_without_any_place_to_write_it_plans_and_complains_of_nothing(image, read_only):
    counted = started(image, OBEY_MODES + PLAN, read_only, HOME=str(read_only / "none"))
    assert counted["file"] == str(read_only / "tao" / "__init__.py")
    assert counted["hits"] == 0
    assert (counted["said"], counted["stderr"]) == ("", "")
    assert list(read_only.rglob("__pycache__")) == []
