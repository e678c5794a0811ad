"""Metrics that ask LMs: what is recorded of it, what is remembered, and what becomes of a judge that fails."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.canonical import digest
from schemas.errors import ParseError
from schemas.judge_calls import JUDGE_CALLS
from schemas.parquet import write_table
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.scores import SCORES
from stages import evaluate, rollout
from stages.engines.interface import Request
from tests.test_stages.programs_kit import (
    Bench,
    CharEngine,
    FolderOut,
    job,
    judging,
    program_of,
    recipe_of,
    rows_of,
    run_jobs,
    run_one,
    session_of,
    user,
)


def write(inputs: dict[str, Any], call: Any) -> str:
    text: str = call("write", user(inputs["x"])).text
    return text


async def awrite(inputs: dict[str, Any], call: Any) -> str:
    text: str = (await call("write", user(inputs["x"]))).text
    return text


def grade(example: Any, output: str, calls: Any, call: Any) -> float:
    return float(call("grade", user(f"grade {output}"), parse=float).value)


async def agrade(example: Any, output: str, calls: Any, call: Any) -> float:
    return float((await call("grade", user(f"grade {output}"), parse=float)).value)


def seeded(prompt: str, request: Request) -> str:
    """Answers of the student and of judges; draws differ by their seeds."""
    if not prompt.startswith("grade"):
        return f"text {prompt.strip()}"
    return str(len(prompt)) if request.sampling.temperature == 0 else str(request.seed % 1000)


def asked(engine: CharEngine) -> list[str]:
    """Makes the engine note the prompts that it is asked."""
    seen: list[str] = []
    answer = engine.answer
    engine.answer = lambda prompt, request: (seen.append(prompt.strip()), answer(prompt, request))[1]
    return seen


@pytest.mark.parametrize("program", [write, awrite])
@pytest.mark.parametrize("metric", [grade, agrade])
def test_calls_of_a_metric_are_recorded_apart_and_are_no_invocations(tmp_path: Path, program: Any, metric: Any):
    finished = run_one(program, CharEngine(seeded), metric, **judging())
    assert (finished.outcome.status, finished.outcome.score) == ("ok", 13.0), finished.outcome.error
    assert [row["module"] for row in finished.invocations] == ["write"]
    (row,) = finished.judge_calls
    assert (row["rollout_id"], row["module"], row["lm"], row["completion"]) == ("r0", "grade", "judge", "13")
    assert (row["parse_status"], row["temperature"]) == ("ok", 0.0)
    assert write_table(finished.judge_calls, tmp_path / "rows.parquet", JUDGE_CALLS) == 1


def test_a_metric_does_not_see_its_own_calls():
    seen: list[Any] = []

    def metric(example: Any, output: str, calls: Any, call: Any) -> float:
        call("grade", user("grade"))
        seen.extend(calls)
        return 1.0

    run_one(write, CharEngine(seeded), metric, **judging())
    assert [call["module"] for call in seen] == ["write"]


def test_the_student_is_no_judge():
    outcome = run_one(write, CharEngine(seeded), grade, **judging(lm=None)).outcome
    assert outcome.status == "metric_error"
    assert "Set [metric] lm = NAME" in (outcome.error or "")
    assert "judge, wild" in (outcome.error or "")
    with pytest.raises(ValueError, match="the student judges no run of its own"):
        recipe_judged("student")
    with pytest.raises(ValueError, match=r"metric.lm is 'jugde', but \[lms\] has judge"):
        recipe_judged("jugde")


def recipe_judged(lm: str | None = "judge", **section: Any) -> Any:
    document = recipe_of(rollout={"examples": 2, "rollouts": 2}, lms={"judge": {}}).model_dump()
    return Recipe.model_validate({**document, "metric": {"lm": lm, **section}})


def test_an_equal_question_is_asked_once_whoever_asks_and_however_often(tmp_path: Path):
    program = program_of(write, grade)
    first = CharEngine(seeded)
    seen = asked(first)
    jobs = [job(index, "same" if index < 4 else "other") for index in range(6)]
    runs = run_jobs(program, jobs, session_of(first, **judging(tmp_path)))
    assert sorted(prompt for prompt in seen if prompt.startswith("grade")) == ["grade text other", "grade text same"]
    again = CharEngine(seeded)
    seen = asked(again)
    session = session_of(again, **judging(tmp_path))
    assert run_jobs(program, jobs, session) == runs
    assert not any(prompt.startswith("grade") for prompt in seen)
    assert session.judging.answers is not None
    assert session.judging.answers.remembered == 6
    assert run_jobs(program, jobs, session_of(CharEngine(seeded), **judging())) == runs


def test_draws_of_one_question_differ_within_a_metric_and_are_the_same_in_every_run(tmp_path: Path):
    def metric(example: Any, output: str, calls: Any, call: Any) -> dict[str, float]:
        draws = [float(call("grade", user("grade it"), lm="wild").text) for _ in range(3)]
        return {"score": sum(draws), **{f"draw {index}": draw for index, draw in enumerate(draws)}}

    finished = run_one(write, CharEngine(seeded), metric, **judging(tmp_path))
    assert len(set(json.loads(finished.outcome.parts).values())) == 3
    engine = CharEngine(seeded)
    seen = asked(engine)
    assert run_one(write, engine, metric, **judging(tmp_path)) == finished
    assert seen == ["a"]
    other_seed = judging(tmp_path)
    other_seed["judging"] = replace(other_seed["judging"], seed=1)
    assert run_one(write, CharEngine(seeded), metric, **other_seed).outcome.parts != finished.outcome.parts


def test_a_judges_answer_that_does_not_parse_is_drawn_anew():
    def parse(text: str) -> float:
        if int(text) % 2:
            raise ParseError([], ["even"])
        return float(text)

    def metric(example: Any, output: str, calls: Any, call: Any) -> float:
        return float(call("grade", user("grade it"), lm="wild", parse=parse).value)

    finished = run_one(write, CharEngine(seeded), metric, **judging(parse_retries=20))
    assert finished.outcome.status == "ok", finished.outcome.error
    statuses = [row["parse_status"] for row in finished.judge_calls]
    assert statuses == ["failed"] * (len(statuses) - 1) + ["ok"]
    assert [row["attempt"] for row in finished.judge_calls] == list(range(len(statuses)))


def test_a_remembered_answer_is_of_the_engine_that_gave_it(tmp_path: Path):
    asked_first = run_one(write, CharEngine(seeded, name="first"), grade, **judging(tmp_path))
    remembered = run_one(write, CharEngine(seeded, name="second"), grade, **judging(tmp_path))
    assert [row["engine"] for row in asked_first.judge_calls] == ["first"]
    assert [row["engine"] for row in remembered.judge_calls] == ["first"]
    assert [row["engine"] for row in remembered.invocations] == ["second"]


def test_an_answer_that_was_kept_without_its_engine_is_of_an_unknown_one(tmp_path: Path):
    finished = run_one(write, CharEngine(seeded), grade, **judging(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    kept = {name: json.loads(file.read_text())[name] for name in ("completion", "finish_reason")}
    file.write_text(json.dumps(kept | {"digest": digest(kept)}))
    again = run_one(write, CharEngine(seeded), grade, **judging(tmp_path))
    assert again.outcome == finished.outcome
    assert [row["engine"] for row in again.judge_calls] == [None]


def test_a_damaged_answer_is_asked_for_again(tmp_path: Path):
    finished = run_one(write, CharEngine(seeded), grade, **judging(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text().replace("13", "99"))
    engine = CharEngine(seeded)
    seen = asked(engine)
    assert run_one(write, engine, grade, **judging(tmp_path)) == finished
    assert seen == ["a", "grade text a"]


def twice(example: Any, output: str, calls: Any, call: Any) -> float:
    call("first", user(f"grade {output}"))
    return float(call("second", user(f"grade again {output}"), parse=float).value)


def test_a_judge_that_fails_midway_costs_its_rollout_alone_and_loses_nothing(tmp_path: Path):
    def answer(prompt: str, request: Request) -> str:
        if "again text bad" in prompt:
            raise RuntimeError("no memory")
        return seeded(prompt, request)

    engine = CharEngine(answer)
    seen = asked(engine)
    jobs = [job(0), job(1, "bad"), job(2, "fine")]
    runs = run_jobs(program_of(write, twice), jobs, session_of(engine, **judging(tmp_path)))
    assert [run.outcome.status for run in runs] == ["ok", "metric_error", "ok"]
    failed = runs[1]
    assert "no memory" in (failed.outcome.error or "")
    assert (failed.outcome.output, failed.outcome.score) == ('"text bad"', None)
    assert [(row["module"], row["fidelity"]) for row in failed.invocations] == [("write", "exact")]
    assert [(row["module"], row["completion"]) for row in failed.judge_calls] == [("first", "15"), ("second", None)]
    assert seen.count("bad") == 1, "the program is not run again for its judge"
    assert seen.count("grade text bad") == 1, "what was answered is not asked again"
    assert run_jobs(program_of(write, twice), jobs, session_of(CharEngine(seeded), **judging(tmp_path)))[
        1
    ].outcome.score


def test_a_judge_that_fails_once_is_asked_again(tmp_path: Path):
    fails = iter([True])

    def answer(prompt: str, request: Request) -> str:
        if "again" in prompt and next(fails, False):
            raise RuntimeError("no memory")
        return seeded(prompt, request)

    finished = run_one(write, CharEngine(answer), twice, **judging(tmp_path))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert [row["module"] for row in finished.judge_calls] == ["first", "second"]
    fails = iter([True])
    assert run_one(write, CharEngine(answer), twice, **judging(retries=0)).outcome.status == "metric_error"


def test_a_metric_has_a_time_limit_of_its_own_and_as_many_tries_as_the_recipe_says():
    hangs: list[bool] = []

    def metric(example: Any, output: str, calls: Any) -> float:
        if len(hangs) < 2:
            hangs.append(True)
            time.sleep(1)
        return 1.0

    patient = run_one(write, CharEngine(seeded), metric, timeout_s=30.0, **judging(timeout_s=0.2, retries=2))
    assert (patient.outcome.status, len(hangs)) == ("ok", 2)
    hangs.clear()
    outcome = run_one(write, CharEngine(seeded), metric, timeout_s=30.0, **judging(timeout_s=0.2)).outcome
    assert (outcome.status, len(hangs)) == ("metric_error", 2)
    assert "longer than 0.2 s (metric.timeout_s)" in (outcome.error or "")


def test_waiting_for_a_judge_is_not_the_metrics_time():
    def slow(prompt: str, request: Request) -> str:
        if prompt.startswith("grade"):
            time.sleep(0.4)
        return seeded(prompt, request)

    assert run_one(write, CharEngine(slow), grade, **judging(timeout_s=0.2)).outcome.status == "ok"


def test_a_try_that_was_given_up_neither_scores_nor_asks():
    late: list[str] = []
    release = threading.Event()

    def metric(example: Any, output: str, calls: Any, call: Any) -> float:
        if not late:
            late.append("hangs")
            release.wait(5)
            try:
                call("grade", user("grade late"))
            except BaseException as error:
                late.append(type(error).__name__)
                raise
        return 1.0

    finished = run_one(write, CharEngine(seeded), metric, **judging(timeout_s=0.2))
    release.set()
    deadline = time.monotonic() + 2
    while len(late) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (finished.outcome.status, finished.judge_calls, late) == ("ok", [], ["hangs", "RunEnded"])


def test_a_metric_that_takes_a_call_in_place_of_the_calls_gets_it():
    finished = run_one(
        write, CharEngine(seeded), lambda example, output, call: float(call("g", user("grade")).text), **judging()
    )
    assert finished.outcome.score == 6.0, finished.outcome.error


def test_where_no_judge_can_be_had_a_metric_does_without_or_says_so():
    from stages.programs.metric import Example, prepare_metric

    example = Example("e", {}, {}, {})
    able = prepare_metric(lambda example, output, calls, call=None: 1.0 if call is None else 0.0, {})
    assert able(example, "", []) == 1.0
    with pytest.raises(TypeError, match="asks an LM"):
        prepare_metric(grade, {})(example, "", [])


SOURCE = """
def program():
    def run(inputs, call):
        return call("write", [{"role": "user", "content": inputs["x"]}]).text
    return run

def metric(example, output, calls, call):
    return float(call("grade", [{"role": "user", "content": "grade " + output}], parse=float).value)
"""


FLAKY = """
tried = {}

def calm(example, output, calls):
    return 1.0

def flaky(example, output, calls):
    mine = object()
    if tried.setdefault(example.example_id, mine) is mine:
        raise ValueError("the first try of each example")
    return 1.0
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("MMGRPO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "prog.py").write_text(SOURCE)
    made = Bench(tmp_path, CharEngine(seeded), monkeypatch)
    made.examples(train=3, dev=2)
    return made


def test_the_stages_keep_judge_calls_in_a_table_of_their_own(bench: Bench, tmp_path: Path):
    out = FolderOut(tmp_path / "out")
    metrics = bench.run(rollout, recipe_judged(), out, iteration=0)
    runs = {row["rollout_id"] for row in rows_of(out.folder, ROLLOUTS)}
    judged = rows_of(out.folder, JUDGE_CALLS)
    assert (metrics["judge_calls"], {row["rollout_id"] for row in judged}) == (4, runs)
    assert {row["module"] for row in rows_of(out.folder, INVOCATIONS)} == {"write"}
    assert metrics["calls"] == 4
    assert "judge_calls/" in out.dropped
    scored = FolderOut(tmp_path / "scores")
    told = bench.run(evaluate, recipe_judged(), scored, split="dev")
    assert (told["judge_calls"], told["judge_engines"], told["engines"]) == (2, {"chars": 2}, {"chars": 2})
    assert len(rows_of(scored.folder, SCORES)) == len(rows_of(scored.folder, JUDGE_CALLS)) == 2


@pytest.mark.parametrize("kill_at", range(9))
def test_a_killed_stage_takes_up_its_judge_calls_where_they_were(bench: Bench, tmp_path: Path, kill_at: int):
    whole = FolderOut(tmp_path / "whole")
    metrics = bench.run(rollout, recipe_judged(), whole, iteration=0)
    out = FolderOut(tmp_path / "out", fail_after=kill_at)
    with pytest.raises(KeyboardInterrupt):
        bench.run(rollout, recipe_judged(), out, iteration=0)
    second = FolderOut(out.folder)
    assert bench.run(rollout, recipe_judged(), second, iteration=0) == metrics
    for table in (ROLLOUTS, INVOCATIONS, JUDGE_CALLS):
        name = f"{table.name}.parquet"
        assert (out.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_rerun_elsewhere_pays_no_judge_twice(bench: Bench, tmp_path: Path):
    bench.run(rollout, recipe_judged(), FolderOut(tmp_path / "out"), iteration=0)
    bench.engine = CharEngine(seeded)
    seen = asked(bench.engine)
    bench.run(rollout, recipe_judged(), FolderOut(tmp_path / "again"), iteration=0)
    assert len(seen) == 4
    assert not any(prompt.startswith("grade") for prompt in seen)


@pytest.mark.parametrize("stage", [rollout, evaluate])
def test_failed_tries_of_the_metric_are_counted_in_the_telemetry_and_nowhere_else(
    bench: Bench, tmp_path: Path, stage: Any
):
    (tmp_path / "prog.py").write_text(SOURCE + FLAKY)
    params = {"iteration": 0} if stage is rollout else {"split": "dev"}
    recipes = {
        name: recipe_of(metric=f"prog:{name}", rollout={"examples": 2, "rollouts": 2}) for name in ("calm", "flaky")
    }
    outs = {name: FolderOut(tmp_path / name) for name in recipes}
    metrics = {name: bench.run(stage, recipes[name], outs[name], **params) for name in recipes}
    assert outs["flaky"].figures["metric_retries"] == 2
    assert "metric_retries" not in outs["calm"].figures
    assert metrics["flaky"] == metrics["calm"]


def test_how_the_metric_is_run_is_in_the_keys():
    for stage in (rollout, evaluate):
        keys = [stage.recipe_slice(recipe_judged(**section)) for section in ({}, {"lm": None}, {"retries": 2})]
        assert len({str(key) for key in keys}) == 3
