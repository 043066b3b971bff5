"""The folder that Binder builds from: complete, pinned, and in step with what the package needs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BINDER = ROOT / "binder"
EXTRAS = ("lab", "live", "kv-events", "zstd")


def name_of(requirement: str) -> str:
    """A distribution's normalized name."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[; ]", requirement)[0]).lower()


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """The lock: version by name."""
    lines = [x for x in (BINDER / "requirements.txt").read_text().splitlines() if x and x[0] != "#"]
    found = dict(line.split("==") for line in lines)
    assert len(found) == len(lines)
    return {name_of(name): version for name, version in found.items()}


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    """What pyproject says of the package."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_covers_all_that_the_package_and_its_extras_need(pins, project):
    needed = list(project["dependencies"])
    for extra in EXTRAS:
        needed += project["optional-dependencies"][extra]
    for requirement in needed:
        least = re.search(r">=([\d.]+)", requirement)
        assert least, requirement
        version = pins[name_of(requirement)]
        numbers = [tuple(int(x) for x in re.findall(r"\d+", text)) for text in (version, least[1])]
        assert numbers[0] >= numbers[1], requirement


def test_python_is_one_that_the_package_supports(project):
    least = re.fullmatch(r">=3\.(\d+)", project["requires-python"])
    chosen = re.fullmatch(r"python-3\.(\d+)\n", (BINDER / "runtime.txt").read_text())
    assert least
    assert chosen
    assert int(chosen[1]) >= int(least[1])


def test_scripts_can_run_and_use_the_same_environment():
    for name in ("postBuild", "start"):
        text = (BINDER / name).read_text()
        assert os.access(BINDER / name, os.X_OK)
        assert text.startswith("#!/usr/bin/env bash\n")
        assert ". binder/env.sh" in text
    assert (BINDER / "start").read_text().endswith('exec "$@"\n')
    assert "NUMBA_CPU_NAME=generic" in (BINDER / "env.sh").read_text()
    assert "pip install --no-deps -e ." in (BINDER / "postBuild").read_text()


def test_nothing_covers_the_notebook_or_writes_widget_state_into_it():
    settings = json.loads((BINDER / "overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert settings["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is False


# The badge


def script() -> Any:
    """The module `binder/badge.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("badge", BINDER / "badge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


badge = script()


def in_step(readme: str, project: str) -> bool:
    """Whether README has what pyproject asks for, the badge or how to get one, and not the other."""
    wanted, other = badge.wanted(project), readme
    for text in (wanted, badge.HOW):
        other = other.replace(text, "")
    how_only_if_wanted = wanted == badge.HOW or badge.HOW not in readme
    return wanted in readme and how_only_if_wanted and "mybinder.org/v2" not in other


def test_the_readme_has_the_badge_of_the_line_in_pyproject_or_says_how_to_get_one():
    assert in_step((ROOT / "README.md").read_text("utf-8"), (ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_badge_is_made_from_one_line():
    without, made = badge.wanted("[project]"), badge.wanted('[tool.tao]\nbinder = "someone/tao/v0.1"')
    assert without == badge.HOW
    assert made.endswith(
        "(https://mybinder.org/v2/gh/someone/tao/v0.1?urlpath=lab/tree/notebooks/00_start_here.ipynb)"
    )
    assert (ROOT / badge.FIRST).is_file()


def test_a_readme_out_of_step_is_found():
    named, bare = '[tool.tao]\nbinder = "someone/tao/v0.1"', "[tool.tao]"
    made = badge.wanted(named)
    texts = {"badge": f"a {made} b", "how": f"a {badge.HOW} b", "both": f"{made} {badge.HOW}", "none": "a"}
    texts["older"] = texts["badge"].replace("v0.1", "v0.0")
    assert {name for name, text in texts.items() if in_step(text, named)} == {"badge"}
    assert {name for name, text in texts.items() if in_step(text, bare)} == {"how"}


@pytest.mark.parametrize("name", ['"someone/tao"', '"https://github.com/someone/tao"', '"a/b/c d"', "7"])
def test_a_name_that_github_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match="OWNER/REPO/TAG"):
        badge.wanted(f"[tool.tao]\nbinder = {name}")
