"""Terminal recordings (asciinema casts, versions 2 and 3) of mini-swe-agent, as Terminal-Bench keeps them.

While the model is asked, a spinner turns; the line "mini-swe-agent (step N, ...)" ends its answer, whose text
follows; the line "User:" comes when the command has returned. Tokens are estimated from the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tao.traces.builder import Builder, Seen
from tao.traces.claude_code import CHARS_PER_TOKEN
from tao.traces.files import Source
from tao.traces.recording import Flag
from tao.traces.values import mapping, name

TITLE = "asciinema cast"
FIRST_PROMPT = 1250  # ours: mini-swe-agent's instructions with a task; a cast does not show them
_SPINNER = "Waiting for the LM to respond"
_STEP = re.compile(r"mini-swe-agent \(step (\d{1,6}), \$[\d.,]*\):")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_KEPT = 65_536  # characters of a line, or of an answer, that are looked at


def fits(row: Mapping[str, Any]) -> bool:
    """Whether a row is the first line of a cast."""
    version = row.get("version")
    return isinstance(version, int) and version in (2, 3) and ("width" in row or "term" in row)


@dataclass
class _Reading:
    """Where a session stands: its last step, and the text since."""

    into: Builder
    session: int
    step: int = 0
    turn: int = -1
    since: float = math.nan  # the moment of the last input, of the first spinner before there is one
    answered: float = math.nan
    answering: bool = False  # the text is the answer's, not yet the tool's
    context: int = FIRST_PROMPT
    chars: int = 0
    text: str = ""
    spun: float = math.nan  # the moment of the first spinner since the last step or input
    runs: int = 1

    def line(self, text: str, at: float, copied: Seen, identity: Any) -> None:
        """A line of the terminal."""
        step = _STEP.search(text) if "mini-swe-agent" in text else None
        if step and int(step[1]) == 1 <= self.step and not math.isnan(self.spun):
            self.close()
            self.runs, self.step, self.turn, self.context = self.runs + 1, 0, -1, FIRST_PROMPT
            self.session = self.into.session(("cast", self.into.ledger.file, self.runs))
            self.since = self.spun
        if step and int(step[1]) > self.step:
            self.close()
            self.spun = math.nan
            self.step = int(step[1])
            key = hash((identity, self.step, at))
            if key in copied:
                self.into.ledger.skip("steps that are copies of another file's")
                self.turn = -1
            else:
                copied.add(key)
                self.turn = self.into.turn(
                    self.session, self.context, None, None, self.since, at,
                    order=float(self.step), flags=Flag.CONTEXT_ESTIMATED,
                )  # fmt: skip
            self.answering, self.answered = True, at
        elif self.answering and text.strip() == "User:":
            self.close(at)
            self.since, self.spun = at, math.nan
        elif _SPINNER not in text:
            if step:
                self.into.ledger.skip(
                    "step lines whose number came before: quoted, or of a run without marks"
                )
            self.chars += len(text.strip())
            if self.answering and len(self.text) < _KEPT:
                self.text += text.strip("\r")[:_KEPT] + "\n"

    def close(self, at: float = math.nan) -> None:
        """The answer, or the tool's result, is complete."""
        tokens = round(self.chars / CHARS_PER_TOKEN)
        if self.step:
            self.context += tokens
        if self.answering:
            found = _command(self.text)
            if self.turn >= 0 and tokens:  # no text: it was not shown, which does not mean that there is none
                self.into.answered(self.turn, tokens, math.nan)
                self.into.flag(self.turn, Flag.OUTPUT_ESTIMATED)
            if self.turn >= 0 and (found or not math.isnan(at)):
                call = self.into.call(self.turn, "bash", found, began=self.answered)
                if not math.isnan(at):
                    self.into.result(call, at)
        self.answering, self.chars, self.text = False, 0, ""


def read(source: Source, into: Builder) -> None:
    """All steps of the runs that a cast shows, each a session."""
    reading = _Reading(into, into.session(("cast", source.ledger.file, 1)))
    identity, rest = None, ""
    for at, text, header in _events(source, into):
        if header is not None:
            identity = name(header.get("timestamp"))
            continue
        rest = rest + text if "\n" in text or _SPINNER not in text else ""
        if _SPINNER in text:
            reading.since = at if math.isnan(reading.since) else reading.since
            reading.spun = at if math.isnan(reading.spun) else reading.spun
        *lines, rest = rest.split("\n")
        rest = rest[-_KEPT:]
        for line in lines:
            reading.line(_ESCAPES.sub("", line), at, into.seen, identity)
    source.ledger.line = 0  # what is found from here on stands in no one line
    reading.close()
    if not reading.step:
        source.ledger.skip("casts without the step lines of mini-swe-agent: other agents leave no marks")


def _command(text: str) -> str | None:
    """The command in the first block of an answer."""
    start = text.find("```bash\n")
    end = text.find("\n```", start + 1)
    return text[start + 8 : end] if 0 <= start < end else None


def _events(source: Source, into: Builder) -> Iterator[tuple[float, str, Mapping[str, Any] | None]]:
    """What was shown and when; the header comes with the third value."""
    at, relative, base = 0.0, False, 0.0
    for line in source.lines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            source.ledger.skip("lines that are torn or no JSON")
            continue
        if isinstance(row, dict) and fits(row):
            relative, at, base = row["version"] == 3, 0.0, into.moment(row.get("timestamp"))
            base = 0.0 if math.isnan(base) else base
            yield at, "", mapping(row)
        elif not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], str):
            source.ledger.skip("lines that are no event of a cast")
        elif row[1] != "o":
            source.ledger.skip("events other than output (keys pressed, sizes, marks)")
        else:
            moment = into.moment(row[0])
            at = at + (0.0 if math.isnan(moment) else moment) if relative else moment
            yield base + at, row[2], None
