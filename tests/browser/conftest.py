"""JupyterLab on this machine and Chromium to drive it; browser tests skip where either is missing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tao import library

CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
START_S = 90
CLICK_MS = 60_000
RUN_MS = 400_000  # the first notebook of a fresh checkout compiles all kernels


class Lab(NamedTuple):
    """A running server: its address, and the folder it serves."""

    url: str
    folder: Path


def missing(what: str) -> None:
    """Skip with the reason; in CI a browser test that cannot run has failed."""
    if os.environ.get("CI"):
        pytest.fail(f"browser tests need {what}")
    pytest.skip(f"no {what} here")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium, once everything else that browser tests need is there too."""
    for module in ("playwright.sync_api", "axe_playwright_python.sync_playwright", "jupyterlab"):
        try:
            __import__(module)
        except ImportError:
            missing(module)
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        missing("Chromium")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with a copy of the notebooks, nobody's settings, and no network needed."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    shutil.copytree(library.folder("notebooks"), folder)
    url = f"http://127.0.0.1:{_free_port()}"
    with (home / "log").open("w") as log:
        server = subprocess.Popen(_command(url, folder), env=_environment(home), stdout=log, stderr=log)
        try:
            _wait_for(url, server, home / "log")
            yield Lab(url, folder)
        finally:
            server.terminate()
            server.wait(30)


def _free_port() -> int:
    with closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _command(url: str, folder: Path) -> list[str]:
    options = {
        "--ip": "127.0.0.1",
        "--port": url.rpartition(":")[2],
        "--ServerApp.port_retries": "0",
        "--ServerApp.root_dir": str(folder),
        "--IdentityProvider.token": "",
    }
    given = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", *given]


def _environment(home: Path) -> dict[str, str]:
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}  # else a question covers the notebook
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    places = {
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",  # where signatures of trusted notebooks lie: none
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    return os.environ | {name: str(home / place) for name, place in places.items()} | {"TAO_OFFLINE": "1"}


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/api/status", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def page(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page the size of a projector, in a browser that remembers nothing."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=chromium,
            headless=True,
            args=FLAGS.split(),
            viewport={"width": 1280, "height": 720},
        )
        page = context.pages[0]
        page.set_default_timeout(CLICK_MS)
        yield page
        context.close()


@pytest.fixture(scope="module")
def open_notebook(page: Any, lab: Lab) -> Callable[[str], Any]:
    """Opens a notebook as after a fresh download, waits for its kernel, and returns the page."""

    def opened(name: str) -> Any:
        page.goto(f"{lab.url}/lab/tree/{name}?reset")
        page.get_by_text("| Idle").wait_for()
        return page

    return opened


@pytest.fixture(scope="module")
def run_all(page: Any) -> Callable[[], None]:
    """Runs all cells through the menu and waits for the first panel's figure."""

    def run() -> None:
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.locator(".tao-panel svg.marks").first.wait_for(timeout=RUN_MS)
        page.get_by_text("| Idle").wait_for(timeout=RUN_MS)

    return run
