"""JupyterLab on this machine and Chromium to drive it; browser tests skip where either is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tao.bench import browser
from tao.bench.browser import Lab
from tao.model import InputError


def missing(what: str) -> None:
    """Skip with the reason; in CI a browser test that cannot run has failed."""
    if os.environ.get("CI"):
        pytest.fail(f"browser tests cannot run: {what}")
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium, once everything else that browser tests need is there too."""
    try:
        import axe_playwright_python.sync_playwright  # noqa: F401

        return browser.chromium()
    except (ImportError, InputError) as reason:
        missing(str(reason))
        raise


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with a copy of the notebooks, nobody's settings, and no network needed."""
    with browser.jupyterlab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def page(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page the size of a projector, in a browser that remembers nothing."""
    with browser.page_of(chromium, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="module")
def open_notebook(page: Any, lab: Lab) -> Callable[[str], Any]:
    """Opens a notebook as after a fresh download, waits for its kernel, and returns the page."""

    def opened(name: str) -> Any:
        browser.open_notebook(page, lab, name)
        return page

    return opened


@pytest.fixture(scope="module")
def run_all(page: Any) -> Callable[[], None]:
    """Runs all cells through the menu and waits for the first panel's figure."""
    return lambda: browser.run_all(page)
