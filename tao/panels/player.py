"""PlayerPanel: one simulated run played, stepped and stepped back: who holds which place, and who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import altair as alt
import ipywidgets as widgets

from tao import charts
from tao.charts.player import MOST_NODES
from tao.checks import InputError, listing
from tao.history import History
from tao.jobs import arm_of, make_job, sessions, source_of
from tao.panels import html, player_words
from tao.panels.base import guard, wrapped
from tao.panels.fields import checked, choices_of
from tao.panels.figure import Figure
from tao.panels.stepper import Stepper
from tao.playback import Playback, playback
from tao.policies import POLICIES
from tao.profiles import DEFAULT_PROFILE, PS_PER_S, Profile
from tao.simulator import simulate
from tao.tuning import DELAYS, PRESETS, Setting
from tao.workloads import WORKLOADS

SPEEDS = (1, 4, 8)  # ours: moments per second; a browser on the same machine keeps up with the last
NUMBERS = {  # name: what it is called, least, most
    "workers": ("Workers", 1, 200),
    "nodes": ("Nodes", 1, MOST_NODES),
    "capacity_tokens": ("KV tokens", 20_000, 2_000_000),
    "seed": ("Seed", 0, 999),
}
CHOOSE = "(choose)"


class Case(NamedTuple):
    """What is run: a setting (its rivals and number of seeds do not count), one policy, and one seed."""

    setting: Setting = PRESETS["crowded, slow tools"]
    policy: str = "tao"
    seed: int = 0


class PlayerPanel(Stepper):
    """A simulated run of one policy, at equal moments: play it, or step forward and back through it.

    Fields and presets are *pending* until **Reset** (`reset`) runs them from the first moment. `case`
    (`setting`, `policy`, `seed`), `pending`, `history` and `played` (a `tao.playback.Playback`) are plain
    objects; set `step` to go to a moment and `speed`, in moments per second, before or during `play`, which
    needs a running event loop, as notebooks have one. Any step, `pause`, `reset` and `close` end it.
    `workloads`: more of them, such as paths of logs; `profile`: the servers. Raises `InputError`.

    >>> panel = PlayerPanel(Setting(workers=4, nodes=1), policy="sticky")
    >>> panel.change(policy="tao"); panel.policy, panel.pending.policy
    ('sticky', 'tao')
    >>> panel.reset(); panel.step = 100; panel.policy, panel.history.settings["policy"], panel.count
    ('tao', 'tao', 400)
    >>> panel.close()
    """

    def __init__(
        self,
        setting: Setting | None = None,
        policy: str = "tao",
        seed: int = 0,
        workloads: Sequence[str] = (),
        profile: str | Profile = DEFAULT_PROFILE,
    ) -> None:
        self.profile = profile
        self._playing: asyncio.Task[None] | None = None
        self._advancing = False
        self._run(Case(setting or Case().setting, policy, seed))
        super().__init__(len(self.played.times_ps), "Moment")
        self._make_fields(list(dict.fromkeys([*WORKLOADS, *map(str, workloads), self.setting.workload])))
        self._make_buttons()
        self._fill(self.case)
        self._lay_out()
        self.draw()

    # --- from Python ------------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        """The setting that is shown."""
        return self.case.setting

    @property
    def policy(self) -> str:
        """The policy that is shown."""
        return self.case.policy

    @property
    def seed(self) -> int:
        """The seed that drew the sessions shown."""
        return self.case.seed

    @property
    def pending(self) -> Case:
        """What the fields say, which is what Reset would run."""
        told = {name: field.value for name, field in self.fields.items()}
        policy, seed = told.pop("policy"), told.pop("seed")
        return Case(replace(self._filled, **told), policy, seed)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the run began."""
        return float(self.played.times_ps[self.step - 1]) / PS_PER_S

    @property
    def speed(self) -> int:
        """Moments per second of `play`; set it to one of `SPEEDS`."""
        return int(self.speeds.value)

    @speed.setter
    def speed(self, speed: int) -> None:
        if speed not in SPEEDS:
            known = listing([str(each) for each in SPEEDS])
            raise InputError(f"speed is {speed!r} moments per second; it must be one of {known}")
        self.speeds.value = speed

    @property
    def playing(self) -> asyncio.Task[None] | None:
        """The task that plays; None while nothing is played."""
        return self._playing

    def change(self, **fields: Any) -> None:
        """Fill in fields, to be run by `reset`; raises `InputError` for those that there are not."""
        if unknown := [name for name in fields if name not in self.fields]:
            raise InputError(f"there is no field {unknown[0]!r}; the fields are {listing(list(self.fields))}")
        for name, value in checked(fields, NUMBERS, choices_of(self.fields)).items():
            self.fields[name].value = value

    @guard
    def reset(self) -> None:
        """Run what is pending, from the first moment."""
        self.pause()
        self._run(self.pending)
        self.restart(len(self.played.times_ps))

    @guard
    def play(self) -> None:
        """Go on by itself, from the first moment if this is the last; does nothing while it plays."""
        if self._playing is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InputError(
                "nothing plays without a running event loop; call play() in a notebook, or next() in a loop"
            ) from None
        self._playing = loop.create_task(self._play())
        self.play_button.description = "Pause"

    def pause(self) -> None:
        """Stop playing, and stay at this moment."""
        if self._playing is not None:
            self._playing.cancel()
            self._playing = None
        self.play_button.description = "Play"

    def close(self) -> None:
        """Stop playing and close every widget."""
        self.pause()
        super().close()

    def draw(self) -> None:
        """Show the current moment."""
        k = self.step - 1
        self.status.value = html.status(self._headline())
        self.about.value = html.lines(self._about()[1], room="two")
        # A hidden table of hundreds of rows is not sent at every step.
        series = player_words.series(self.played, k).html() if self.figure.as_table.value else ""
        self.figure.update(charts.places_value(self.played, k), series)
        self.now.value = player_words.nodes(self.played, k).html()
        self._tell_pending()

    def text(self) -> str:
        """The moment in plain text: what is run, who holds places and who waits, and what it came to."""
        lines = "\n".join([*self._about(), self._headline()])
        return f"{lines}\n\n{player_words.nodes(self.played, self.step - 1).text()}"

    def chart(self) -> alt.HConcatChart:
        """The figure as a chart of its own."""
        return charts.places(self.played, self.step - 1)

    # --- inside -----------------------------------------------------------------------------------

    def _make_fields(self, workloads: list[str]) -> None:
        wide, narrow = (
            {"layout": {"width": f"{px}px"}, "style": {"description_width": "72px"}} for px in (190, 160)
        )
        choices = {
            "policy": ("Policy", list(POLICIES)),
            "workload": ("Workload", workloads),
            "delay": ("Tool delay", list(DELAYS)),
        }
        self.fields: dict[str, Any] = {
            name: widgets.Dropdown(options=options, description=label, **wide)
            for name, (label, options) in choices.items()
        }
        for name, (label, least, most) in NUMBERS.items():
            self.fields[name] = widgets.BoundedIntText(
                value=least, min=least, max=most, description=label, **narrow
            )
        self.preset = widgets.Dropdown(
            options=[CHOOSE, *PRESETS],
            description="Preset",
            layout={"width": "232px"},
            style={"description_width": "56px"},
        )
        for field in self.fields.values():
            field.observe(self._on_field, "value")
        self.preset.observe(self._on_preset, "value")

    def _make_buttons(self) -> None:
        self.play_button = widgets.Button(description="Play", layout={"width": "84px"})
        self.play_button.on_click(lambda _: self.play() if self._playing is None else self.pause())
        for button in self.buttons.values():
            button.on_click(lambda _: self.pause())
        self.speeds = widgets.ToggleButtons(
            options=[(f"{each}/s", each) for each in SPEEDS],
            value=SPEEDS[1],
            description="Speed",
            tooltips=[f"{each} moments per second" for each in SPEEDS],
            style={"button_width": "40px", "description_width": "initial"},
            layout={"margin": "5px 2px 2px"},
        )
        self.reset_button = widgets.Button(
            description="Reset", tooltip="run what the fields say", layout={"width": "84px"}
        )
        self.reset_button.on_click(lambda _: self.reset())

    def _lay_out(self) -> None:
        self.about, self.now, self.waiting = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.now.layout.flex, self.now.layout.min_width = "1 1 430px", "0"
        self.now.add_class("tao-narrow")
        self.figure = Figure(self.chart(), "player", charts.PLACES_SIZE)
        self.figure.as_table.observe(self._on_table, "value")
        self.root.children = [
            wrapped(self.controls, self.play_button, self.speeds),
            wrapped(self.preset, *self.fields.values(), self.reset_button),
            self.waiting,
            widgets.VBox([self.status, self.error]),
            wrapped(self.figure.widget, self.now),
            self.about,
        ]

    def _fill(self, case: Case) -> None:
        self._filled = case.setting
        told = asdict(case.setting) | {"policy": case.policy, "seed": case.seed}
        for name, field in self.fields.items():
            field.value = told[name]

    def _run(self, case: Case) -> None:
        checked(_told(case), NUMBERS, {"policy": list(POLICIES), "delay": list(DELAYS)})
        given = case.setting.arguments() | {"profile": self.profile, "seed": case.seed}
        given |= {"workload": source_of(case.setting.workload), "policy": arm_of(case.policy)}
        job = make_job({name: value for name, value in given.items() if name not in ("policies", "seeds")})
        self.history: History = simulate(sessions(job.draw), case.policy, **job.options)
        self.played: Playback = playback(self.history)
        self.case = case

    async def _play(self) -> None:
        """Step by step to the last moment; an error is shown, and ends it."""
        try:
            if self.step == self.count:
                self._advance(1)
            while self.step < self.count:
                await asyncio.sleep(1 / self.speed)
                self._advance(self.step + 1)
                if self.error.value:
                    break
        finally:
            if self._playing is asyncio.current_task():
                self._playing = None
                self.play_button.description = "Play"

    @guard
    def _advance(self, step: int) -> None:
        self._advancing = True
        try:
            self.step = step
        finally:
            self._advancing = False

    @guard
    def _on_number(self, change: dict[str, Any]) -> None:
        if not self._advancing:
            self.pause()
        self.draw()

    def _tell_pending(self) -> None:
        said = player_words.changes(_told(self.case), _told(self.pending))
        text = f"Pending: {said}. Reset runs it from the first moment." if said else "Nothing is pending."
        self.waiting.value = html.lines(player_words.what(*self.case), text, room="two")

    def _headline(self) -> str:
        return player_words.headline(self.played, self.step - 1)

    def _about(self) -> tuple[str, str]:
        return player_words.what(*self.case), player_words.until_now(self.history, self.played, self.step - 1)

    @guard
    def _on_field(self, change: Mapping[str, Any]) -> None:
        if self.root.children:  # else the fields are still being filled for the first time
            self._tell_pending()

    @guard
    def _on_table(self, change: Mapping[str, Any]) -> None:
        self.draw()

    @guard
    def _on_preset(self, change: Mapping[str, Any]) -> None:
        if change["new"] in PRESETS:
            self._fill(self.pending._replace(setting=PRESETS[change["new"]]))


def _told(case: Case) -> dict[str, Any]:
    """What the fields tell of a case."""
    return asdict(case.setting) | {"policy": case.policy, "seed": case.seed}
