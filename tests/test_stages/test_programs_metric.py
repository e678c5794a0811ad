"""The metric: what counts as a score, and what becomes of everything else."""

from __future__ import annotations

import time
from typing import Any

import pytest

from schemas.errors import RecipeError
from stages.programs.metric import Example, MetricError, prepare_metric, read_score
from tests.test_stages.programs_kit import CharEngine, job, program_of, run_jobs, run_one, session_of, user

ECHO = CharEngine(lambda prompt, request: prompt.strip())


def program(inputs: dict[str, Any], call: Any) -> str:
    text: str = call("m", user(inputs["x"])).text
    return text


def scored(metric: Any, **session: Any) -> Any:
    return run_one(program, ECHO, metric, **session).outcome


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (float("nan"), "nan, expected a finite number"),
        (float("inf"), "inf, expected a finite number"),
        (1e7, "within ±1e+06"),
        ("0.5", "'0.5' (str), expected a number"),
        (None, "None (NoneType), expected a number"),
        ([1.0], "a list, expected a number"),
        ({"accuracy": 1.0}, "a mapping without 'score', with accuracy"),
        (10**400, "inf, expected a finite number"),
        ({"score": 1.0, 7: 1.0}, "a part named 7 (int), expected text"),
        ({"score": "1"}, "'score' = '1' (str), expected a number"),
        ({"score": float("nan")}, "'score' = nan"),
        ({"score": 1.0, "part": None}, "'part' = None"),
    ],
)
def test_what_is_no_score_ends_the_run_as_a_metric_error(returned: Any, said: str):
    outcome = scored(lambda example, output, calls: returned)
    assert outcome.status == "metric_error"
    assert said in outcome.error
    assert outcome.score is None
    assert outcome.output == '"a"'


def test_a_metric_that_raises_ends_the_run_as_a_metric_error_with_its_place():
    def metric(example, output, calls):
        return example.labels["missing"]

    outcome = scored(metric)
    assert outcome.status == "metric_error"
    assert "KeyError: 'missing' (at " in outcome.error
    assert "in metric)" in outcome.error


def test_numbers_mappings_and_truth_values_are_scores():
    import numpy as np

    assert read_score(np.float32(0.5)).score == 0.5
    assert read_score(0).score == 0.0
    assert read_score(True).score == 1.0
    read = read_score({"score": 0.25, "quality": 1, "leakage": 0.5})
    assert (read.score, read.parts) == (0.25, {"quality": 1.0, "leakage": 0.5})


def test_truth_values_and_single_numbers_of_arrays_are_scores_wherever_they_stand():
    import numpy as np
    import torch

    assert read_score(np.bool_(True)).score == 1.0
    assert read_score(np.array(0.5)).score == 0.5
    assert read_score(torch.tensor(0.25)).score == 0.25
    read = read_score({"score": True, "right": np.bool_(False), "fluent": torch.tensor(0.5)})
    assert (read.score, read.parts) == (1.0, {"right": 0.0, "fluent": 0.5})
    with pytest.raises(MetricError, match="a ndarray, expected a number"):
        read_score(np.array([0.5]))


@pytest.mark.parametrize("returned", [{"score": 1, "\ud800": "x"}, {"\ud800": 1}])
def test_a_part_whose_name_cannot_be_stored_ends_its_run_and_not_the_stage(returned: Any):
    outcome = scored(lambda example, output, calls: returned)
    assert outcome.status == "metric_error"
    outcome.error.encode()


def test_a_metric_that_writes_into_the_calls_changes_no_record():
    def metric(example, output, calls):
        calls[0]["messages"][0]["content"] = "forged"
        calls[0]["messages"].append(object())
        return 1

    finished = run_one(program, ECHO, metric)
    assert finished.invocations[0]["messages"] == '[{"content":"a","role":"user"}]'


def test_a_dspy_prediction_is_a_score_and_its_feedback_no_part():
    import dspy

    read = read_score(dspy.Prediction(score=0.5, brevity=1.0, feedback="shorter"))
    assert (read.score, read.parts) == (0.5, {"brevity": 1.0})
    with pytest.raises(MetricError, match="without 'score'"):
        read_score(dspy.Prediction(answer="x"))


def test_parts_are_stored_as_canonical_json():
    assert scored(lambda example, output, calls: {"score": 1, "b": 2, "a": 0.5}).parts == '{"a":0.5,"b":2.0}'


def test_a_metric_sees_labels_output_and_calls():
    seen: list[Any] = []

    def metric(example, output, calls):
        seen.append((example.labels["y"], example.y, example.inputs, output, calls))
        return 1

    run_jobs(program_of(program, metric), [job(labels={"y": "gold"})], session_of(ECHO))
    labels, by_name, inputs, output, calls = seen[0]
    assert (labels, by_name, inputs, output) == ("gold", "gold", {"x": "a"}, "a")
    assert calls == [
        {
            "module": "m",
            "invocation_index": 0,
            "attempt": 0,
            "lm": "student",
            "messages": user("a"),
            "completion": "a",
            "value": None,
        }
    ]


def test_a_metric_may_be_async_for_programs_of_both_kinds():
    async def metric(example, output, calls):
        return len(output)

    async def asynchronous(inputs, call):
        return (await call("m", user("abc"))).text

    assert scored(metric).score == 1.0
    assert run_one(asynchronous, ECHO, metric).outcome.score == 3.0


def test_a_metric_that_hangs_is_a_metric_error():
    outcome = scored(lambda example, output, calls: time.sleep(3), timeout_s=0.2)
    assert outcome.status == "metric_error"
    assert "the metric took longer than 0.2 s" in outcome.error


def test_a_dspy_metric_is_not_told_that_it_is_traced():
    seen: list[Any] = []

    def metric(example, pred, trace=None):
        seen.append(trace)
        return pred == example.x

    assert scored(metric).score == 1.0
    assert seen == [None]


def test_metric_arguments_come_from_the_recipe():
    prepared = prepare_metric(lambda example, output, calls, weight: weight, {"weight": 0.5})
    assert prepared(Example("e", {}, {}, {}), None, []) == 0.5
    with pytest.raises(RecipeError, match=r"metric\(example, output, calls\)"):
        prepare_metric(lambda example, output, calls, weight: weight, {})
    with pytest.raises(RecipeError, match="unexpected keyword"):
        prepare_metric(lambda example, output, calls: 0, {"weight": 1})
