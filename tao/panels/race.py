"""RacePanel: policies raced on the same sessions, a dot per seed, and a setting to tune and take away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import altair as alt
import ipywidgets as widgets

from tao import charts
from tao.checks import InputError, listing, shown
from tao.comparisons import Comparison, compare
from tao.panels import html, race_words
from tao.panels.base import Panel, guard, wrapped
from tao.panels.copytext import CopyText
from tao.panels.fields import checked, choices_of
from tao.panels.figure import Figure
from tao.profiles import DEFAULT_PROFILE, Profile
from tao.tuning import DELAYS, METRICS, PRESETS, RIVALS, STATISTICS, Setting, code
from tao.workloads import WORKLOADS

QUIET_S = 0.3  # ours: what takes longer shows how far it is
NUMBERS = {  # name: what it is called, least, most
    "nodes": ("Nodes", 1, 16),
    "workers": ("Workers", 1, 200),
    "capacity_tokens": ("KV tokens", 20_000, 2_000_000),
    "half_life_s": ("Half-life, s", 0.5, 600.0),
    "horizon_s": ("Horizon, s", 0.0, 60.0),
    "seeds": ("Seeds", 1, 32),
}
BOX_HEIGHT = 205  # px
WIDTHS = 430, 560  # px, at least: changes, means


class RacePanel(Panel):
    """A race of `tao` against rivals on the same seeded sessions, in a setting that can be tuned.

    Fields, presets and rivals are *pending* until **Run** (`run`), and **Undo** takes the latest run back.
    `setting`, `pending`, `race` (a `tao.comparisons.Comparison`) and `history` are plain objects.
    `workloads`: more of them, such as paths of logs; `profile`: the servers. Raises `InputError`.

    >>> panel = RacePanel(Setting(workers=4, seeds=2, rivals=("sticky",)))
    >>> panel.change(delay="2 to 10 s"); panel.setting.delay, panel.pending.delay
    ('none', '2 to 10 s')
    >>> panel.run(); panel.setting.delay
    '2 to 10 s'
    >>> panel.close()
    """

    def __init__(
        self,
        setting: Setting | None = None,
        workloads: Sequence[str] = (),
        profile: str | Profile = DEFAULT_PROFILE,
    ) -> None:
        # Whatever is refused is refused before there are widgets, which would stay.
        self.setting = _checked(setting or Setting(), {"delay": list(DELAYS), "statistic": STATISTICS})
        self.profile = profile
        self._races = {self.setting: compare(**self._arguments(self.setting))}
        super().__init__()
        self.history: list[Setting] = []
        self._make_fields(list(dict.fromkeys([*WORKLOADS, *map(str, workloads), self.setting.workload])))
        self._make_tools()
        self._fill(self.setting)
        self._lay_out()
        self._render()

    # --- from Python ------------------------------------------------------------------------------

    @property
    def race(self) -> Comparison:
        """The result that is shown."""
        return self._races[self.setting]

    @property
    def metric(self) -> str:
        """The metric that the figure shows; set it to switch."""
        return str(self.metrics.value)

    @metric.setter
    def metric(self, name: str) -> None:
        if name not in METRICS:
            raise InputError(f"metric is {name!r}; this panel shows {listing(METRICS)}")
        self.metrics.value = name

    @property
    def pending(self) -> Setting:
        """What the fields say, which is what Run would race."""
        # In the order in which they were filled in: the same rivals in another one would be pending.
        names = dict.fromkeys([*self._filled.rivals, *self.rivals])
        rivals = tuple(name for name in names if self.rivals[name].value)
        return Setting(**{name: field.value for name, field in self.fields.items()}, rivals=rivals)

    @property
    def code(self) -> str:
        """The pending setting as a program."""
        return code(self.pending, self.profile)

    def change(self, **fields: Any) -> None:
        """Fill in fields, to be raced by `run`; raises `InputError` for those that there are not."""
        known = list(asdict(self.setting))
        if unknown := [name for name in fields if name not in known]:
            raise InputError(f"there is no field {unknown[0]!r}; the fields are {listing(known, 20)}")
        self._fill(_checked(replace(self.pending, **fields), choices_of(self.fields)))

    @guard
    def run(self) -> None:
        """Race the pending setting."""
        pending = self.pending
        if pending != self.setting:
            self._race(pending)
            self.history.append(self.setting)
            self.setting = pending
        self._render()

    @guard
    def undo(self) -> None:
        """Back to the setting raced before, and drop what is pending."""
        if self.history:
            self.setting = self.history.pop()
        self._fill(self.setting)
        self._render()

    @guard
    def export(self) -> None:
        """Write the file named in the field: .csv (all runs), .json (summary) or .py (the code)."""
        path = Path(self.file.value.strip())
        writers: dict[str, Callable[[], str]] = {
            ".csv": self._csv,
            ".json": self._json,
            ".py": lambda: f"{self.code}\n",
        }
        if path.suffix not in writers:
            raise InputError(f"the file is {shown(str(path))}; its name must end in {listing(list(writers))}")
        try:
            with path.open("x", encoding="utf-8") as out:
                out.write(writers[path.suffix]())
        except OSError as e:
            raise InputError(f"cannot write {path.name} ({e.strerror}); choose another name") from None
        self.exported.value = html.lines(f"Written: {path.name}.", room="two")

    def text(self) -> str:
        """The race in plain text: setting, verdict, where the knee is, and both tables."""
        heads = [self._what(), race_words.headline(self.race, self.metric), race_words.knee(self.race)]
        tables = race_words.changes(self.race), race_words.means(self.race)
        return "\n\n".join(["\n".join(heads), *(table.text() for table in tables)])

    def chart(self) -> alt.LayerChart:
        """The figure as a chart of its own."""
        return charts.seed_dots(*charts.seed_rows(self.race, self.metric), len(RIVALS))

    # --- inside -----------------------------------------------------------------------------------

    def _make_fields(self, workloads: list[str]) -> None:
        small: dict[str, Any] = {"layout": {"width": "205px"}, "style": {"description_width": "84px"}}
        choices = {
            "workload": ("Workload", workloads),
            "delay": ("Tool delay", list(DELAYS)),
            "statistic": ("History", list(STATISTICS)),
        }
        self.fields: dict[str, Any] = {
            name: widgets.Dropdown(options=options, description=label, **small)
            for name, (label, options) in choices.items()
        }
        for name, (label, least, most) in NUMBERS.items():
            kind = widgets.BoundedIntText if isinstance(least, int) else widgets.BoundedFloatText
            self.fields[name] = kind(value=least, min=least, max=most, description=label, **small)
        self.rivals = {
            name: widgets.Checkbox(description=name, indent=False, layout={"width": "150px"})
            for name in RIVALS
        }
        for field in [*self.fields.values(), *self.rivals.values()]:
            field.observe(self._on_field, "value")

    def _make_tools(self) -> None:
        handlers = {
            "Run": self.run,
            "Undo": self.undo,
            "Copy as Python": self._on_copy,
            "Export": self.export,
        }
        self.buttons = {
            name: widgets.Button(description=name, layout={"width": "130px"}) for name in handlers
        }
        for name, handler in handlers.items():
            self.buttons[name].on_click(lambda _, call=handler: call())
        self.preset = widgets.Dropdown(
            options=["(choose)", *PRESETS], description="Preset", layout={"width": "280px"}
        )
        self.preset.observe(self._on_preset, "value")
        self.metrics = widgets.ToggleButtons(
            options=list(METRICS),
            description="Metric",
            style={"button_width": "130px", "description_width": "56px"},
        )
        self.metrics.observe(self._on_metric, "value")
        self.file = widgets.Text(value="race.csv", description="File", layout={"width": "240px"})
        self.copied = CopyText(description="Python")
        self.exported, self.waiting = widgets.HTML(), widgets.HTML()
        hidden = {"visibility": "hidden"}  # and not away: the page must not jump
        self.progress = widgets.IntProgress(max=100, description="Racing", layout=hidden)

    def _lay_out(self) -> None:
        self.figure = Figure(self.chart(), "race", charts.seed_dots_size(len(RIVALS)))
        self.about = widgets.HTML()
        self.boxes = [widgets.HTML(layout={"flex": f"1 1 {width}px", "min_width": "0"}) for width in WIDTHS]
        for box in self.boxes:
            box.add_class("tao-narrow")
        self.root.children = [
            wrapped(self.preset, *self.fields.values()),
            wrapped(*self.rivals.values()),
            wrapped(self.buttons["Run"], self.buttons["Undo"], self.metrics, self.progress),
            self.waiting,
            widgets.VBox([self.status, self.error, self.about]),
            wrapped(self.figure.widget, *self.boxes),
            wrapped(self.buttons["Copy as Python"], self.file, self.buttons["Export"], self.exported),
            self.copied,
        ]

    def _fill(self, setting: Setting) -> None:
        self._filled = setting
        for name, field in self.fields.items():
            field.value = getattr(setting, name)
        for name, box in self.rivals.items():
            box.value = name in setting.rivals

    def _race(self, setting: Setting) -> None:
        if setting in self._races:
            return
        begun_s = time.perf_counter()

        def report(share: float) -> None:
            if time.perf_counter() - begun_s > QUIET_S:
                self.progress.layout.visibility = None
                self.progress.value = int(100 * share)

        try:
            self._races[setting] = compare(**self._arguments(setting), progress=report)
        finally:
            self.progress.layout.visibility = "hidden"

    def _arguments(self, setting: Setting) -> dict[str, Any]:
        if not setting.rivals:
            raise InputError(f"no rival is chosen; take at least one of {listing(RIVALS)}")
        return setting.arguments() | {"profile": self.profile}

    def _render(self) -> None:
        self.status.value = html.status(race_words.headline(self.race, self.metric))
        self.about.value = html.lines(self._what(), race_words.knee(self.race), room="three")
        value = charts.seed_dots_value(*charts.seed_rows(self.race, self.metric))
        self.figure.update(value, race_words.seed_table(self.race, self.metric).html())
        for box, table in zip(
            self.boxes, (race_words.changes(self.race), race_words.means(self.race)), strict=True
        ):
            box.value = html.scroll(table.html(), table.caption, BOX_HEIGHT)
        self._tell_pending()

    def _tell_pending(self) -> None:
        new, old = asdict(self.pending), asdict(self.setting)
        said = [f"{name} {_plain(value)}" for name, value in new.items() if value != old[name]]
        text = f"Pending: {', '.join(said)}. Run races it." if said else "Nothing is pending."
        self.waiting.value = html.lines(text, room="two")

    def _what(self) -> str:
        return race_words.what(self.setting)

    def _csv(self) -> str:
        return str(self.race.runs.to_csv(index=False))

    def _json(self) -> str:
        return json.dumps(self.race.to_dict(), indent=1)

    @guard
    def _on_field(self, change: Mapping[str, Any]) -> None:
        if self.root.children:  # else the fields are still being filled for the first time
            self._tell_pending()

    @guard
    def _on_preset(self, change: Mapping[str, Any]) -> None:
        if change["new"] in PRESETS:
            self._fill(PRESETS[change["new"]])

    @guard
    def _on_metric(self, change: Mapping[str, Any]) -> None:
        self._render()

    @guard
    def _on_copy(self) -> None:
        self.copied.show(self.code)


def _checked(setting: Setting, choices: Mapping[str, Sequence[str]]) -> Setting:
    """The setting as the fields hold it; raises `InputError` for one that they cannot."""
    if unknown := [name for name in setting.rivals if name not in RIVALS]:
        raise InputError(f"rival {unknown[0]!r} is not offered; there are {listing(RIVALS)}")
    return replace(setting, **checked(vars(setting), NUMBERS, choices))


def _plain(value: Any) -> str:
    return (
        ", ".join(value) or "none"
        if isinstance(value, tuple)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
