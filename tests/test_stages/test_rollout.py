"""The rollout stage: which examples, what is written, restarts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError, RecipeError, StageError
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages import rollout
from stages.engines.interface import Request
from stages.programs.choice import draw
from tests.test_stages.programs_kit import Bench, CharEngine, FolderOut, recipe_of, rows_of

A1, A2 = "a1" * 32, "a2" * 32
SOURCE = """
from schemas.errors import ParseError

def parse(text):
    if text == "bad":
        raise ParseError([], ["y"])
    return text

class Program:
    modules = ("ask", "tell", "never")
    def __call__(self, inputs, call):
        first = call("ask", [{"role": "user", "content": inputs["x"]}], parse=parse, retries=1)
        return call("tell", [{"role": "user", "content": first.text}]).text

def program():
    return Program()

def metric(example, output, calls):
    return {"score": float(len(output)), "part": 1.0}

def broken(example, output, calls):
    return "good"
"""


def answer(prompt: str, request: Request) -> str:
    return "bad" if request.seed % 5 == 0 else f"{prompt.strip()}{request.seed % 10}"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "prog.py").write_text(SOURCE)
    made = Bench(tmp_path, CharEngine(answer), monkeypatch)
    made.examples(train=5, dev=2)
    return made


def recipe(**sections: Any) -> Any:
    return recipe_of(**{"rollout": {"examples": 3, "rollouts": 4}, **sections})


def test_it_writes_one_row_per_run_and_one_per_call(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, recipe(), out, iteration=0)
    rollouts, calls = rows_of(out.folder, ROLLOUTS), rows_of(out.folder, INVOCATIONS)
    assert len(rollouts) == metrics["rollouts"] == 12
    keys = [(row["example_id"], row["rollout_index"]) for row in rollouts]
    assert keys == sorted(keys)
    order = {row["rollout_id"]: index for index, row in enumerate(rollouts)}
    call_keys = [(order[row["rollout_id"]], row["call_index"]) for row in calls]
    assert call_keys == sorted(call_keys)
    assert {row["program"] for row in rollouts} == {"digest-program"}
    assert {(row["policy"], row["source"], row["iteration"]) for row in rollouts} == {("p0", "student", 0)}
    assert {row["tokenizer"] for row in calls} == {"t"}
    assert set(out.dropped) == {"rollouts/", "invocations/"}
    assert out.steps[-1] == (12, 12)


def test_its_metrics_follow_from_its_tables(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, recipe(), out, iteration=0)
    rollouts, calls = rows_of(out.folder, ROLLOUTS), rows_of(out.folder, INVOCATIONS)
    assert metrics["statuses"] == dict(sorted(Counter(row["status"] for row in rollouts).items()))
    ok = [row["reward"] for row in rollouts if row["status"] == "ok"]
    assert metrics["mean_reward"] == pytest.approx(sum(ok) / len(ok))
    assert metrics["calls"] == len(calls)
    assert metrics["completion_tokens"] == sum(len(row["completion_ids"]) for row in calls)
    parsed = [row["parse_status"] for row in calls if row["module"] == "ask"]
    assert metrics["parse_failure_share"] == pytest.approx(parsed.count("failed") / len(parsed))
    assert metrics["modules_never_called"] == ["never"]
    assert metrics["engines"] == {"chars": len(calls)}
    json.dumps(metrics)


@pytest.mark.parametrize("kill_at", range(7))
def test_a_killed_stage_takes_up_where_it_was(bench: Bench, tmp_path: Path, kill_at: int):
    whole = FolderOut(tmp_path / "whole")
    metrics = bench.run(rollout, recipe(), whole, iteration=0)
    out = FolderOut(tmp_path / "out", fail_after=kill_at)
    with pytest.raises(KeyboardInterrupt):
        bench.run(rollout, recipe(), out, iteration=0)
    done = set(out.committed("rollouts/"))
    bench.engine = CharEngine(answer)
    second = FolderOut(out.folder)
    assert bench.run(rollout, recipe(), second, iteration=0) == metrics
    assert not done & set(second.commits)
    for table in (ROLLOUTS, INVOCATIONS):
        name = f"{table.name}.parquet"
        assert (out.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_stage_that_another_engine_finished_names_both(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out", fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        bench.run(rollout, recipe(), out, iteration=0)
    bench.engine = CharEngine(answer, name="other")
    metrics = bench.run(rollout, recipe(), FolderOut(out.folder), iteration=0)
    calls = rows_of(out.folder, INVOCATIONS)
    assert metrics["engines"] == dict(sorted(Counter(row["engine"] for row in calls).items()))
    assert set(metrics["engines"]) == {"chars", "other"}


def test_what_sampled_stands_in_every_call(bench: Bench, tmp_path: Path):
    bench.adapter("p1", {"*": "a" * 64})
    (tmp_path / "artifacts" / "adapter" / "adapter").mkdir()
    out = FolderOut(tmp_path / "out")
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "max_new_tokens": 9}
    bench.run(rollout, recipe(rollout={"examples": 3, "rollouts": 4, "sampling": sampling}), out, iteration=0)
    for row in rows_of(out.folder, INVOCATIONS):
        assert {name: row[name] for name in sampling} == sampling
        assert (row["engine"], row["logprob_kind"], row["adapter"]) == ("chars", "processed", "a" * 64)
        assert (row["tokenizer"], row["template"], row["fidelity"]) == ("t", "c", "exact")


def test_a_finished_stage_that_is_run_again_makes_no_engine(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    bench.run(rollout, recipe(), out, iteration=0)
    bench.run(rollout, recipe(), out, iteration=0)
    assert bench.used == 1


def test_a_metric_that_always_fails_stops_the_stage_and_keeps_nothing(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    with pytest.raises(StageError, match=r"the metric failed in all \d+ rollouts.*'good' \(str\), expected a number"):
        bench.run(
            rollout,
            recipe_of(metric="prog:broken", rollout={"examples": 2, "rollouts": 2, "sampling": {"temperature": 1.0}}),
            FolderOut(tmp_path / "out"),
            iteration=1,
        )
    assert out.committed() == {}


def test_an_engine_that_always_fails_stops_the_stage(bench: Bench, tmp_path: Path):
    def fail(prompt: str, request: Request) -> str:
        raise RuntimeError("no memory")

    bench.engine = CharEngine(fail)
    with pytest.raises(StageError, match=r"the engine failed in all 12 rollouts.*RuntimeError: no memory"):
        bench.run(rollout, recipe(), FolderOut(tmp_path / "out"), iteration=0)


def test_a_run_whose_program_always_crashes_is_data_not_an_error(bench: Bench, tmp_path: Path):
    bench.engine = CharEngine(lambda *_: "bad")
    metrics = bench.run(rollout, recipe(), FolderOut(tmp_path / "out"), iteration=0)
    assert metrics["statuses"] == {"parse_failed": 12}
    assert metrics["mean_reward"] is None


def test_an_empty_split_names_those_there_are(bench: Bench, tmp_path: Path):
    wrong = recipe(examples={"path": "e", "inputs": ["x"], "train": "trian"})
    with pytest.raises(DataError, match="split 'trian' has no examples; splits there: dev, train"):
        bench.run(rollout, wrong, FolderOut(tmp_path / "out"), iteration=0)


def test_more_examples_than_there_are_is_a_recipe_error(bench: Bench, tmp_path: Path):
    with pytest.raises(RecipeError, match=r"rollout\.examples is 6, but split 'train' has 5"):
        bench.run(rollout, recipe(rollout={"examples": 6}), FolderOut(tmp_path / "out"), iteration=0)


@pytest.mark.parametrize(("count", "total"), [(1, 7), (3, 7), (4, 5), (5, 5), (2, 2)])
def test_examples_are_drawn_equally_often_and_never_twice_in_an_iteration(count: int, total: int):
    ids = [f"e{index}" for index in range(total)]
    drawn = [draw(ids, 3, iteration, count) for iteration in range(40)]
    assert all(len(set(chosen)) == count for chosen in drawn)
    for upto in range(1, 41):
        counts = Counter(dict.fromkeys(ids, 0))
        counts.update(name for chosen in drawn[:upto] for name in chosen)
        assert max(counts.values()) - min(counts.values()) <= 1
    assert drawn != [draw(ids, 4, iteration, count) for iteration in range(40)] or total == count


def test_seeds_differ_between_iterations_and_rollouts(bench: Bench, tmp_path: Path):
    seeds: list[int] = []
    for iteration in range(2):
        out = FolderOut(tmp_path / f"out{iteration}")
        bench.run(rollout, recipe(rollout={"examples": 5, "rollouts": 2}), out, iteration=iteration)
        seeds += [row["seed"] for row in rows_of(out.folder, INVOCATIONS)]
    assert len(set(seeds)) == len(seeds)


def test_the_policys_adapter_serves_the_student(bench: Bench, tmp_path: Path):
    seen: set[Any] = set()

    def look(prompt: str, request: Request) -> str:
        seen.add((request.adapter.path.name, request.adapter.digest) if request.adapter else None)
        return "x"

    bench.engine = CharEngine(look)
    bench.adapter("p1", {"ask": A1, "tell": A2})
    bench.run(rollout, recipe(), FolderOut(tmp_path / "out"), iteration=1)
    assert seen == {("ask", A1), ("tell", A2)}
    served = {(row["module"], row["adapter"]) for row in rows_of(tmp_path / "out", INVOCATIONS)}
    assert served == {("ask", A1), ("tell", A2)}
    bench.policy = "p9"
    with pytest.raises(DataError, match=r"policies\.parquet: lacks the policy p9"):
        bench.run(rollout, recipe(), FolderOut(tmp_path / "out9"), iteration=1)


def test_a_module_without_an_adapter_of_its_own_is_served_by_the_base(bench: Bench, tmp_path: Path):
    bench.engine = CharEngine(lambda prompt, request: "x")
    bench.adapter("p1", {"ask": A1})
    bench.run(rollout, recipe(), FolderOut(tmp_path / "out"), iteration=1)
    served = {(row["module"], row["adapter"]) for row in rows_of(tmp_path / "out", INVOCATIONS)}
    assert served == {("ask", A1), ("tell", None)}
    (bench.inputs()["adapter"].file("adapters") / "modules.json").write_text(json.dumps({"other": A1}))
    with pytest.raises(DataError, match=r"has adapters for \['other'\], the policy p1 .* for \['ask'\]"):
        bench.run(rollout, recipe(), FolderOut(tmp_path / "again"), iteration=1)


def test_what_does_not_touch_sampling_is_not_in_its_key():
    slice_ = rollout.recipe_slice(recipe())
    assert slice_ == rollout.recipe_slice(recipe(train={"learning_rate": 1.0}, evaluate={"samples": 3}))
    assert slice_ != rollout.recipe_slice(recipe(seed=1))
    assert slice_ != rollout.recipe_slice(recipe(rollout={"examples": 3, "rollouts": 5}))
