"""The metric: from an example and a program's output to one score and named parts."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.errors import RecipeError
from schemas.table import REWARD_BOUND
from stages.programs.calls import async_call, sync_call
from stages.programs.session import Caller


class MetricError(Exception):
    """A metric returned something that is no score."""


@dataclass(frozen=True)
class Example:
    """One example as a metric sees it. Fields can be read by name (`example.answer`), labels before inputs."""

    example_id: str
    inputs: dict[str, Any]
    labels: dict[str, Any]
    metadata: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        for fields in ("labels", "inputs", "metadata"):
            values = self.__dict__.get(fields, {})
            if name in values:
                return values[name]
        raise AttributeError(f"the example has no field '{name}'")


@dataclass(frozen=True)
class Score:
    """A score and its named parts."""

    score: float
    parts: dict[str, float]


class Metric(Protocol):
    """A metric that is ready to be called."""

    def __call__(self, example: Example, output: Any, calls: list[dict[str, Any]], judge: Caller | None = None) -> Any:
        """What the metric returns, or an awaitable of it. `judge` makes its LM calls; without one it can make none."""


def prepare_metric(function: Callable[..., Any], args: Mapping[str, Any]) -> Metric:
    """The metric with the recipe's `metric_args`.

    It is called with the example, the output and the LM calls of the program. A parameter `call` gets what programs
    make LM calls with, for judges. A third parameter called `trace` marks a metric written for DSPy, to which a trace
    means that it should be strict: it gets None there.

    Raises:
        RecipeError: when it cannot be called like that.
    """
    forward = getattr(type(function), "forward", None)  # a DSPy module may be a metric
    known = function if forward is None else forward.__get__(function)
    try:
        parameters = inspect.signature(known).parameters
        names = list(parameters)
        asks = "call" in names and "call" not in args
        third = names[2:3] != ["call"]
        inspect.signature(known).bind(*[None] * (2 + third), **args, **({"call": None} if asks else {}))
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"program.metric: it is called as metric(example, output, calls), and call=… where it has such a "
            f"parameter, with program.metric_args, which {getattr(function, '__name__', function)} does not take: "
            f"{error}"
        ) from None
    make_call: Callable[[Caller], Any] = async_call if inspect.iscoroutinefunction(known) else sync_call

    def metric(example: Example, output: Any, calls: list[dict[str, Any]], judge: Caller | None = None) -> Any:
        rest = [None if names[2:3] == ["trace"] else calls] if third else []
        if asks and judge is None and parameters["call"].default is inspect.Parameter.empty:
            raise TypeError("this metric asks an LM, which cannot be had here")
        asking = {"call": make_call(judge)} if asks and judge is not None else {}
        return function(example, output, *rest, **args, **asking)

    return metric


def read_score(value: Any) -> Score:
    """What a metric returned: a number, or a mapping (or DSPy prediction) with `score` and named numbers.

    Truth values count as 0 and 1; arrays and tensors of one number and no dimension count as that number.

    Raises:
        MetricError: for anything else, with what was returned and what is expected.
    """
    value = _plain(value)
    if isinstance(value, numbers.Real):
        return Score(_number(value, "the metric returned"), {})
    if not isinstance(value, Mapping):
        if not hasattr(value, "toDict"):
            raise MetricError(f"the metric returned {_shown(value)}, expected a number or a mapping with 'score'")
        # Text beside the score of a DSPy prediction is feedback for its optimizers, not a part.
        value = {name: item for name, item in value.toDict().items() if name == "score" or not isinstance(item, str)}
    if "score" not in value:
        raise MetricError(f"the metric returned a mapping without 'score', with {', '.join(map(str, value)) or 'none'}")
    bad = [name for name in value if not isinstance(name, str)]
    if bad:
        raise MetricError(f"the metric returned a part named {_shown(bad[0])}, expected text")
    numbers_ = {name: _number(_plain(item), f"the metric returned '{name}' =") for name, item in value.items()}
    score = numbers_.pop("score")
    return Score(score, numbers_)


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _number(value: Any, what: str) -> float:
    if not isinstance(value, numbers.Real):
        raise MetricError(f"{what} {_shown(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or abs(number) > REWARD_BOUND:
        raise MetricError(f"{what} {number}, expected a finite number within ±{REWARD_BOUND:g}")
    return number


def _shown(value: Any) -> str:
    if isinstance(value, (str, bool, numbers.Number)) or value is None:
        return f"{value!r:.80} ({type(value).__name__})"
    return f"a {type(value).__name__}"
