"""What kind of work a tool call is: the command classes, as data that a user can extend."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tao import shell

CLASSES = (
    *("subagent", "sleep", "install", "test", "python", "web", "build", "other"),
    *("git", "edit", "search", "read", "bookkeeping"),
)
"""The classes of a tool call; of several in one command the first here decides (ours).

A stated sleep comes before whatever surrounds it, as in the recordings; the rest goes from tens of seconds
down to hundredths by the recorded 90th percentiles, with known programs before unknown ones ("other").
"""


def _by_key(keys_of: Mapping[str, str]) -> dict[str, str]:
    return {key: name for name, keys in keys_of.items() for key in keys.split(", ")}


COMMAND_CLASSES = _by_key(
    {
        "": "cd, pushd, popd, export, set, unset, shopt, source, ., alias, local, echo, printf, pwd, true, "
        "false, :, [, test, exit, return, break, continue, wait, trap, umask, read, date, kill, pkill, "
        "conda activate, conda deactivate, nvm use",
        "read": "cat, head, tail, less, more, nl, bat, sed, awk, sort, uniq, cut, tr, diff, cmp, file, stat, "
        "du, xxd, od, strings, jq, column, md5sum, sha256sum, python -m json.tool",
        "search": "ls, find, grep, egrep, fgrep, zgrep, rg, ag, fd, tree, wc, locate, which, type, command",
        "edit": "sed -i, sed --in-place, perl -i, awk >, sed >, cat >, echo >, printf >, : >, >, tee, touch, "
        "mkdir, rmdir, rm, mv, cp, ln, chmod, chown, patch, truncate, dd, vi, vim, nano, apply_patch",
        "python": "python, pypy, ipython, jupyter, coverage, node, ts-node, tsx, deno, bun, ruby, perl, php, "
        "lua, julia, Rscript, java, *.py, *.js",
        "git": "git",
        "build": "make, cmake, ninja, meson, configure, gcc, g++, cc, c++, clang, clang++, nvcc, ld, rustc, "
        "javac, tsc, cargo, go build, go run, go vet, mvn, gradle, gradlew, ant, dotnet build, yarn build, "
        "npm run build, pnpm build, webpack, vite build, python setup.py, python -m build, uv build, "
        "poetry build, docker build, docker compose build, pdflatex, latexmk",
        "install": "pip install, pip download, python -m pip install, python -m venv, virtualenv, uv add, "
        "python setup.py install, python setup.py develop, uv pip install, uv sync, uv venv, pipx install, "
        "pipenv install, poetry install, poetry add, conda install, conda create, conda env, mamba install, "
        "apt-get, apt, apk add, yum, dnf, brew install, npm install, npm ci, npm i, yarn install, yarn add, "
        "pnpm install, pnpm add, gem install, bundle install, cargo install, cargo add, cargo fetch, go get, "
        "go install, go mod, composer install, rustup",
        "test": "pytest, py.test, tox, nox, nosetests, runtests.py, bin/test, jest, vitest, mocha, rspec, "
        "phpunit, ctest, rake test, python -m pytest, python -m unittest, python -m nose, python -m tox, "
        "python -m doctest, python runtests.py, python bin/test, python manage.py test, manage.py test, "
        "python setup.py test, coverage run -m pytest, coverage run -m unittest, node --test, bun test, "
        "npm test, npm run test, yarn test, pnpm test, playwright test, cargo test, cargo nextest, go test, "
        "make test, make check, mvn test, mvn verify, gradle test, gradlew test, dotnet test",
        "web": "curl, wget, http, gh, ssh, scp, rsync, ping, nc",
        "sleep": "sleep",
    }
)
"""Class by program, or by a program and words that follow it in this order: ours, from what agents send.

`-x` also stands for a group of short options with an x in it, `*.py` for any program of that suffix, a
last `>` for output into a file. The key with most words wins, of equals the last one, so what you add
prevails. Class "" leaves the choice to the other programs.
"""

TOOL_CLASSES = _by_key(
    {
        "read": "Read, NotebookRead, read_file, open_file, view, view_image, str_replace_editor view, "
        "str_replace_based_edit_tool view",
        "search": "Grep, Glob, LS, grep_search, file_search, codebase_search, search_files, list_dir",
        "edit": "Edit, MultiEdit, Write, NotebookEdit, edit_file, write_file, create_file, write_to_file, "
        "replace_in_file, apply_patch, str_replace_editor, str_replace_based_edit_tool",
        "python": "execute_ipython_cell, execute_python, python",
        "web": "WebFetch, WebSearch, web_search, fetch, fetch_webpage, browser",
        "subagent": "Task, Agent, spawn_agent, new_task",
        "bookkeeping": "TodoWrite, TodoRead, TaskCreate, TaskUpdate, TaskList, TaskGet, TaskOutput, "
        "TaskStop, BashOutput, KillShell, KillBash, ExitPlanMode, Skill, update_plan, think, finish, submit",
    }
)
"""Class by name of an agent's tool that is no shell (or name and command): ours, from recorded agents."""


_VALUE = r"\$(?:[A-Za-z_]\w*+|[0-9?@#*!$-](?=[\s/.:;|&'\"=,-]|\Z))"  # an expansion without brackets
_WORD = rf"(?:[^\s\\'\"`$;&|<>(){{}}!#\[]|{_VALUE}|'[^']*+'|\"(?:[^\"\\`$]|{_VALUE})*+\")++"
_INTO = r"(?:[12]?>&[12](?![^\s;|&])|(?:[12]?>>?|&>>?)(?![&(>|])[ \t]*+(?!\d+[<>])"
_PIECE = rf"{_INTO}{_WORD})|{_WORD}|&&|\|\|(?!&)|[;|](?![;&])|\n"
_ODD_INTO = re.compile(r"(?<![^\s;|&])(?:[03-9]|\d\d+)[<>]")  # files other than output and errors
_PIECES = re.compile(rf"{_PIECE}|[ \t]++")
_QUOTES = re.compile(r"'[^']*+'|\"[^\"]*+\"")
_HEREDOC = re.compile(r"<<[ \t]*+('?)(\w++)\1([^\n'\"`<]*+)\n(?:.*?\n)??\2(?=\n|\Z)", re.DOTALL)
_QUOTED_OR_DIGIT = re.compile(r"['\"`]|\d\Z")
_NOT_PLAIN = frozenset(
    ("if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "function")
).union(("time", "wait", "sh", "bash", "dash", "zsh"), (name.partition(" ")[0] for name in shell.WRAPPERS))


def _plain(command: str) -> list[list[str]]:
    """What the parser finds in a command of words, quotes, pipes and lists; empty: leave it to the parser."""
    if len(command) > shell.MAX_CHARS:
        return []
    at = command.find("<<")
    if at >= 0 and not _QUOTED_OR_DIGIT.search(command, 0, at) and (here := _HEREDOC.match(command, at)):
        command = command[:at] + here[3] + command[here.end() :]  # without the text, which does not matter
    pieces = _PIECES.findall(command)
    if "".join(pieces) != command or ((">" in command or "<" in command) and _ODD_INTO.search(command)):
        return []
    programs: list[list[str]] = [[]]
    marks: list[str] = []
    last = "\n"
    for piece in pieces:
        if piece.isspace() and piece != "\n":
            continue
        if piece in ("&&", "||", "|", ";", "\n"):
            programs[-1] += marks
            if not programs[-1]:
                if piece == "\n" or (piece == ";" and last == "\n"):
                    continue  # an empty line
                return []
            marks, last = [], piece
            programs.append([])
        elif ">" in piece and piece.lstrip("12&")[:1] == ">":
            if not programs[-1]:
                return []
            target = piece.lstrip("12&>").lstrip()
            marks += [] if piece[0] == "2" or ">&" in piece or target.startswith("/dev/") else [">"]
        else:
            quoted = "'" in piece or '"' in piece
            programs[-1].append(_QUOTES.sub(lambda m: m[0][1:-1], piece) if quoted else piece)
    programs[-1] += marks
    if not programs[-1] and last in (";", "\n"):
        programs.pop()
    firsts = [words[0] if words else "if" for words in programs]
    return (
        [] if any("=" in f or f[0] in ">$" or shell.base(f) in _NOT_PLAIN for f in firsts if f) else programs
    )


class Classes:
    """A table of command classes, indexed by program; call it with a shell command for its class.

    >>> Classes(COMMAND_CLASSES | {"bazel test": "test"})("cd x && bazel test //...")
    'test'
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self._fits: dict[str, list[tuple[int, list[str], str, frozenset[str]]]] = {}
        self._cached = lru_cache(maxsize=4096)(self._found)
        for place, (key, name) in enumerate(table.items()):
            program, *words = key.split()
            said = frozenset(word for word in words if not (len(word) == 2 and word[0] == "-"))
            self._fits.setdefault(program, []).append((place, words, name, said))
        self._alone = {  # programs of whose other words nothing depends
            program: fits[-1][2]
            for program, fits in self._fits.items()
            if "." not in program and not program[-1:].isdigit() and not any(words for _, words, _, _ in fits)
        }

    def __call__(self, command: str) -> str:
        return self._cached(command) if len(command) <= 256 else self._found(command)

    def _found(self, command: str) -> str:
        plain = _plain(command)
        for programs in (plain,) if plain else shell.programs(command):
            found = [name for words in programs if (name := self._class_of(words))]
            if found:
                return min(found, key=lambda name: CLASSES.index(name) if name in CLASSES else -1)
        return "other"

    def _class_of(self, words: Sequence[str]) -> str:
        if (alone := self._alone.get(words[0])) is not None:
            return alone
        program = shell.base(words[0])
        said: set[str] = set()
        best: tuple[int, int, str] = (-1, -1, "other")  # most words, of equals the last one
        for name in {words[0], program, program.rstrip("0123456789.-"), "*." + program.rpartition(".")[2]}:
            for place, wanted, found, needed in self._fits.get(name, ()):
                if (len(wanted), place) <= best[:2]:
                    continue
                if needed and not said:
                    said = {*words, *map(shell.base, words)}
                if not wanted or (needed <= said and _follow(wanted, words)):
                    best = len(wanted), place, found
        return best[2]


_ours = Classes(COMMAND_CLASSES)


def classify(command: str, table: Mapping[str, str] = COMMAND_CLASSES) -> str:
    """The class of a shell command: of the programs in it, the one whose class comes first in `CLASSES`.

    Source: ours. Extend the table for programs of your own; a class that is not in `CLASSES` decides over
    all others.

    >>> classify("cd /repo && timeout 60 python -m pytest -q | tail -5"), classify("sed -i s/a/b/ x.py")
    ('test', 'edit')
    """
    return (_ours if table is COMMAND_CLASSES else Classes(table))(command)


def tool_class(tool: str, command: str | None) -> str:
    """The class of an agent's tool call: by the tool's name (`TOOL_CLASSES`), else by its shell command.

    Source: ours.

    >>> tool_class("Grep", None), tool_class("Bash", "git status"), tool_class("str_replace_editor", "view")
    ('search', 'git', 'read')
    """
    named = TOOL_CLASSES.get(f"{tool} {command}") or TOOL_CLASSES.get(tool)
    return named or classify(command or "")


def _follow(wanted: Sequence[str], words: Sequence[str]) -> bool:
    """Whether all `wanted` words are found after the program, in this order."""
    rest = iter(words[1:])
    return all(any(_same(want, word) for word in rest) for want in wanted)


def _same(want: str, word: str) -> bool:
    if want in (word, shell.base(word)):
        return True
    letter = len(want) == 2 and want[0] == "-" and word[:1] == "-" and re.match(rf"-\w*{want[1]}", word)
    return bool(letter)
