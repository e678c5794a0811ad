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


def in_dspy(metric: Metric, adapter: Any = None) -> Metric:
    """The metric in a DSPy context in which predictors ask judges: `metric.lm`, or `program_lm(NAME)` of their own.

    Args:
        metric: the metric.
        adapter: the one that was configured while it was loaded; None for the one of the context that it is called in.
    """

    def scored(example: Example, output: Any, calls: list[dict[str, Any]], judge: Caller | None = None) -> Any:
        if judge is None:
            return metric(example, output, calls)
        with _context(judge, adapter):
            value = metric(example, output, calls, judge)
        return _awaited(value, judge, adapter) if inspect.isawaitable(value) else value

    return scored


async def _awaited(value: Awaitable[Any], judge: Caller, adapter: Any) -> Any:
    with _context(judge, adapter):
        return await value


def _context(judge: Caller, adapter: Any) -> Any:
    own = {} if adapter is None else {"adapter": adapter}
    return dspy.context(**{RUN: judge, "lm": program_lm(), "trace": [], "disable_history": True, **own})
