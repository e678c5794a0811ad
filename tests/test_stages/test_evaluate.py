"""The evaluate stage: scores of one policy on one split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError
from schemas.parquet import read_rows, write_table
from schemas.rollouts import INVOCATIONS
from schemas.scores import LATENCY, SCORES
from stages import evaluate
from stages.engines.interface import Request, Result
from tests.test_stages.programs_kit import Bench, CharEngine, FolderOut, recipe_of, rows_of

SOURCE = """
from schemas.errors import ParseError

def parse(text):
    if not text.isdigit():
        raise ParseError([], ["digit"])
    return int(text)

def program():
    def run(inputs, call):
        return call("ask", [{"role": "user", "content": inputs["x"]}], parse=parse).value
    return run

def metric(example, output, calls):
    return {"score": float(output == int(example.labels["y"])), "size": output}
"""


def right_or_bad(prompt: str, request: Request) -> str:
    digit = prompt.strip().removeprefix("dev")
    return "bad" if digit == "3" else digit if digit in "01" else "0"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "prog.py").write_text(SOURCE)
    made = Bench(tmp_path, CharEngine(right_or_bad), monkeypatch)
    made.examples(dev=4, test=1)
    return made


def test_failures_count_as_the_recipe_says_and_keep_a_null_score(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(evaluate, recipe_of(), out, split="dev")
    rows = rows_of(out.folder, SCORES)
    assert sorted((row["status"], row["score"]) for row in rows if row["score"] is not None) == [
        ("ok", 0.0),
        ("ok", 1.0),
        ("ok", 1.0),
    ]
    failed = [row for row in rows if row["score"] is None]
    assert [(row["status"], row["parts"]) for row in failed] == [("parse_failed", None)]
    assert {row["policy"] for row in rows} == {"p0"}
    assert (metrics["mean"], metrics["n"], metrics["failures"]) == (0.5, 4, {"parse_failed": 1})
    assert metrics["parse_first_attempt_valid"] == 0.75
    assert metrics["parts"] == {"size": pytest.approx(1 / 3)}
    harsh = bench.run(evaluate, recipe_of(evaluate={"failure_score": -1.0}), FolderOut(tmp_path / "harsh"), split="dev")
    assert harsh["mean"] == 0.25


def test_the_calls_are_kept_and_the_clock_is_in_the_telemetry_alone(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    bench.run(evaluate, recipe_of(), out, split="dev")
    kept = [name for name in out.committed() if not name.startswith(tuple(out.dropped))]
    assert kept == ["invocations.parquet", "scores.parquet", "telemetry/latency.parquet"]
    runs = [(row["example_id"], row["sample"]) for row in rows_of(out.folder, SCORES)]
    clocked = read_rows(out.folder / "telemetry" / "latency.parquet", LATENCY)
    assert [(row["example_id"], row["sample"]) for row in clocked] == runs
    assert all(row["seconds"] > 0 for row in clocked)


def test_what_a_run_cost_is_what_its_calls_say(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    bench.run(evaluate, recipe_of(evaluate={"parse_retries": 2, "sampling": {"temperature": 1.0}}), out, split="dev")
    calls = rows_of(out.folder, INVOCATIONS)
    for row in rows_of(out.folder, SCORES):
        own = [call for call in calls if call["rollout_id"] == row["rollout_id"]]
        assert row["calls"] == len(own) == (3 if row["status"] == "parse_failed" else 1)
        assert row["prompt_tokens"] == sum(len(call["prompt_ids"]) for call in own)
        assert row["completion_tokens"] == sum(len(call["completion_ids"]) for call in own)


def test_tokens_that_nobody_told_are_null_and_those_of_a_prompt_too_long_are_none(bench: Bench, tmp_path: Path):
    class TellsNoIds(CharEngine):
        def _one(self, request: Request) -> Result:
            made = super()._one(request)
            return made if not made.text else replace(made, completion_ids=None, logprobs=None, fidelity="text")

    def costs(engine: CharEngine) -> set[tuple[Any, ...]]:
        bench.engine = engine
        out = FolderOut(tmp_path / f"out-{len(list(tmp_path.iterdir()))}")
        bench.run(evaluate, recipe_of(), out, split="dev")
        rows = rows_of(out.folder, SCORES)
        return {(row["calls"], row["prompt_tokens"] is None, row["completion_tokens"]) for row in rows}

    assert costs(TellsNoIds(right_or_bad)) == {(1, False, None)}
    assert costs(CharEngine(right_or_bad, context=1)) == {(1, False, 0)}


def test_scores_of_another_release_are_refused_and_what_to_run_is_said(tmp_path: Path):
    older = replace(SCORES, version=1)
    write_table([], tmp_path / "scores.parquet", older)
    with pytest.raises(DataError, match=r"schema version 1 is known.*this release reads 2.*\n.*mmgrpo run RECIPE"):
        read_rows(tmp_path / "scores.parquet", SCORES)


def test_a_killed_stage_takes_up_where_it_was(bench: Bench, tmp_path: Path):
    whole = FolderOut(tmp_path / "whole")
    metrics = bench.run(evaluate, recipe_of(), whole, split="dev")
    out = FolderOut(tmp_path / "out", fail_after=6)
    with pytest.raises(KeyboardInterrupt):
        bench.run(evaluate, recipe_of(), out, split="dev")
    done = set(out.committed("scores/"))
    assert len(done) == 2
    second = FolderOut(out.folder)
    assert bench.run(evaluate, recipe_of(), second, split="dev") == metrics
    assert not done & set(second.commits)


def test_limit_and_samples_decide_the_rows(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    sampled = {"temperature": 1.0}
    recipe = recipe_of(evaluate={"limit": 2, "samples": 3, "sampling": sampled})
    metrics = bench.run(evaluate, recipe, out, split="dev")
    rows = rows_of(out.folder, SCORES)
    ids = sorted({row["example_id"] for row in rows})
    assert [(row["example_id"], row["sample"]) for row in rows] == [(name, index) for name in ids for index in range(3)]
    assert (metrics["n"], metrics["runs"]) == (2, 6)


def test_every_policy_is_scored_with_the_same_draws(bench: Bench, tmp_path: Path):
    def seeds(policy: str) -> set[int]:
        seen: set[int] = set()

        def look(prompt: str, request: Request) -> str:
            seen.add(request.seed)
            return "0"

        bench.engine, bench.policy = CharEngine(look), policy
        bench.run(evaluate, recipe_of(), FolderOut(tmp_path / policy), split="dev")
        return seen

    assert seeds("p0") == seeds("p1")
    assert len(seeds("p2")) == 4


def test_an_unknown_split_names_those_there_are(bench: Bench, tmp_path: Path):
    with pytest.raises(DataError, match="split 'tset' has no examples; splits there: dev, test"):
        bench.run(evaluate, recipe_of(), FolderOut(tmp_path / "out"), split="tset")


def test_intervals_are_not_in_its_key() -> None:
    def key(**section: Any) -> dict[str, Any]:
        return evaluate.recipe_slice(recipe_of(evaluate=section))

    assert key() == key(bootstrap=10)
    assert key() != key(samples=2)
