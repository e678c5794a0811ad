"""The metric of a recipe as DSPy's optimizers call it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from schemas.examples import example_id
from stages.programs.jsonable import jsonable
from stages.programs.judge import JudgeCaller
from stages.programs.metric import Example, Metric, read_score
from stages.prompting.service import CALLS, Service


class Scorer:
    """A DSPy metric: (example, prediction, trace and what else GEPA gives) to a score.

    The recipe's metric gets the example of the table and the run's LM calls; it does not see a trace, so that a score
    means the same in every stage.
    """

    __name__ = "metric"

    def __init__(self, metric: Metric, rows: Sequence[Mapping[str, Any]], service: Service) -> None:
        self._metric, self._service = metric, service
        # By their inputs, which is what an optimizer hands back: the ids of a snapshot of traces may be keyed.
        self._rows = {example_id(json.loads(row["inputs"])): row for row in rows}

    def __call__(
        self, gold: dspy.Example, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        """The score; with the metric's feedback, where it gives any, a prediction of both."""
        del trace, pred_name, pred_trace
        try:
            value = self._service.judged(lambda judge: self._value(gold, pred, judge))
            score = read_score(value).score
        except Exception as error:
            self._service.metric_failed(error)
            raise
        feedback = value.toDict().get("feedback") if hasattr(value, "toDict") else None
        return score if feedback is None else dspy.Prediction(score=score, feedback=str(feedback))

    def _value(self, gold: dspy.Example, pred: Any, judge: JudgeCaller) -> Any:
        value = self._metric(self._example(gold), pred, getattr(pred, CALLS, []), judge)
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value

    def _example(self, gold: dspy.Example) -> Example:
        inputs = jsonable(gold.inputs().toDict())
        row = self._rows[example_id(inputs)]
        parts = [json.loads(row[name] or "{}") for name in ("inputs", "labels", "metadata")]
        return Example(str(row["example_id"]), *parts)


def dspy_examples(rows: Sequence[Mapping[str, Any]]) -> list[dspy.Example]:
    """Rows of the examples table as DSPy's: inputs and labels."""
    made = []
    for row in rows:
        inputs, labels = json.loads(row["inputs"]), json.loads(row["labels"] or "{}")
        made.append(dspy.Example(**{**labels, **inputs}).with_inputs(*inputs))
    return made


async def _awaited(value: Any) -> Any:
    return await value
