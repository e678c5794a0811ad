"""Which examples an iteration runs: passes, choice by earlier spread with its floor, and what rollouts are worth."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from schemas.recipe import Recipe
from schemas.recipe_data import GroupSection
from schemas.rollouts import ROLLOUTS
from schemas.tries import TRIES
from stages import rollout
from stages.engines.interface import Request
from stages.programs.choice import by_deviation, draw, order
from stages.programs.worth import MICRO, Worths, worths
from tests.test_stages.programs_kit import Bench, CharEngine, FolderOut, recipe_of, rows_of

IDS = [f"e{index:02}" for index in range(24)]

SOURCE = """
def program():
    def run(inputs, call):
        return call("ask", [{"role": "user", "content": inputs["x"]}]).text
    return run

def metric(example, output, calls):
    return float(output == "yes")
"""


def spread_recipe(**fields: Any) -> Recipe:
    return recipe_of(rollout={"examples": 8, "rollouts": 4, "choice": "spread", **fields})


def test_without_a_choice_the_first_examples_are_those_of_the_passes_and_the_rest_follows():
    recipe = recipe_of(rollout={"examples": 5})
    for iteration in range(6):
        names = order(IDS, recipe, iteration, {})
        assert names[:5] == draw(IDS, 0, iteration, 5)
        assert sorted(names) == IDS


def test_what_a_refill_takes_first_is_not_what_the_next_iteration_starts_with():
    recipe = recipe_of(rollout={"examples": 4})
    same = sum(set(order(IDS, recipe, i, {})[4:8]) == set(order(IDS, recipe, i + 1, {})[:4]) for i in range(20))
    assert same == 0


@pytest.mark.parametrize("choice", ["passes", "spread"])
def test_the_order_depends_on_seed_iteration_and_tries_and_not_on_the_order_of_files(choice: str):
    recipe = spread_recipe(choice=choice)
    tried = {name: index % 3 / 2 for index, name in enumerate(IDS[:18])}
    names = order(IDS, recipe, 3, tried)
    mixed, shuffled = list(IDS), list(tried.items())
    random.Random(1).shuffle(mixed)
    random.Random(2).shuffle(shuffled)
    assert order(mixed, recipe, 3, dict(shuffled)) == names
    assert order(IDS, recipe, 4, tried) != names
    assert order(IDS, recipe.model_copy(update={"seed": 9}), 3, tried) != names
    assert (order(IDS, recipe, 3, {}) != names) == (choice == "spread")


def test_disputed_and_untried_examples_are_drawn_more_often_than_settled_ones():
    tried = {name: 0.5 if name < "e08" else 0.125 for name in IDS[:16]}
    counts = Counter(name for i in range(400) for name in by_deviation(IDS, 0, i, tried)[:8])
    disputed, mild, untried = (sum(counts[name] for name in IDS[low : low + 8]) for low in (0, 8, 16))
    assert disputed > 2.5 * mild
    assert untried > 2.5 * mild
    assert abs(disputed - untried) < 0.1 * disputed


def test_settled_examples_are_chosen_only_by_the_floor_while_others_are_there():
    tried = dict.fromkeys(IDS[:12], 0.0) | dict.fromkeys(IDS[12:], 0.5)
    for iteration in range(30):
        names = order(IDS, spread_recipe(), iteration, tried)[:8]
        floor = draw(IDS, 0, iteration, 2)
        assert names[:2] == floor
        assert not set(names[2:]) & set(IDS[:12])


def test_the_floor_brings_every_example_back_however_settled_it_is():
    tried = dict.fromkeys(IDS, 0.0) | {IDS[0]: 1.0}
    recipe = spread_recipe(choice_floor=0.25)
    passes = len(IDS) // 2  # iterations that the floor's two examples need for all
    for start in (0, passes, 2 * passes):
        seen = {name for i in range(start, start + passes) for name in order(IDS, recipe, i, tried)[:2]}
        assert seen == set(IDS)


def test_examples_that_are_all_settled_are_drawn_in_a_seeded_order():
    tried = dict.fromkeys(IDS, 0.0)
    first, second = by_deviation(IDS, 0, 1, tried), by_deviation(IDS, 0, 2, tried)
    assert sorted(first) == sorted(second) == IDS
    assert first != second != IDS


def frames(*runs: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rollouts and calls of one example `e`: a run is status, reward, and its calls' (parse_status, share, finish)."""
    rollouts = [
        {"example_id": "e", "rollout_id": str(i), "status": run["status"], "reward": run.get("reward")}
        for i, run in enumerate(runs)
    ]
    calls = [
        {
            "rollout_id": str(i),
            "module": "m",
            "invocation_index": index,
            "attempt": 0,
            "parse_status": parse,
            "parsed_share": share,
            "finish_reason": finish,
            "trainable": True,
        }
        for i, run in enumerate(runs)
        for index, (parse, share, finish) in enumerate(run.get("calls", [("ok", 1.0, "stop")]))
    ]
    schema = {"reward": pl.Float64}
    return pl.DataFrame(rollouts, schema_overrides=schema), pl.DataFrame(calls, infer_schema_length=None)


@pytest.mark.parametrize(
    ("run", "group", "worth"),
    [
        ({"status": "ok", "reward": 0.25}, {}, 0.25),
        ({"status": "ok", "reward": 0.0}, {}, 0.0),
        ({"status": "ok"}, {}, None),
        ({"status": "metric_error"}, {}, None),
        ({"status": "engine_error"}, {}, None),
        ({"status": "program_error"}, {"failure_score": -0.5}, -0.5),
        ({"status": "parse_failed", "calls": [("ok", 1.0, "stop"), ("failed", 0.5, "stop")]}, {}, -0.5),
        ({"status": "parse_failed", "calls": [("failed", None, "stop")]}, {}, -1.0),
        ({"status": "ok", "reward": 1.0, "calls": [("ok", 1.0, "length")]}, {}, 0.0),
        ({"status": "ok", "reward": 1.0, "calls": [("ok", 1.0, "length")]}, {"truncated": "mask"}, None),
    ],
)
def test_a_rollout_is_worth_its_reward_or_the_score_of_its_failure(
    run: dict[str, Any], group: dict[str, Any], worth: float | None
):
    found = worths(*frames(run), GroupSection(**group))
    assert found == ({} if worth is None else {"e": Worths((round(worth * MICRO),))})


def test_only_the_last_attempt_of_an_invocation_counts():
    rollouts, calls = frames({"status": "ok", "reward": 1.0, "calls": [("failed", 0.0, "length")]})
    again = calls.with_columns(attempt=pl.lit(1, pl.Int64), parse_status=pl.lit("ok"), finish_reason=pl.lit("stop"))
    assert worths(rollouts, pl.concat([calls, again]), GroupSection()) == {"e": Worths((MICRO,))}


def test_mean_spread_and_deviation_are_those_of_the_formulas():
    worth = Worths((0, 0, 0, MICRO))
    assert (worth.mean, worth.spread) == (0.25, 1.0)
    assert worth.deviation == pytest.approx((0.25 * 0.75) ** 0.5)
    assert worth.mixed(GroupSection())
    assert not worth.mixed(GroupSection(min_spread=1.0))
    assert not Worths((5, 5)).mixed(GroupSection())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "prog.py").write_text(SOURCE)

    def answer(prompt: str, request: Request) -> str:
        return "yes" if prompt.strip() in {"train0", "train1"} and request.seed % 2 else "no"

    made = Bench(tmp_path, CharEngine(answer), monkeypatch)
    made.examples(train=12, dev=1)
    return made


def test_a_run_of_iterations_learns_which_examples_are_disputed(bench: Bench, tmp_path: Path):
    recipe = spread_recipe(examples=4, rollouts=8)
    drawn: list[set[str]] = []
    for iteration in range(5):
        out = FolderOut(tmp_path / f"out{iteration}")
        bench.run(rollout, recipe, out, iteration=iteration)
        rows = rows_of(out.folder, TRIES)
        drawn.append({row["example_id"] for row in rows_of(out.folder, ROLLOUTS)})
        assert {row["example_id"] for row in rows} == set().union(*drawn)
        assert {row["example_id"] for row in rows if row["iteration"] == iteration} == drawn[-1]
        earlier = bench.root / "artifacts" / "earlier"
        earlier.mkdir(exist_ok=True)
        (earlier / "tries.parquet").write_bytes((out.folder / "tries.parquet").read_bytes())
    disputed = {row["example_id"] for row in rows if row["deviation"] > 0}
    assert len(disputed) == 2
    assert len(set().union(*drawn)) == 12, "untried examples come before settled ones"
    out = FolderOut(tmp_path / "last")
    bench.run(rollout, recipe, out, iteration=5)
    assert disputed < {row["example_id"] for row in rows_of(out.folder, ROLLOUTS)}


def test_without_a_choice_no_tries_are_written_and_the_scores_of_failures_are_not_in_the_key(
    bench: Bench, tmp_path: Path
):
    out = FolderOut(tmp_path / "out")
    bench.run(rollout, recipe_of(rollout={"examples": 2, "rollouts": 2}), out, iteration=0)
    assert "tries.parquet" not in out.committed()
    plain, other = (recipe_of(rollout={"examples": 2}, group={"failure_score": score}) for score in (0.0, 0.5))
    assert rollout.recipe_slice(plain) == rollout.recipe_slice(other)
    plain, other = (
        recipe_of(rollout={"examples": 2, "choice": "spread"}, group={"failure_score": score}) for score in (0.0, 0.5)
    )
    assert rollout.recipe_slice(plain) != rollout.recipe_slice(other)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"refill_limit": 8}, "`refill_limit` needs `refill`"),
        ({"refill": 3, "refill_limit": 3}, "refill_limit is 3, fewer than `examples`"),
        ({"refill": 9}, "refill is 9, but an iteration runs 8 examples at most"),
        ({"choice_floor": 0.0}, "greater than 0"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        recipe_of(rollout={"examples": 4, **fields})
