"""Metrics that use DSPy predictors: their LM calls are judge calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

import dspy

from stages.programs.dspy_calls import RUN
from stages.programs.dspy_engine import program_lm
from stages.programs.metric import Example, Metric
from stages.programs.session import Caller


def in_dspy(metric: Metric) -> Metric:
    """The metric in a DSPy context in which predictors ask judges: `metric.lm`, or `program_lm(NAME)` of their own."""

    def scored(example: Example, output: Any, calls: list[dict[str, Any]], judge: Caller | None = None) -> Any:
        if judge is None:
            return metric(example, output, calls)
        with _context(judge):
            value = metric(example, output, calls, judge)
        return _awaited(value, judge) if inspect.isawaitable(value) else value

    return scored


async def _awaited(value: Awaitable[Any], judge: Caller) -> Any:
    with _context(judge):
        return await value


def _context(judge: Caller) -> Any:
    return dspy.context(**{RUN: judge, "lm": program_lm(), "trace": [], "disable_history": True})
