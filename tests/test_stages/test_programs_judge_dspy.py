"""Metrics that ask LMs through DSPy: predictors, an LM of their own, and DSPy's own judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest

from tests.test_stages.programs_kit import CharEngine, job, judging, program_of, run_jobs, session_of

FIELDS = (
    "[[ ## reasoning ## ]]\nr\n\n[[ ## recall ## ]]\n1.0\n\n[[ ## precision ## ]]\n0.5\n\n[[ ## grade ## ]]\n0.25\n"
)


def dspy_metric(function: Any, answer: Any = lambda *_: FIELDS, **section: Any) -> Any:
    from stages.programs.dspy_metric import in_dspy
    from stages.programs.metric import prepare_metric

    made = program_of(lambda inputs, call: dspy.Prediction(response=inputs["x"]))
    program = replace(made, metric=in_dspy(prepare_metric(function, {})))
    labels = {"question": "q", "response": "gold"}
    return run_jobs(program, [job(labels=labels)], session_of(CharEngine(answer), **judging(**section)))[0]


class Grade(dspy.Signature):
    """Grade it."""

    x: str = dspy.InputField()
    grade: float = dspy.OutputField()


def test_dspy_predictors_in_a_metric_are_judges():
    judge = dspy.Predict(Grade)
    finished = dspy_metric(lambda example, pred, trace=None: judge(x=example.x).grade)
    assert finished.outcome.score == 0.25, finished.outcome.error
    (row,) = finished.judge_calls
    assert (row["module"], row["lm"]) == ("Grade", "judge")
    assert "Grade it." in row["messages"]
    assert finished.invocations == []


def test_an_async_dspy_metric_and_an_lm_of_its_own():
    from stages.programs.dspy_engine import program_lm

    judge = dspy.Predict(Grade)
    judge.lm = program_lm("wild")

    async def metric(example: Any, pred: Any, trace: Any = None) -> Any:
        return dspy.Prediction(score=(await judge.acall(x=example.x)).grade, feedback="good")

    finished = dspy_metric(metric)
    assert finished.outcome.score == 0.25, finished.outcome.error
    assert finished.judge_calls[0]["lm"] == "wild"


def test_a_dspy_metric_without_a_judge_in_the_recipe_says_what_to_write():
    judge = dspy.Predict(Grade)
    outcome = dspy_metric(lambda example, pred, trace=None: judge(x="a").grade, lm=None).outcome
    assert outcome.status == "metric_error"
    assert "Set [metric] lm = NAME" in (outcome.error or "")


def test_dspys_own_judge_is_a_metric():
    from dspy.evaluate import SemanticF1

    finished = dspy_metric(SemanticF1())
    assert finished.outcome.score == pytest.approx(2 / 3), finished.outcome.error
    assert [row["module"] for row in finished.judge_calls] == [
        "question, ground_truth, system_response -> reasoning, recall, precision"
    ]
