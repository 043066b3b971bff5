"""PlayerPanel: a run played, stepped back and forth; and what it holds, counted in two slower ways."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import runs
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ipywidgets.widgets import widget as widget_module

from tao.cluster import Cluster
from tao.comparisons import compare
from tao.history import History
from tao.metrics import measure
from tao.model import InputError
from tao.panels import PlayerPanel, base, player_words
from tao.panels.player import SPEEDS
from tao.playback import PARTS, Playback, playback, so_far
from tao.policies import REASONING, TOOL
from tao.profiles import PS_PER_S
from tao.simulator import arrival_times, make_policy
from tao.tuning import PRESETS, Setting

Held = dict[tuple[int, str], list[int]]  # tokens and sessions by node and part
SMALL = Setting(workers=8, nodes=2, capacity_tokens=40_000, delay="1 to 5 s")


@pytest.fixture(scope="module")
def shared() -> Iterator[PlayerPanel]:
    panel = PlayerPanel(SMALL)
    yield panel
    panel.close()


@pytest.fixture
def panel(shared: PlayerPanel) -> PlayerPanel:
    shared.pause()
    shared._fill(shared.case._replace(setting=SMALL, policy="tao", seed=0))
    shared.preset.value = shared.preset.options[0]
    shared.figure.as_table.value, shared.speed = False, SPEEDS[1]
    if shared.pending != shared.case:
        shared.reset()
    shared.first()
    return shared


def drawn(panel: PlayerPanel) -> dict[str, Any]:
    """What the figure was last told to draw, apart from its serial number."""
    params: Any = panel.figure.live.params
    return {name: value for name, value in dict(params.player).items() if name != "version"}


def shown(panel: PlayerPanel) -> tuple[Any, ...]:
    """All that a user sees."""
    boxes = panel.status, panel.error, panel.about, panel.now, panel.waiting, panel.figure._table
    return panel.step, drawn(panel), [box.value for box in boxes], panel.text()


# Counting


def naive(history: History, at_ps: int) -> tuple[Held, int]:
    """Tokens and sessions by (node, part) at one moment, and how many are in the pool: session by session."""
    shared = history.settings["shared_prefix_tokens"]
    held: Held = {(b, part): [0, 0] for b in range(len(history.node_ids)) for part in PARTS}
    pool = 0
    decisions = history.decisions
    ids, nodes = history.session_ids, history.node_ids

    def add(b: int, part: str, tokens: int) -> None:
        held[b, part][0] += max(tokens - shared, 0)
        held[b, part][1] += 1

    for i, name in enumerate(ids):
        rows = sorted((row for row in history.turns if row.session == i), key=lambda row: row.turn)
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            if row.arrived_ps <= at_ps < row.submitted_ps:
                pool += 1
            if row.submitted_ps <= at_ps < row.scheduled_ps:
                add(row.node, "queue", row.prompt_tokens)
            if row.scheduled_ps <= at_ps < row.finished_ps:
                add(row.node, "reasoning", row.prompt_tokens)
            where = row.node
            left = None
            for decision in decisions:
                at = decision.at_ps
                if not row.submitted_ps <= at < row.tool_end_ps:
                    continue
                placed = [nodes.index(node) for session, node in decision.placed if session == name]
                paused = [-1] * (name in decision.paused)
                for to in [*paused, *placed] if decision.planned else [*placed, *paused]:
                    if max(at, row.finished_ps) <= at_ps:
                        where = to
                if at_ps >= row.finished_ps and where < 0 and left is None:
                    left = at
                if where >= 0:
                    left = None
            if row.finished_ps <= at_ps < row.tool_end_ps:
                if where < 0:
                    pool += 1
                else:
                    add(where, "tool", row.prompt_tokens + row.output_tokens)
            if after is not None and after.node == row.node and after.hit_tokens > 0:
                outside = row.finished_ps <= at_ps < row.tool_end_ps and where < 0
                if outside or after.arrived_ps <= at_ps < after.submitted_ps:
                    add(row.node, "cached", after.hit_tokens)
    return held, pool


def counted(played: Playback, k: int) -> tuple[Held, int]:
    """The same of a playback."""
    held: Held = {
        (b, part): [int(played.tokens[k, b, p]), int(played.sessions[k, b, p])]
        for b in range(len(played.node_ids))
        for p, part in enumerate(PARTS)
    }
    return held, int(played.pool[k])


POLICY = st.sampled_from(("tao", "thunderagent", "sticky", "vllm_cache_aware", "previous"))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(runs.DATA, POLICY, st.integers(2, 9))
def test_what_is_held_is_what_a_slow_count_of_the_history_finds(
    data: bytes, policy: str, moments: int
) -> None:
    history = runs.outcome(lambda: runs.run(data).play(policy))
    if isinstance(history, str):
        return
    played = playback(history, moments)
    for k, at_ps in enumerate(played.times_ps.tolist()):
        assert counted(played, k) == naive(history, at_ps)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(runs.DATA, st.sampled_from(("tao", "thunderagent", "sticky")))
def test_who_holds_a_place_is_who_is_resident_in_the_stepper(data: bytes, policy: str) -> None:
    run = runs.run(data)
    free = {
        "plan_cost_s": 0.0,
        "plan_cost_per_state_s": 0.0,
    }  # else pauses are recorded when the plan is ready
    params = replace(run.settings["params"], **free)
    s = run.settings | {"params": params}
    work = run.workload
    assume(s["capacity_tokens"] >= max(task.peak_tokens for task in work.tasks) + params.reserve_tokens)
    seen: dict[int, tuple[Any, ...]] = {}

    def look(cluster: Cluster) -> None:
        view = cluster.view
        live = view.live.tolist()
        at = {(b, phase): 0 for b in range(len(view.node_ids)) for phase in (REASONING, TOOL)}
        for i in live:
            if view.resident[i] >= 0:
                at[int(view.resident[i]), int(view.phase[i])] += 1
        seen[cluster.now_ps] = at, sum(view.resident[i] < 0 for i in live)

    come_ps = arrival_times(work, s["arrivals"], s.get("rate_per_s"))
    shape = s["nodes"], s["workers"], s["profile"], s["capacity_tokens"], params
    played = runs.outcome(
        lambda: Cluster(
            work, make_policy(policy, params), *shape, False, look, come_ps, s["tool_servers"]
        ).run()
    )
    if isinstance(played, str):
        return
    played.settings = {"shared_prefix_tokens": work.shared_prefix_tokens}
    moments = sorted(seen)
    for at_ps in moments[:: max(len(moments) // 12, 1)]:
        held, pool = naive(played, at_ps)
        at, outside = seen[at_ps]
        assert pool == outside
        for b in range(s["nodes"]):
            assert held[b, "reasoning"][1] + held[b, "queue"][1] == at[b, REASONING]
            assert held[b, "tool"][1] == at[b, TOOL]


@pytest.mark.parametrize("policy", ["tao", "sticky"])
def test_the_parts_of_a_node_sum_to_its_room(policy: str) -> None:
    panel = PlayerPanel(SMALL, policy)
    over = 0
    for k in range(0, panel.count, 7):
        for b in range(2):
            of = panel.played
            parts = of.used(k, b) + of.cached(k, b) + of.free(k, b) - of.over(k, b)
            assert parts == of.room_tokens
            over += of.over(k, b)
    assert (over > 0) == (policy == "sticky")  # tao never promises more than there is
    panel.close()


def test_what_it_came_to_is_what_the_metrics_say(panel: PlayerPanel) -> None:
    past, values = so_far(panel.history, panel.history.end_ps), measure(panel.history)
    assert past.pool_wait_s == pytest.approx(values["pool_wait_s"])
    assert past.pool_wait_s + past.queue_wait_s == pytest.approx(
        (panel.history.column("scheduled_ps") - panel.history.column("arrived_ps")).mean() / PS_PER_S
    )
    assert (past.done, past.answers) == (SMALL.tasks, len(panel.history.turns))
    first = so_far(panel.history, 0)
    assert (first.done, first.pool_wait_s) == (0, 0.0)


def test_a_playback_needs_two_moments(panel: PlayerPanel) -> None:
    with pytest.raises(InputError, match="moments is 1"):
        playback(panel.history, 1)


# The panel


def test_it_is_the_run_of_the_race(panel: PlayerPanel) -> None:
    race = compare(**(replace(SMALL, seeds=1, rivals=("sticky",)).arguments()))
    latency = race.runs.set_index("policy")["task_latency_s"]
    assert measure(panel.history)["task_latency_s"] == pytest.approx(latency["tao"])


def test_five_forward_and_five_back_gives_the_same_state(panel: PlayerPanel) -> None:
    panel.step = 100
    seen, chart = [shown(panel)], panel.chart().to_dict()
    for _ in range(5):
        panel.next()
        seen.append(shown(panel))
    for expected in reversed(seen[:-1]):
        panel.previous()
        assert shown(panel) == expected
    assert panel.chart().to_dict() == chart
    assert len({view[3] for view in seen}) == 6


def test_every_moment_says_what_it_draws(panel: PlayerPanel) -> None:
    for step in (1, 2, 60, 200, panel.count):
        panel.step = step
        value, k = drawn(panel), step - 1
        assert len(value["edges"][0]) == len(value["counts"][0]) == step
        assert value["now"] == round(panel.now_s, 3)
        assert [each[k] for each in value["counts"]] == [
            int(panel.played.pool[k]),
            int(panel.played.sessions[k, :, PARTS.index("queue")].sum()),
        ]
        assert f"{value['counts'][0][k]} in the pool" in panel.status.value
        ends = {row["node"]: row["hi"] for row in value["bars"]}
        assert all(end >= panel.played.room_tokens for end in ends.values())
        total = next(line for line in panel.text().splitlines() if line.strip().startswith("all"))
        held = [int(cell.replace(",", "")) for cell in total.split()[1:]]
        tops = [value["edges"][p + 1][k] - value["edges"][p][k] for p in range(len(PARTS))]
        assert held[: len(PARTS)] == tops
    assert f"{SMALL.tasks} sessions done" in panel.text()


def test_fields_are_pending_until_reset(panel: PlayerPanel) -> None:
    panel.step = 50
    before, history = shown(panel)[1:4:2], panel.history
    panel.fields["policy"].value = "sticky"
    panel.fields["workers"].value = 10
    assert (panel.step, panel.history, shown(panel)[1:4:2]) == (50, history, before)
    assert "Pending: workers 10, policy sticky. Reset runs it" in panel.waiting.value
    assert (panel.setting, panel.policy) == (SMALL, "tao")
    panel.reset_button.click()
    assert (panel.step, panel.setting, panel.policy) == (1, replace(SMALL, workers=10), "sticky")
    assert panel.history.settings["workers"] == 10
    assert "Nothing is pending" in panel.waiting.value
    assert "policy sticky" in panel.text()


def test_a_preset_is_filled_in_and_keeps_the_policy(panel: PlayerPanel) -> None:
    panel.change(policy="thunderagent")
    panel.preset.value = "room for all"
    assert panel.pending == (PRESETS["room for all"], "thunderagent", 0)
    assert panel.setting == SMALL


def test_nobody_held_back_means_an_empty_pool_and_a_queue_at_the_engine() -> None:
    waits = {}
    for policy in ("tao", "sticky"):
        panel = PlayerPanel(PRESETS["crowded, slow tools"], policy)
        queue = panel.played.sessions[100:200, :, PARTS.index("queue")].sum(axis=1)
        again = so_far(panel.history, panel.history.end_ps).again_tokens
        waits[policy] = panel.played.pool[100:200].mean(), queue.mean(), again
        panel.close()
    assert waits["sticky"][0] == 0
    assert waits["tao"][0] > 5
    assert waits["tao"][1] < 1 < waits["sticky"][1]
    assert waits["sticky"][2] > 5 * waits["tao"][2]


def test_the_table_is_filled_only_while_it_is_seen(panel: PlayerPanel) -> None:
    panel.step = 3
    assert "<tr>" not in panel.figure._table.value
    panel.figure.as_table.value = True
    assert panel.figure._table.value.count('<th scope="row">') == 3
    panel.next()
    assert panel.figure._table.value.count('<th scope="row">') == 4


# Playing


def playing(panel: PlayerPanel) -> bool:
    return panel.playing is not None


def story(tell: Callable[[], Awaitable[None]]) -> None:
    """A test that needs a running loop; at its end nothing may still run."""

    async def told() -> None:
        await tell()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert left == set()

    asyncio.run(told())


async def until(panel: PlayerPanel, step: int) -> None:
    for _ in range(500):
        if panel.step >= step:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"it never came to step {step}")


def test_play_goes_on_by_itself_and_shows_what_steps_show(panel: PlayerPanel) -> None:
    async def tell() -> None:
        panel.speed = 8
        panel.play_button.click()
        assert panel.play_button.description == "Pause"
        task = panel.playing
        panel.play()  # once more: nothing
        assert panel.playing is task
        await until(panel, 4)
        panel.play_button.click()
        step, seen = panel.step, shown(panel)
        assert (playing(panel), panel.play_button.description) == (False, "Play")
        await asyncio.sleep(0.3)
        assert panel.step == step
        panel.first()
        panel.step = step
        assert shown(panel) == seen

    story(tell)


def test_play_ends_at_the_last_moment_and_begins_again_from_there(panel: PlayerPanel) -> None:
    async def tell() -> None:
        panel.speed, panel.step = 8, panel.count - 2
        panel.play()
        assert panel.playing is not None
        await panel.playing
        assert (panel.step, playing(panel), panel.play_button.description) == (panel.count, False, "Play")
        panel.play()
        await asyncio.sleep(0)
        assert panel.step == 1
        panel.pause()
        await asyncio.sleep(0)

    story(tell)


STOPS: dict[str, Callable[[PlayerPanel], Any]] = {
    "First": lambda panel: panel.buttons["First"].click(),
    "Previous": lambda panel: panel.buttons["Previous"].click(),
    "Next": lambda panel: panel.buttons["Next"].click(),
    "Last": lambda panel: panel.buttons["Last"].click(),
    "number": lambda panel: setattr(panel.number, "value", 9),
    "step": lambda panel: setattr(panel, "step", 9),
    "reset": lambda panel: panel.reset(),
    "pause": lambda panel: panel.pause(),
    "close": lambda panel: panel.close(),
}


@pytest.mark.parametrize("how", STOPS)
def test_play_is_stopped_by(how: str) -> None:
    async def tell() -> None:
        panel = PlayerPanel(SMALL)
        panel.play()
        task = panel.playing
        await asyncio.sleep(0)
        STOPS[how](panel)
        assert task is not None
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (playing(panel), panel.play_button.description) == (False, "Play")
        panel.close()

    story(tell)


def test_running_the_cell_again_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell() -> None:
        monkeypatch.setattr(base, "_running_cell", lambda: ("cell", "first run"))
        one = PlayerPanel(SMALL)
        one.play()
        task = one.playing
        await asyncio.sleep(0)
        monkeypatch.setattr(base, "_running_cell", lambda: ("cell", "second run"))
        other = PlayerPanel(SMALL)
        await asyncio.sleep(0)
        assert task is not None
        assert task.cancelled()
        other.close()

    before = len(widget_module._instances)
    story(tell)
    assert len(widget_module._instances) == before


@pytest.mark.parametrize("in_pytest", [True, False])
def test_an_error_while_playing_is_seen_in_the_panel(
    panel: PlayerPanel, monkeypatch: pytest.MonkeyPatch, in_pytest: bool
) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("a broken sentence")

    async def tell() -> None:
        panel.speed = 8
        panel.play()
        assert panel.playing is not None
        if in_pytest:
            with pytest.raises(ZeroDivisionError):
                await panel.playing
        else:
            await panel.playing
        assert (playing(panel), panel.play_button.description) == (False, "Play")
        assert "ZeroDivisionError: a broken sentence" in panel.error.value

    with monkeypatch.context() as patched:
        patched.setattr(player_words, "headline", broken)
        if not in_pytest:
            patched.delenv("PYTEST_CURRENT_TEST")
        story(tell)
    panel.first()
    panel.next()
    assert panel.error.value == ""
    assert "PYTEST_CURRENT_TEST" in os.environ


def test_without_a_loop_it_says_what_to_do(panel: PlayerPanel) -> None:
    with pytest.raises(InputError, match="without a running event loop; call play"):
        panel.play()
    assert panel.playing is None
    assert "running event loop" in panel.error.value


# What is not offered


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"size": 1}, "no field 'size'; the fields are policy, workload"),
        ({"policy": "magic"}, "policy is 'magic'; it must be one of "),
        ({"delay": "long"}, "delay is 'long'; it must be one of none"),
        ({"workers": 0}, "workers is 0; it must be a whole number from 1 to 200"),
        ({"policy": "sticky", "seed": 1.5}, "seed is 1.5"),
    ],
)
def test_a_field_that_is_not_offered_is_refused(
    panel: PlayerPanel, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        panel.change(**fields)
    assert panel.pending == panel.case


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"policy": "magic"}, "policy is 'magic'"),
        ({"seed": -1}, "seed is -1"),
        ({"setting": Setting(delay="long")}, "delay is 'long'"),
        ({"setting": Setting(nodes=9)}, "nodes is 9; it must be a whole number from 1 to 8"),
        ({"setting": Setting(workload="nothing")}, "nothing"),
    ],
)
def test_a_case_that_cannot_be_shown_is_refused(arguments: dict[str, Any], reason: str) -> None:
    before = len(widget_module._instances)
    with pytest.raises(InputError, match=reason):
        PlayerPanel(**arguments)
    assert len(widget_module._instances) == before


def test_a_speed_that_is_not_offered_is_refused(panel: PlayerPanel) -> None:
    with pytest.raises(InputError, match="speed is 3 moments per second; it must be one of 1, 4, 8"):
        panel.speed = 3


def test_picture_and_text_say_the_same(panel: PlayerPanel) -> None:
    panel.step = 120
    bundle = panel._repr_mimebundle_()
    assert 2_000 < len(bundle["image/png"]) <= 60 * 1024
    assert bundle["text/plain"] == panel.text()
