"""Tool calls of known length, as arrays: what the lab replays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from tao.checks import InputError, listing
from tao.durations import Floats, Ints
from tao.profiles import PS_PER_S
from tao.traces.recording import Recording
from tao.workloads import HUMAN, Workload

Row = tuple[str, str, str, float, float, float | None]
WITHOUT = ("sleep", "class", "tool")


@dataclass(frozen=True)
class ToolCalls:
    """One row per call: its session, tool and command class as indices of names, and seconds.

    `began_s` is on one clock; where those of sessions have nothing to do with each other, each counts from
    its session's start. `asked_s` is what a `sleep` asked for, nan: there was none.
    """

    name: str
    sessions: tuple[str, ...]
    tools: tuple[str, ...]
    classes: tuple[str, ...]
    session: Ints  # int64[n]
    tool: Ints
    command_class: Ints
    began_s: Floats  # float64[n]
    lasted_s: Floats
    asked_s: Floats

    def __post_init__(self) -> None:
        columns = {"session": self.sessions, "tool": self.tools, "command_class": self.classes}
        for column, names in columns.items():
            index = getattr(self, column)
            if len(index) != len(self.lasted_s) or not ((index >= 0) & (index < len(names))).all():
                raise InputError(f"{column} must have one index of its {len(names)} names for every call")
        for column in ("began_s", "lasted_s", "asked_s"):
            if len(getattr(self, column)) != len(self.lasted_s):
                raise InputError(f"{column} has {len(getattr(self, column)):,} rows; give one for every call")
        if not len(self.lasted_s):
            raise InputError(f"{self.name} has no tool calls of known length; give at least one")
        if not (np.isfinite(self.began_s).all() and np.isfinite(self.lasted_s).all()):
            raise InputError("began_s and lasted_s must be finite; leave calls of unknown length out")
        if self.lasted_s.min() < 0 or (self.asked_s < 0).any():
            raise InputError("lasted_s and asked_s must be 0 or more seconds")

    def __len__(self) -> int:
        return len(self.lasted_s)

    @classmethod
    def of_rows(cls, name: str, rows: Iterable[Row]) -> ToolCalls:
        """From rows of session, tool, command class, began_s, lasted_s, asked_s (None: it asked for nothing).

        >>> len(ToolCalls.of_rows("one", [("a", "bash", "test", 0.0, 1.5, None)]))
        1
        """
        names: tuple[dict[str, int], ...] = ({}, {}, {})
        indices: list[list[int]] = []
        seconds: list[tuple[float, float, float]] = []
        for *texts, began_s, lasted_s, asked_s in rows:
            indices.append([known.setdefault(t, len(known)) for t, known in zip(texts, names, strict=True)])
            seconds.append((began_s, lasted_s, np.nan if asked_s is None else asked_s))
        index = np.array(indices, np.int64).reshape(-1, 3)
        times = np.array(seconds, float).reshape(-1, 3)
        sessions, tools, classes = (tuple(known) for known in names)
        return cls(
            *(name, sessions, tools, classes),
            *(index[:, 0].copy(), index[:, 1].copy(), index[:, 2].copy()),
            *(times[:, 0].copy(), times[:, 1].copy(), times[:, 2].copy()),
        )

    @classmethod
    def of_workload(cls, workload: Workload) -> ToolCalls:
        """The calls of a workload, which does not tell how long models think: they follow without a pause.

        >>> from tao.workloads import WORKLOADS
        >>> len(ToolCalls.of_workload(WORKLOADS["swe-lite"](tasks=2)))
        55
        """
        script, rows = workload.script, list[Row]()
        for i, task in enumerate(workload.tasks):
            at_s = task.arrival_s
            for t in range(int(script.first[i]), int(script.first[i + 1])):
                if not script.kind[t]:
                    continue
                tool, command_class = workload.kinds.names[script.kind[t]]
                lasted_s = float(script.tool_ps[t]) / PS_PER_S
                rows.append((task.id, tool, command_class or "", at_s, lasted_s, float(script.asked_s[t])))
                at_s += lasted_s
        return cls.of_rows(workload.name, rows)

    @classmethod
    def of_recording(cls, recording: Recording, name: str = "mine") -> ToolCalls:
        """The calls of known length in a log, those that ask people left out.

        Each begins when its answer ended; in a session whose log does not tell when, calls follow without a
        pause. Raises `InputError` where no call has a known length.
        """
        turns, calls = recording.turns, recording.calls
        rows = list[Row]()
        for k, session in enumerate(recording.sessions):
            first, end = (
                recording.first_call[recording.first[k]],
                recording.first_call[recording.first[k + 1]],
            )
            mine = [c for c in calls[first:end] if c["seconds"] >= 0]
            began = [float(turns["start_s"][c["turn"]] + turns["llm_s"][c["turn"]]) for c in mine]
            if any(at != at for at in began):
                began = [0.0, *accumulate(float(c["seconds"]) for c in mine)][: len(mine)]
            for call, at_s in zip(mine, began, strict=True):
                tool, kind = recording.tools[call["tool"]], recording.classes[call["tool_class"]]
                if kind != HUMAN:
                    rows.append((session, tool, kind, at_s, float(call["seconds"]), float(call["asked_s"])))
        return cls.of_rows(name, rows)

    def in_turn(self) -> ToolCalls:
        """The same with sessions one after the other, each when all calls of the one before are done."""
        began_s, at_s = self.began_s.copy(), 0.0
        for session in dict.fromkeys(self.session.tolist()):
            mine = self.session == session
            began_s[mine] += at_s - began_s[mine].min()
            at_s = float((began_s[mine] + self.lasted_s[mine]).max()) + 1.0
        return replace(self, began_s=began_s)

    def without(self, what: str) -> ToolCalls:
        """The same without the "sleep" asked for, without the command "class", or without tool and class."""
        if what not in WITHOUT:
            raise InputError(f"without is {what!r}; it must be one of {listing(WITHOUT)}")
        if what == "sleep":
            return replace(self, asked_s=np.full(len(self), np.nan))
        zeros = np.zeros(len(self), np.int64)
        changed = replace(self, classes=("",), command_class=zeros)
        return changed if what == "class" else replace(changed, tools=("tool",), tool=zeros)
