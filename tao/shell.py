"""What a shell command tells about its own length: how long it asks to sleep, and which programs it runs.

A recursive descent over the everyday part of bash adds up the sleeping on its way (`sleep_seconds`) and
notes the programs it meets (`programs`). Nothing is ever run, and any string is accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import dropwhile, pairwise
from typing import NamedTuple

MAX_CHARS = 131_072  # Linux execve, MAX_ARG_STRLEN: no longer text reaches a shell as one argument
MAX_DEPTH = 30  # ours: commands within commands; beyond what people write, far below Python's limit

# Programs that run another one: how many operands come before it, and which options take a value.
WRAPPERS = {
    "timeout": (1, "-k -s --kill-after --signal"),
    "sudo": (0, "-u -g -h -p -C -D -R -T -r -t --user --group"),
    "env": (0, "-u -C --unset --chdir"),
    "xargs": (0, "-n -I -P -L -d -s -a -E"),
    "nice": (0, "-n --adjustment"),
    "stdbuf": (0, "-i -o -e"),
    "time": (0, "-f -o"),
    "exec": (0, "-a"),
    "uv run": (0, "-p --python --with --extra --group"),
    "conda run": (0, "-n -p --name --prefix"),
} | dict.fromkeys(("nohup", "setsid", "npx", "poetry run", "pipenv run", "bundle exec"), (0, ""))


def sleep_seconds(command: str) -> float | None:
    """Seconds that a shell command waits in the foreground through `sleep`, None if not at all or not known.

    Commands are taken to succeed, conditions are not guessed, and a wait without end is `math.inf`, that of a
    loop on `while true` included.
    Source: TAO paper (analysis of sleep commands); grammar ours.

    >>> sleep_seconds("cd app && for i in 1 2 3; do sleep 0.5m; done"), sleep_seconds("timeout 10 sleep 60")
    (90.0, 10.0)
    >>> print(sleep_seconds("sleep $N"), sleep_seconds("sleep 5 &"), sleep_seconds("sleep infinity"))
    None None inf
    """
    if len(command) > MAX_CHARS:
        return None
    return seconds if (seconds := _parsed(command)[0]) > 0 else None


def programs(command: str) -> tuple[list[list[str]], list[list[str]]]:
    """The programs of a command with their words: those that hold it up, and those in the background."""
    return _parsed(command[:MAX_CHARS])[1:]


@lru_cache(maxsize=64)
def _parsed(command: str) -> tuple[float, list[list[str]], list[list[str]]]:
    """The seconds, the programs, and those in the background; nothing where the text cannot be read."""
    parser = _Parser(command)
    try:
        return parser.commands(""), parser.programs, parser.behind
    except _UnclearError:
        return 0.0, [], []


def base(path: str) -> str:
    """The name of a program without its folder."""
    return path.rpartition("/")[2]


class _UnclearError(Exception):
    """The text is no shell command that we can read."""


class _Token(NamedTuple):
    source: str  # as written; empty at the end of the text
    text: str = ""  # a word without its quotes, expansions as written
    is_word: bool = False
    known: bool = True  # no expansion in it
    inner_s: float = 0.0  # what its command substitutions sleep


_TO_FILE = _Token(">", ">")  # stands among the words of a program that writes its output into a file

# Possessive repeats (`*+`) keep every match linear in the length of the text.
_BLANK = re.compile(r"(?:[ \t\r]|\\\n|#[^\n]*+)*+")
_ARITHMETIC = r"\(\([^()]*+(?:\([^()]*+\)[^()]*+)*+\)\)"
_OPERATOR = re.compile(
    rf"{_ARITHMETIC}|\[\[\s(?:\S|\s(?!\]\]))*+(?:\s\]\]|\Z)|\d*+(?:<<<|<<-?|<>|<&|<(?!\()|>>|>&|>\||>(?!\())|"
    r"&>>?|&&|\|\||\|&|;;&?|;&|[;&|()\n]"
)
_EXPANSION = (
    rf'(?P<quote>")|(?P<value>\${_ARITHMETIC}|\$\{{[^}}]*+(?:\}}|\Z)|\$[\w@*#?$!-])|'
    r"`(?P<ticks>(?:[^`\\]|\\.)*+)`|\\(?P<joined>\n)|"
)
_QUOTED = re.compile(
    _EXPANSION + r'(?P<inner>\$\()|\\(?P<escaped>["\\$`])|(?P<plain>[^"\\$`]++|\\|\$)', re.DOTALL
)
_BARE = re.compile(
    _EXPANSION + r"(?P<inner>[$<>]\()|(?P<list>(?<==)\([^()]*+\))|\\(?P<escaped>.)|'(?P<single>[^']*+)'|"
    r"(?P<plain>[^ \t\r\n\\'\"`$;&|<>()]++|\$)",
    re.DOTALL,
)
_SIMPLE = re.compile(r"(?!\d+[<>])[\w./:=+,@%^~*?-]++(?=[ \t\n;|&)]|\Z)")  # most words, read at once
_CLOSING = ("", ")", "}", "then", "do", "done", "elif", "else", "fi")


class _Parser:
    """One method for each rule of the grammar; it returns the seconds slept, nan where nobody can know."""

    def __init__(self, text: str, at: int = 0, depth: int = 0) -> None:
        self.text, self.at, self.depth = text, at, depth
        self.programs: list[list[str]] = []
        self.behind: list[list[str]] = []  # those in the background
        self.heredocs: list[re.Pattern[str]] = []
        self.token = _Token(";")

    def commands(self, *ends: str) -> float:
        """And-or lists, up to one of the closing words `ends`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _UnclearError
        now = jobs = 0.0  # when the foreground, and when the last background job is done
        self.skip_lines()
        while self.token.source not in _CLOSING:
            start, before = now, len(self.programs)
            now = self.and_or(start, jobs)
            if self.token.source == "&":
                now, jobs = start, _most(jobs, now)
                self.behind += self.programs[before:]
                del self.programs[before:]
            if not self.take(";", "\n", "&") and self.token.source not in _CLOSING:
                raise _UnclearError
            self.skip_lines()
        self.depth -= 1
        if self.token.source not in ends:
            raise _UnclearError
        return now

    def and_or(self, now: float, jobs: float) -> float:
        """The time when a list that begins `now` is done; what follows `||` is taken not to run."""
        connector = "&&"
        while connector:
            self.skip_lines()
            start = _most(now, jobs) if self.token.source == "wait" else now
            busy = self.pipeline()
            now = start + busy if connector == "&&" else now
            connector = self.take("&&", "||")
        return now

    def pipeline(self) -> float:
        while self.take("!", "time"):
            self.take("-p")
        busy = self.command()
        while self.take("|", "|&"):
            self.skip_lines()
            busy = _most(busy, self.command())
        return busy

    def command(self) -> float:
        if self.take("("):
            busy = self.closed(")")
        elif self.take("{"):
            busy = self.closed("}")
        elif self.take("if"):
            busy = self.branches()
        elif opening := self.take("while", "until"):
            busy = self.repeated(opening)
        elif self.take("for"):
            busy = self.counted()
        elif self.token.source[:2] in ("((", "[["):
            self.advance()
            busy = 0.0
        else:
            return self.simple()
        while self.redirect([]):
            pass
        return busy

    def closed(self, end: str) -> float:
        busy = self.commands(end)
        self.advance()
        return busy

    def branches(self) -> float:
        """`if`: the first condition runs, the rest may."""
        busy, maybe = self.closed("then"), self.commands("elif", "else", "fi")
        while not self.take("fi"):
            self.advance()
            maybe += self.commands("then", "elif", "else", "fi")
        return busy + _times(math.nan, maybe)

    def repeated(self, opening: str) -> float:
        before = len(self.programs)
        busy = self.closed("do")
        forever = opening == "while" and self.programs[before:] in ([["true"]], [[":"]])
        return _times(math.nan, busy) + self.body(math.inf if forever else math.nan)

    def counted(self) -> float:
        turns, inner_s = _turns(self.token.source), 0.0
        self.advance()
        if self.take("in"):
            turns = 0
            while self.token.is_word:
                turns += _items(self.token)
                inner_s += self.token.inner_s
                self.advance()
        return inner_s + self.closed("do") + self.body(turns)

    def body(self, turns: float) -> float:
        """The body of a loop; with a way out in it nobody knows how often it repeats."""
        before = len(self.programs)
        busy = self.closed("done")
        leaves = any(words[0] in ("break", "continue", "exit", "return") for words in self.programs[before:])
        return _times(math.nan if leaves else turns, busy)

    def simple(self) -> float:
        """One program with its words, assignments and redirections."""
        words: list[_Token] = []
        marks: list[_Token] = []
        start = self.token
        while self.token.is_word or self.redirect(marks):
            if self.token.is_word:
                words.append(self.token)
                self.advance()
        if self.token is start:
            raise _UnclearError
        return sum(w.inner_s for w in words) + self.run(words + marks)

    def run(self, words: Sequence[_Token]) -> float:
        """One program; `sudo`, `timeout` and the like make way for the one they run."""
        words, limit_s = _without_assignments(words), math.inf
        for _ in range(MAX_DEPTH):
            name = " ".join(base(w.text) for w in words[:2])
            name = name if name in WRAPPERS else name.partition(" ")[0]
            if name not in WRAPPERS:
                break
            operands, valued = WRAPPERS[name]
            words = _past_options(words[len(name.split()) :], valued.split())
            if name == "timeout":
                limit_s = _least(limit_s, _duration(words[:1]) or math.inf)  # `timeout 0` sets no limit
            if name == "xargs" and words:  # it adds operands, and runs the program who knows how often
                limit_s, words = math.nan, [*words, _Token("", known=False)]
            words = _without_assignments(words[operands:])
        busy = self.unwrapped(words)
        return _least(busy, limit_s) if busy else 0.0

    def unwrapped(self, words: Sequence[_Token]) -> float:
        program = base(words[0].text) if words else ""
        if program in ("sh", "bash", "dash", "zsh"):
            for option, script in pairwise(words):
                if re.fullmatch(r"-\w*c\w*", option.text):
                    return self.nested(script.text, 0, "")[0]
        if words:
            self.programs.append([w.text for w in words])
        return _duration(words[1:]) or 0.0 if program == "sleep" else 0.0

    def nested(self, text: str, at: int, end: str) -> tuple[float, int]:
        """A shell within the shell: the seconds it sleeps, and where in `text` it ends."""
        inner = _Parser(text, at, self.depth)
        busy = inner.commands(end)
        self.programs += inner.programs
        self.behind += inner.behind
        return busy, inner.at

    def redirect(self, marks: list[_Token]) -> bool:
        """Past one redirection, if there is one; marks output that goes into a file."""
        operator = self.token.source
        if self.token.is_word or operator.lstrip("&0123456789")[:1] not in ("<", ">"):
            return False
        self.advance()
        target = self.token
        if not target.is_word:
            raise _UnclearError
        if operator.lstrip("0123456789") in ("<<", "<<-"):
            tabs = r"\t*" if operator.endswith("-") else ""
            self.heredocs.append(re.compile(rf"^{tabs}{re.escape(target.text)}$", re.MULTILINE))
        to_file = operator.removeprefix("1") in (">", ">>", ">|", "&>", "&>>")
        if to_file and not target.text.startswith("/dev/"):
            marks.append(_TO_FILE)
        self.advance()
        return True

    def advance(self) -> None:
        """Read the next token; a here-document that begins after the end of the line comes before it."""
        if self.token.source == "\n" and self.heredocs:
            end = self.heredocs.pop(0).search(self.text, self.at)
            self.at = end.end() if end else len(self.text)
        if (blank := _BLANK.match(self.text, self.at)) and blank.end() > self.at:
            self.at = blank.end()
        if simple := _SIMPLE.match(self.text, self.at):
            self.at, word = simple.end(), simple[0]
            self.token = _Token(word, word, True)
        elif operator := _OPERATOR.match(self.text, self.at):
            self.at = operator.end()
            self.token = _Token(operator[0])
        else:
            self.token = self.word()

    def word(self) -> _Token:
        start, quoted, known, inner_s, text = self.at, False, True, 0.0, list[str]()
        while m := (_QUOTED if quoted else _BARE).match(self.text, self.at):
            self.at = m.end()
            kind = m.lastgroup or ""
            if kind == "quote":
                quoted = not quoted
            elif kind in ("inner", "ticks", "value", "list"):
                known = False
                if kind == "inner":
                    busy, self.at = self.nested(self.text, self.at, ")")
                    inner_s += busy
                if kind == "ticks":
                    inner_s += self.nested(re.sub(r"\\([\\`$])", r"\1", m[kind]), 0, "")[0]
                text.append(self.text[m.start() : self.at])
            elif kind != "joined":
                text.append(m[kind])
        if quoted or self.at == start < len(self.text):
            raise _UnclearError
        return _Token(self.text[start : self.at], "".join(text), self.at > start, known, inner_s)

    def skip_lines(self) -> None:
        while self.take(";", "\n"):
            pass

    def take(self, *sources: str) -> str:
        """Past the current token if it is one of these; returns it, or an empty string."""
        source = self.token.source
        if source not in sources:
            return ""
        self.advance()
        return source


def _without_assignments(words: Sequence[_Token]) -> Sequence[_Token]:
    return list(dropwhile(lambda w: re.match(r"\w+\+?=", w.text), words))


def _past_options(words: Sequence[_Token], valued: Sequence[str]) -> Sequence[_Token]:
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in valued else 1
    return words[at:]


_INT = r"(-?\d{1,9})"
_DURATION = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|infinity)([smhd]?)", re.ASCII)
_UNIT_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RANGE = re.compile(rf"\{{{_INT}\.\.{_INT}\}}")
_SEQ = re.compile(rf"(?:\$\(|`)\s*seq(?:\s+{_INT})?(?:\s+{_INT})?\s+{_INT}\s*[`)]")
_COUNT = re.compile(
    rf"\(\(\s*(\w+)\s*=\s*{_INT}\s*;\s*\1\s*<(=?)\s*{_INT}\s*;\s*(?:\1\+\+|\+\+\1|\1\s*\+=\s*{_INT})\s*\)\)"
)


def _duration(words: Sequence[_Token]) -> float | None:
    """What GNU `sleep` makes of its operands, in seconds: their sum, or None if it refuses one."""
    total_s = 0.0
    for word in words:
        m = _DURATION.fullmatch(word.text)
        if not word.known:
            total_s = math.nan
        elif m:
            total_s += float(m[1]) * _UNIT_S[m[2]]
        elif word is not _TO_FILE:
            return None
    return total_s


def _items(word: _Token) -> float:
    """How many items a word of a `for` list stands for."""
    if m := _RANGE.fullmatch(word.source):
        return abs(int(m[2]) - int(m[1])) + 1
    if m := _SEQ.fullmatch(word.source):
        return _steps(int(m[1] or 1), int(m[3]), int(m[2] or 1))
    return 1 if word.known and not re.search(r"[*?\[{]", word.source) else math.nan


def _turns(header: str) -> float:
    """How often the body of `for ((...))` runs."""
    if m := _COUNT.fullmatch(header):
        return _steps(int(m[2]), int(m[4]) - (not m[3]), int(m[5] or 1))
    return math.inf if header == "((;;))" else math.nan


def _steps(first: int, last: int, step: int) -> float:
    return max(0, (last - first) // step + 1) if step else math.nan


def _most(a: float, b: float) -> float:
    """The larger, unknown as soon as one is (`max` might drop a nan)."""
    return math.nan if math.isnan(a + b) else max(a, b)


def _least(a: float, b: float) -> float:
    return math.nan if math.isnan(a + b) else min(a, b)


def _times(turns: float, seconds: float) -> float:
    """A product in which no wait stays no wait, however often it may be repeated."""
    return turns * seconds if turns and seconds else 0.0
