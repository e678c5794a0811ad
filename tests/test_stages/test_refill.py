"""Refill: further examples run until enough have mixed rewards, and a killed stage goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages import rollout
from stages.engines.interface import Request
from stages.programs.choice import order
from tests.test_stages.programs_kit import Bench, CharEngine, FolderOut, recipe_of, rows_of
from tests.test_stages.test_choice import SOURCE


def answer(prompt: str, request: Request) -> str:
    """Examples of an even number are mixed, the others always fail."""
    return "yes" if int(prompt.strip().removeprefix("train")) % 2 == 0 and request.seed % 2 else "no"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "prog.py").write_text(SOURCE)
    made = Bench(tmp_path, CharEngine(answer), monkeypatch)
    made.examples(train=16, dev=1)
    return made


def recipe(**fields: Any) -> Recipe:
    return recipe_of(rollout={"examples": 4, "rollouts": 8, **fields})


def ran(out: FolderOut) -> set[str]:
    return {row["example_id"] for row in rows_of(out.folder, ROLLOUTS)}


def mixed(out: FolderOut) -> int:
    rewards: dict[str, set[float]] = {}
    for row in rows_of(out.folder, ROLLOUTS):
        rewards.setdefault(row["example_id"], set()).add(row["reward"])
    return sum(len(values) > 1 for values in rewards.values())


def test_it_runs_on_in_the_order_of_the_draw_until_enough_are_mixed(bench: Bench, tmp_path: Path):
    asked = recipe(refill=5, refill_limit=16)
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, asked, out, iteration=2)
    count = metrics["examples"]
    names = sorted(ran(FolderOut(tmp_path / "out")))
    everyone = FolderOut(tmp_path / "all")
    bench.run(rollout, recipe(examples=16), everyone, iteration=2)
    assert set(names) == set(order(sorted(ran(everyone)), asked, 2, {})[:count])
    assert metrics["mixed_examples"] == mixed(out) == 5
    assert metrics["refilled"] == count - 4 > 0
    assert metrics["refill_ended"] == "enough examples have mixed rewards"
    assert bench.used == 2, "one engine serves all waves"


def test_every_rollout_of_a_started_example_is_kept(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, recipe(refill=3), out, iteration=0)
    assert metrics["rollouts"] == len(rows_of(out.folder, ROLLOUTS)) == 8 * metrics["examples"]


def test_the_first_examples_and_their_rollouts_are_those_of_a_stage_without_refill(bench: Bench, tmp_path: Path):
    plain, more = FolderOut(tmp_path / "plain"), FolderOut(tmp_path / "more")
    bench.run(rollout, recipe(), plain, iteration=1)
    bench.run(rollout, recipe(refill=6, refill_limit=16), more, iteration=1)
    for table in (ROLLOUTS, INVOCATIONS):
        rows = rows_of(more.folder, table)
        assert all(row in rows for row in rows_of(plain.folder, table))


@pytest.mark.parametrize(
    ("fields", "examples", "ended"),
    [
        ({"refill": 1}, 4, "enough examples have mixed rewards"),
        ({"refill": 6, "refill_limit": 6}, 6, "6 examples, the most that an iteration may run, were run"),
        ({"refill": 9, "refill_limit": 99}, 16, "every example of the split was run"),
    ],
)
def test_the_metrics_say_why_it_stopped(
    bench: Bench, tmp_path: Path, fields: dict[str, Any], examples: int, ended: str
):
    metrics = bench.run(rollout, recipe(**fields), FolderOut(tmp_path / "out"), iteration=0)
    assert (metrics["examples"], metrics["refill_ended"]) == (examples, ended)


def test_a_smallest_spread_of_groups_is_what_mixed_means(bench: Bench, tmp_path: Path):
    picky = recipe_of(rollout={"examples": 4, "rollouts": 8, "refill": 2}, group={"min_spread": 1.0})
    metrics = bench.run(rollout, picky, FolderOut(tmp_path / "out"), iteration=0)
    assert (metrics["mixed_examples"], metrics["examples"]) == (0, 8)


@pytest.mark.parametrize("kill_at", [0, 3, 8, 9, 11, 14, 18])
def test_a_killed_refill_ends_with_the_bytes_of_an_undisturbed_one(bench: Bench, tmp_path: Path, kill_at: int):
    asked = recipe(refill=5, refill_limit=16)
    whole = FolderOut(tmp_path / "whole")
    metrics = bench.run(rollout, asked, whole, iteration=0)
    assert metrics["examples"] > 8, "the kills reach beyond the second wave"
    out = FolderOut(tmp_path / "out", fail_after=kill_at)
    with pytest.raises(KeyboardInterrupt):
        bench.run(rollout, asked, out, iteration=0)
    done = set(out.committed("rollouts/"))
    second = FolderOut(out.folder)
    assert bench.run(rollout, asked, second, iteration=0) == metrics
    assert not done & set(second.commits)
    for table in (ROLLOUTS, INVOCATIONS):
        name = f"{table.name}.parquet"
        assert (out.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_the_number_of_workers_changes_nothing(bench: Bench, tmp_path: Path, concurrency: int):
    from schemas.execution import Execution

    asked, out, other = recipe(refill=5), FolderOut(tmp_path / "out"), FolderOut(tmp_path / "other")
    bench.run(rollout, asked, out, iteration=0)
    rollout.run(bench.inputs(iteration=0), asked, Execution(concurrency=concurrency), other)
    assert (out.folder / "rollouts.parquet").read_bytes() == (other.folder / "rollouts.parquet").read_bytes()


def test_with_a_choice_by_spread_the_refill_goes_on_in_its_order(bench: Bench, tmp_path: Path):
    asked = recipe(refill=4, refill_limit=16, choice="spread")
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, asked, out, iteration=0)
    bench.run(rollout, recipe(examples=16), FolderOut(tmp_path / "all"), iteration=0)
    ids = sorted(ran(FolderOut(tmp_path / "all")))
    assert ran(out) == set(order(ids, asked, 0, {})[: metrics["examples"]])
    assert "tries.parquet" in out.committed()
