"""Print what README.md has to say of a badge: the badge itself, or how to get one.

It is made from one line in pyproject.toml, `binder = "OWNER/REPO/TAG"` under `[tool.tao]`.
"""

import re
import sys
import tomllib
from pathlib import Path

FIRST = "notebooks/00_start_here.ipynb"
HOW = (
    "To get a badge, push this repository to GitHub with a tag, name them in the line `binder` of\n"
    "[pyproject.toml](pyproject.toml), and replace this sentence by what `python binder/badge.py` prints."
)


def wanted(project: str) -> str:
    """What README.md has to contain, by pyproject.toml's text; ValueError if it names no repository."""
    named = tomllib.loads(project).get("tool", {}).get("tao", {}).get("binder")
    if named is None:
        return HOW
    if not isinstance(named, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+/[\w.-]+", named):
        raise ValueError(f'binder is {named!r} in pyproject.toml; give "OWNER/REPO/TAG", as on GitHub')
    address = f"https://mybinder.org/v2/gh/{named}?urlpath=lab/tree/{FIRST}"
    return f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({address})"


if __name__ == "__main__":
    try:
        print(wanted((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")))
    except ValueError as error:
        sys.exit(str(error))
