"""What the README says is so: its example runs, its tree is complete, its commands are the ones CI uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tao
from tao import quality
from tao.comparisons import compare, interval
from tao.workloads import snapshots

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def test_the_examples_run_and_print_what_they_say(capsys):
    first, second, *_live = (text for language, text in BLOCKS if language == "python")
    exec(compile(first, "README.md", "exec"), {})
    assert "# 16791 13624" in first
    assert capsys.readouterr().out.startswith("16791 13624\n")
    exec(compile(second, "README.md", "exec"), {"__name__": "readme"})
    assert "RoundRobin" in capsys.readouterr().out


def test_there_are_exactly_two_commands_to_set_up():
    commands = [text.strip() for language, text in BLOCKS if not language and "python3 -m venv" in text]
    assert len(commands) == 2
    assert all("\n" not in command for command in commands)
    assert commands[0].endswith(".venv/bin/tao lab")
    assert commands[1].endswith(".venv/bin/python -m pytest -n 2 --dist loadfile")
    assert README.index("<!-- test command -->") < README.index(commands[1])


def test_the_tree_names_every_module():
    modules = {p.stem for p in (ROOT / "tao").glob("*.py")} - {
        "__init__",
        "_jit",
        "_altair",
        "history",
        "invariants",
    }
    modules -= {"library", "warmup", "bench", "workload_params"}  # helpers that a reader finds by their use
    (tree,) = (text for language, text in BLOCKS if "tao/            the package" in text)
    assert {name for name in modules if f"{name}.py" not in tree} == set()
    named = re.findall(r"(\w+)\.py", tree)
    assert {name for name in named if not list(ROOT.glob(f"**/{name}.py"))} == set()


def test_every_name_that_is_offered_exists():
    for name in tao.__all__:
        assert getattr(tao, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'comparison'"):
        _ = tao.comparison


@pytest.mark.long
def test_the_table_of_the_readme_is_what_compare_gives():
    result = compare(tasks=300)
    summary = result.summary().set_index(["policy", "metric"])
    rows = {
        "task latency, s": ("task_latency_s", "{:.0f}"),
        "time to first token, pool wait included, s": ("ttft_s", "{:.2f}"),
        "decode, tokens/s, steady window": ("decode_tok_s", "{:,.0f}"),
        "prefix hit rate": ("prefix_hit_rate", "{:.3f}"),
        "capacity / live contexts": ("capacity_over_live", "{:.2f}"),
    }
    for title, (metric, form) in rows.items():
        cells = []
        for policy in ("tao", "thunderagent", "sticky"):
            mean, lo, hi = (form.format(summary.loc[(policy, metric), k]) for k in ("mean", "lo", "hi"))
            cells.append(f"{mean} [{lo}, {hi}]")
        assert f"| {title} | {' | '.join(cells)} |" in README
    runs = result.runs.pivot_table(index="seed", columns="policy", values=["task_latency_s", "ttft_s"])
    for metric, form in (("task_latency_s", "{:.1f}"), ("ttft_s", "{:.0f}")):
        lower = 100 * (1 - runs[metric, "tao"] / runs[metric, "thunderagent"])
        mean, lo, hi = (form.format(interval(lower.to_numpy())[k]) for k in ("mean", "lo", "hi"))
        assert re.search(rf"{mean} %\s+lower \[{lo}, {hi}\]", README)
        assert (lower > 0).all()


def test_what_the_readme_tells_of_rounding_is_what_quality_gives():
    decisions = [snapshots("recorded", 160, 4, k) for k in range(300)]
    losses = quality.rounding_loss(decisions, [1024, 4096])["loss_mean"]
    below = quality.differences(decisions, ["dp", "short_first", "bfd"])["below"]
    text = " ".join(README.split())
    assert f"quanta of 1,024 tokens lose {losses[0]:.0%}".replace("%", " %") in text
    assert f"quanta of 4,096 lose {losses[1]:.0%}".replace("%", " %") in text
    assert "in {} of them (short-first in {}, best-fit decreasing in {};".format(*below) in text
