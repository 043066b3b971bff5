"""JupyterLab on this machine and Chromium to drive it, for `tao bench notebooks` and for browser tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tao import library
from tao.checks import InputError

CHROMIUM = "chromium", "chromium-browser", "google-chrome-stable", "google-chrome"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PROJECTOR: Any = {"width": 1280, "height": 720}  # px
NEEDED = "playwright.sync_api", "jupyterlab"
START_S = 90
CLICK_MS = 60_000
RUN_MS = 400_000  # the first notebook of a fresh checkout compiles all kernels


class Lab(NamedTuple):
    """A running server: its address, and the folder it serves."""

    url: str
    folder: Path


def chromium() -> str:
    """The path of Chromium; raises `InputError` if it, or what drives it, is not installed."""
    for module in NEEDED:
        try:
            __import__(module)
        except ImportError:
            raise InputError(
                f"{module.partition('.')[0]} is not installed here; pip install 'tao-scheduler[lab,browser]'"
            ) from None
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        raise InputError(f"no Chromium here ({', '.join(CHROMIUM)}); install one")
    return found


@contextmanager
def jupyterlab(
    home: Path, environment: Mapping[str, str] | None = None, cores: set[int] | None = None
) -> Iterator[Lab]:
    """JupyterLab in the empty folder `home`: a copy of the notebooks, nobody's settings, no network.

    `cores`: the processor cores that the server and its kernels may use, where the system can tell them.
    """
    folder = home / "notebooks"
    shutil.copytree(library.folder("notebooks"), folder)
    url = f"http://127.0.0.1:{_free_port()}"
    pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, cores)} if cores else {}
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            _command(url, folder),
            env=_environment(home) | dict(environment or {}),
            stdout=log,
            stderr=log,
            **pinned,  # type: ignore[call-overload]
        )
        try:
            _wait_for(url, server, home / "log")
            yield Lab(url, folder)
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def page_of(path: str, profile: Path) -> Iterator[Any]:
    """A page the size of a projector, in the Chromium at `path`, whose memory is the folder `profile`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            profile, executable_path=path, headless=True, args=FLAGS.split(), viewport=PROJECTOR
        )
        page = context.pages[0]
        page.set_default_timeout(CLICK_MS)
        yield page
        context.close()


def open_notebook(page: Any, lab: Lab, name: str) -> None:
    """Open a notebook as after a fresh download, and wait for its kernel."""
    page.goto(f"{lab.url}/lab/tree/{name}?reset")
    page.get_by_text("| Idle").wait_for()


def run_all(page: Any) -> None:
    """Run all cells through the menu, and wait for the first panel's figure."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".tao-panel svg.marks").first.wait_for(timeout=RUN_MS)
    page.get_by_text("| Idle").wait_for(timeout=RUN_MS)


def _free_port() -> int:
    from socket import socket

    with closing(socket()) as s:
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
    from socket import create_connection

    deadline = time.monotonic() + START_S
    port = int(url.rpartition(":")[2])
    while time.monotonic() < deadline and server.poll() is None:
        try:
            create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise InputError(f"JupyterLab did not start; its last words: {log.read_text()[-500:]}")
