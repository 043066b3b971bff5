"""An installed wheel works in an empty folder: data and notebooks travel with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The unpacked wheel; putting it on the path is what installing it does."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*build, str(ROOT)], check=True, cwd=folder, capture_output=True, timeout=180)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(installed, cwd, *argv):
    env = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_load_and_plan_work_from_the_wheel(installed, tmp_path):
    code = "import tao; print(tao.__file__); print(tao.plan(tao.load('dp_beats_short_first')).value.credit)"
    where, credit = run(installed, tmp_path, "-c", code).split()
    assert Path(where).is_relative_to(installed)
    assert credit == "16791"
    assert list(tmp_path.iterdir()) == []


def test_every_snapshot_and_notebook_is_in_the_wheel(installed):
    for name, pattern in (("data", "snapshots/*"), ("notebooks", "*.ipynb")):
        ours = sorted(p.name for p in (ROOT / name).glob(pattern))
        assert ours
        assert sorted(p.name for p in (installed / "tao" / f"_{name}").glob(pattern)) == ours
    assert (installed / "tao" / "py.typed").is_file()


def test_lab_copies_the_notebooks_once_and_opens_the_first(installed, tmp_path):
    pytest.importorskip("jupyterlab")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--no-browser",
        "--ip",
        "127.0.0.1",
        "--port",
        str(port),
        "--IdentityProvider.token=",
        "--allow-root",
    ]
    env = os.environ | {"PYTHONPATH": str(installed), "HOME": str(tmp_path / "home")}
    lab = subprocess.Popen(
        [sys.executable, "-m", "tao.cli", "lab", *options],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        answer = _when_up(f"http://127.0.0.1:{port}/api/contents/00_start_here.ipynb?content=0")
        assert b"00_start_here.ipynb" in answer
        copied = tmp_path / "tao-notebooks" / "00_start_here.ipynb"
        assert copied.is_file()
        assert copied.with_name("glossary.md").is_file()
    finally:
        os.killpg(lab.pid, 15)
        lab.communicate(timeout=30)
    copied.write_text("mine")
    run(installed, tmp_path, "-c", "from tao import library; library.own_notebooks()")
    assert copied.read_text() == "mine"


def _when_up(url, seconds=60.0):
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.read()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)
