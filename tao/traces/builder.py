"""Takes what readers find, in the order of the log, and makes a `Recording` of it.

Readers hand over numbers as they stand in the log, of whatever type; what is no count of tokens or no
duration becomes unknown, and is counted. Columns are compact arrays, so that a log of any size fits.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tao.commands import CLASSES, COMMAND_CLASSES, TOOL_CLASSES, Classes, classify
from tao.readiness import parsed_sleep
from tao.traces.derive import DIGITS, derive, order_of, people, plain, resolution_s, session_names
from tao.traces.recording import CALL, MAX_TOKENS, TURN, Flag, Recording
from tao.traces.report import Ledger, Report
from tao.traces.signs import signs_of
from tao.workloads import HUMAN, MAX_TOOL_S

_SHELLS = (
    "Bash, bash, shell, local_shell, exec_command, write_stdin, bash_command, execute_bash, terminal, "
    "run_terminal_cmd, run_command, execute_command, run_shell_command, shell_command"
)
SHELLS = frozenset(_SHELLS.split(", "))
"""Names of tools that run a shell command: ours, from recorded agents."""
PEOPLE = frozenset(["human", "AskUserQuestion", "ask_followup_question", "request_user_input", "ask_user"])
"""Names of tools that wait for a person: ours, from recorded agents."""
OUR_TOOLS = frozenset(["tool"])  # the name of a call whose name no one tells
_HIDDEN = re.compile(r"tool-\d{1,6}")  # as our own exports have them


Asked = tuple[str, str, float, bool]  # a tool call before it runs: name, class, sleep (s), whether behind
_Finish = Callable[["Builder", dict[Any, Any]], None]
_64_BITS = 0xFFFF_FFFF_FFFF_FFFF


class Seen:
    """A set of hashes in a tenth of a set's memory: one for each line of a log adds up.

    >>> seen = Seen()
    >>> seen.add(7), seen.add(7 + 65536), 7 in seen, 8 in seen
    (None, None, True, False)
    """

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}

    def __contains__(self, key: Hashable) -> bool:
        found = hash(key) & _64_BITS
        return found in self._buckets.get(found & 0xFFFF, ())

    def add(self, key: Hashable) -> None:
        """Take it up, once."""
        found = hash(key) & _64_BITS
        bucket = self._buckets.get(found & 0xFFFF)
        if bucket is None:
            self._buckets[found & 0xFFFF] = array("Q", [found])
        elif found not in bucket:
            bucket.append(found)


class Builder:
    """Collects sessions, turns and calls. `more_classes` adds to `COMMAND_CLASSES`.

    >>> b = Builder()
    >>> turn = b.turn(b.session("a"), context=100, output=20, began=0.0, ended=2.0)
    >>> call = b.call(turn, "Bash", "pytest -q", began=2.0)
    >>> b.result(call, 3.5)
    >>> b.finish().calls[["seconds"]].tolist(), b.finish().turns["tool_s"].tolist()
    ([(1.5,)], [1.5])
    """

    def __init__(
        self,
        ledger: Ledger | None = None,
        more_classes: Mapping[str, str] | None = None,
        keep_names: bool = False,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.seen = Seen()  # what was read before, across files
        self._rests: dict[_Finish, dict[Any, Any]] = {}
        more = dict(more_classes or {})
        self._class_of: Callable[[str], str] = Classes(COMMAND_CLASSES | more) if more else classify
        self._keep_names = keep_names
        self._known_classes = {*CLASSES, *more.values(), HUMAN, ""}
        self._sessions: dict[Hashable, int] = {}
        self._parents: list[int] = []
        self._tools: dict[str, int] = {}
        self._names: list[str] = []
        self._classes: dict[str, int] = {}
        self._hidden = 0
        self._turn = {name: array("i") for name in ("session", "context", "output", "cached", "prefix")}
        self._turn["flags"] = array("h")
        self._time = {
            name: array("d") for name in ("began", "ended", "resumed", "order", "tool", "human", "llm")
        }
        self._call = {name: array("i") for name in ("turn", "tool", "tool_class")}
        self._call_s = {name: array("d") for name in ("began", "seconds", "asked")}

    def session(self, key: Hashable, parent: int = -1) -> int:
        """The number of the session of that key, a new one if it is new."""
        found = self._sessions.get(key)
        if found is None:
            found = self._sessions[key] = len(self._parents)
            self._parents.append(parent)
        return found

    def across(self, finish: _Finish) -> dict[Any, Any]:
        """What a reader keeps of all files; `finish` is called with it at the end."""
        return self._rests.setdefault(finish, {})

    def copied(self, *identity: Any) -> bool:
        """Whether what these parts identify was taken before, from here or from another file."""
        key = hash(tuple(map(plain, identity)))
        known = key in self.seen
        self.seen.add(key)
        return known

    def turn(
        self,
        session: int,
        context: Any = None,
        output: Any = None,
        cached: Any = None,
        began: float = math.nan,
        ended: float = math.nan,
        *,
        prefix: Any = None,
        order: float = math.nan,
        flags: int = 0,
    ) -> int:
        """A request: tokens, and the moments (s) when it was sent and its answer ended; returns its row.

        `order` decides over the order within the session where it is given, else the moments do.
        """
        tokens, times = self._turn, self._time
        tokens["session"].append(session)
        tokens["context"].append(self.tokens(context))
        tokens["output"].append(self.tokens(output))
        tokens["cached"].append(self.tokens(cached))
        tokens["prefix"].append(self.tokens(prefix))
        tokens["flags"].append(flags)
        times["began"].append(began)
        times["ended"].append(ended)
        times["order"].append(order)
        for name in ("resumed", "tool", "human", "llm"):
            times[name].append(math.nan)
        return len(tokens["flags"]) - 1

    def answered(self, turn: int, output: Any, ended: float) -> None:
        """More of an answer: its tokens so far, and when."""
        if output is not None:
            self._turn["output"][turn] = max(self._turn["output"][turn], self.tokens(output))
        if not self._time["ended"][turn] >= ended and not math.isnan(ended):
            self._time["ended"][turn] = ended

    def flag(self, turn: int, flag: int) -> None:
        """Something is odd about a turn."""
        self._turn["flags"][turn] |= flag

    def take(self, turn: int, most_s: float = MAX_TOOL_S, **seconds: Any) -> None:
        """Durations that the log tells itself: `tool`, `human`, `llm`; also tokens, by their names."""
        for name, value in seconds.items():
            if name in self._turn:
                self._turn[name][turn] = self.tokens(value)
            else:
                self._time[name][turn] = self.seconds(value, turn, most_s)

    def call(
        self,
        turn: int,
        tool: Any,
        command: Any = None,
        *,
        began: float = math.nan,
        seconds: Any = None,
        asked: Any = None,
        kind: str = "",
    ) -> int:
        """A tool call after a turn, in seconds; `kind` is its class where the log tells one that is known."""
        name, found, sleep_s, background = self.asked(tool, command, kind)
        asked_s = self.seconds(asked, turn)
        if background:
            self.flag(turn, Flag.BACKGROUND)
        self._call["turn"].append(turn)
        self._call["tool"].append(self._tool(name))
        if kind not in self._known_classes:
            self.ledger.repair("classes that are none of ours nor of --classes, taken as other")
            found = "other"
        self._call["tool_class"].append(self._kind(found))
        self._call_s["began"].append(began)
        self._call_s["seconds"].append(self.seconds(seconds, turn))
        self._call_s["asked"].append(sleep_s if math.isnan(asked_s) else asked_s)
        return len(self._call["turn"]) - 1

    def asked(self, tool: Any, command: Any = None, kind: str = "") -> Asked:
        """What a tool's name and its command, of whatever type, tell of a call."""
        name = tool if isinstance(tool, str) and tool else "tool"
        said = command if isinstance(command, str) else ""
        slept = parsed_sleep(said) if "sleep" in said else None
        sleep_s = math.nan if slept is None or slept > MAX_TOOL_S else float(slept)
        return name, kind or self._classify(name, said), sleep_s, said.rstrip().endswith("&")

    def result(self, call: int, at: float, error: bool = False, seconds: Any = None) -> None:
        """A tool call has returned, at that moment; `seconds` is what the tool itself measured."""
        turn, began = self._call["turn"][call], self._call_s["began"][call]
        if seconds is not None:
            self._call_s["seconds"][call] = self.seconds(seconds, turn)
        if math.isnan(self._call_s["seconds"][call]):
            self._call_s["seconds"][call] = self.seconds(at - began, turn)
        if not self._time["resumed"][turn] >= at:
            self._time["resumed"][turn] = at
        if error:
            self.flag(turn, Flag.ERROR)

    def tokens(self, x: Any) -> int:
        """A count of tokens, -1 where it is none."""
        if type(x) is int and 0 <= x <= MAX_TOKENS:
            return x
        if isinstance(x, float) and x.is_integer() and 0 <= x <= MAX_TOKENS:
            return int(x)
        if x is not None and not (isinstance(x, int) and x == -1):
            self.ledger.repair("counts that are no whole number from 0 to 2^30, taken as unknown")
        return -1

    def seconds(self, x: Any, turn: int = -1, most_s: float = MAX_TOOL_S) -> float:
        """A duration, nan where it is none; below zero it is 0, and its turn is flagged."""
        if x is None or (isinstance(x, float) and math.isnan(x)):
            return math.nan
        if isinstance(x, bool) or not isinstance(x, int | float) or not -most_s <= x <= most_s:
            self.ledger.repair(f"durations that are no number up to {most_s:,.0f} s, taken as unknown")
            return math.nan
        if x < 0:
            self.ledger.repair("durations below zero (a clock stepped back), taken as 0")
            if turn >= 0:
                self.flag(turn, Flag.NEGATIVE)
            return 0.0
        return float(x)

    def moment(self, x: Any, unit_s: float = 1.0) -> float:
        """A moment in seconds since 1970 from an ISO 8601 text (UTC unless it says) or a number of units."""
        if isinstance(x, str):
            try:
                found = datetime.fromisoformat(x)
                if found.tzinfo is None:
                    self.ledger.repair("time stamps without a zone, read as UTC")
                    found = found.replace(tzinfo=UTC)
                return found.timestamp()
            except (ValueError, OverflowError):
                self.ledger.repair("time stamps that cannot be read, taken as unknown")
                return math.nan
        if isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < 1e11 / unit_s:
            return x * unit_s
        if x is not None:
            self.ledger.repair("time stamps that cannot be read, taken as unknown")
        return math.nan

    def _tool(self, name: str) -> int:
        found = self._tools.get(name)
        if found is None:
            known = name in SHELLS | PEOPLE | OUR_TOOLS or name in TOOL_CLASSES or _HIDDEN.fullmatch(name)
            found = self._tools[name] = len(self._names)
            self._hidden += not known
            self._names.append(name if known or self._keep_names else f"tool-{self._hidden}")
        return found

    def _classify(self, name: str, command: str | None) -> str:
        if name in PEOPLE:
            return HUMAN
        named = TOOL_CLASSES.get(f"{name} {command}") if command and len(command) < 20 else None
        named = named or TOOL_CLASSES.get(name)
        return named or (self._class_of(command) if command else "other")

    def _kind(self, name: str) -> int:
        return self._classes.setdefault(name, len(self._classes))

    def finish(self) -> Recording:
        """The recording, its turns in order and what follows from them worked out."""
        self.seen = Seen()  # no more needed, and large
        files, self.ledger.line = self.ledger.file, 0  # what comes out now stands in no one line
        while self._rests:
            finish, kept = self._rests.popitem()
            finish(self, kept)
        self.ledger.file = files
        arrays = {name: np.asarray(a) for name, a in self._time.items()}  # no copies: logs are long
        tokens = {name: np.asarray(a) for name, a in self._turn.items()}
        order, late = order_of(tokens["session"], arrays["began"], arrays["order"])
        turns = np.zeros(len(order), TURN)
        for name in ("context", "output", "cached", "prefix"):
            turns[f"{name}_tokens"] = tokens[name][order]
        turns["session"], turns["flags"] = tokens["session"][order], tokens["flags"][order]
        turns["flags"][late[order]] |= Flag.OUT_OF_ORDER
        derive(turns, {name: a[order] for name, a in arrays.items()}, self.ledger)
        calls = self._calls(order)
        people(turns, calls, self._classes.get(HUMAN, -1))
        lost = np.unique(calls["turn"][np.isnan(calls["seconds"])])
        lost = lost[np.isnan(turns["tool_s"][lost])]
        turns["flags"][lost] |= Flag.NO_RESULT
        used = np.unique(turns["session"])  # a session without a turn is none
        turns["session"] = np.searchsorted(used, turns["session"])
        above, alive = list(self._parents), set(used.tolist())
        for k, parent in enumerate(above):
            if parent >= 0 and parent not in alive:
                above[k] = above[parent]  # a parent comes before its children
        parents = np.array([above[k] for k in used], np.int32)
        parents = np.where(parents < 0, -1, np.searchsorted(used, parents)).astype(np.int32)
        recording = Recording(
            session_names(parents), parents, turns, calls, tuple(self._names), tuple(self._classes)
        )
        return replace(recording, report=self._report(recording, arrays))

    def _calls(self, order: Any) -> Any:
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        calls = np.zeros(len(self._call["turn"]), CALL)
        calls["turn"] = place[np.asarray(self._call["turn"])] if len(calls) else 0
        for name in ("tool", "tool_class"):
            calls[name] = np.asarray(self._call[name])
        calls["seconds"] = np.round(self._call_s["seconds"], DIGITS)
        calls["asked_s"] = np.asarray(self._call_s["asked"])
        return calls[np.argsort(calls["turn"], kind="stable")]

    def _report(self, recording: Recording, times: Mapping[str, Any]) -> Report:
        ledger, unknown = self.ledger, np.isnan(recording.calls["seconds"])
        return Report(
            ledger.file,
            ledger.counts("formats"),
            ledger.counts("unread"),
            ledger.rows,
            len(recording.sessions),
            len(recording.turns),
            len(recording.calls),
            ledger.counts("skipped"),
            ledger.counts("repaired"),
            resolution_s(times["began"], times["ended"], times["resumed"]),
            float(unknown.mean()) if len(unknown) else None,
            signs_of(recording),
        )
