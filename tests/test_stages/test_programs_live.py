"""What tells one program or metric of a process from another: what `MMGRPO.compile` keys its run by."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import dspy
import pytest

from stages.programs.dspy_engine import program_lm
from stages.programs.held import Held
from stages.programs.live import identity_of


class Retriever:
    """A user's own object, as programs hold one."""

    def __init__(self, k: int) -> None:
        self._k = k

    def __call__(self, query: str) -> str:
        """The first characters."""
        return query[: self._k]


class Asks(dspy.Module):
    """A program of one predictor and of whatever it is given."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        self.ask = dspy.Predict("q -> y")
        self.held = held


def metric(example: Any, prediction: Any, trace: Any = None, *, scale: float = 1.0) -> float:
    """A metric with a setting."""
    del example, prediction, trace
    return scale


class Judge:
    """A metric that is an object, with an LM that it asks."""

    def __init__(self, strict: bool, instructions: str = "Judge.") -> None:
        self._strict = strict
        self.lm = dspy.LM("openai/judge", api_key="secret")
        self.ask = dspy.Predict(dspy.Signature("y -> good: bool", instructions))

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """A score."""
        del example, prediction, trace
        return float(self._strict)


def bound(scale: float) -> Callable[..., float]:
    """A metric made of a number."""

    def made(example: Any, prediction: Any) -> float:
        del example, prediction
        return scale

    return made


def with_lm(name: str | None) -> Asks:
    made = Asks()
    made.ask.lm = None if name is None else program_lm(name)
    return made


NAMELESS: tuple[Callable[..., float], ...] = (
    lambda example, prediction: 1.0,
    lambda example, prediction: 0.0,
)
PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a metric's bound arguments": (
        lambda: (Asks(), functools.partial(metric, scale=1.0)),
        lambda: (Asks(), functools.partial(metric, scale=2.0)),
    ),
    "what a metric closes over": (lambda: (Asks(), bound(1.0)), lambda: (Asks(), bound(2.0))),
    "a metric's attributes": (lambda: (Asks(), Judge(strict=True)), lambda: (Asks(), Judge(strict=False))),
    "whose method a metric is": (
        lambda: (Asks(), Judge(strict=True).__call__),
        lambda: (Asks(), Judge(strict=False).__call__),
    ),
    "the prompts of a metric's judge": (
        lambda: (Asks(), Judge(strict=True)),
        lambda: (Asks(), Judge(strict=True, instructions="Judge kindly.")),
    ),
    "what an object in a program holds": (
        lambda: (Asks(Retriever(1)), metric),
        lambda: (Asks(Retriever(2)), metric),
    ),
    "what an object in a list of a program holds": (
        lambda: (Asks([{"by": Retriever(1)}]), metric),
        lambda: (Asks([{"by": Retriever(2)}]), metric),
    ),
    "the tools of an agent": (
        lambda: (dspy.ReAct("q -> y", tools=[bound(1.0)]), metric),
        lambda: (dspy.ReAct("q -> y", tools=[bound(2.0)]), metric),
    ),
    "the reward of a BestOfN": (
        lambda: (dspy.BestOfN(Asks(), N=2, reward_fn=bound(1.0), threshold=1.0), metric),
        lambda: (dspy.BestOfN(Asks(), N=2, reward_fn=bound(2.0), threshold=1.0), metric),
    ),
    "where a metric without a name of its own stands": (
        lambda: (Asks(), NAMELESS[0]),
        lambda: (Asks(), NAMELESS[1]),
    ),
    "which LM a predictor asks": (lambda: (with_lm(None), metric), lambda: (with_lm("big"), metric)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_programs_and_metrics_that_differ_in_what_they_hold_are_told_apart(name: str) -> None:
    one, other = PAIRS[name]
    assert identity_of(*one()) == identity_of(*one())
    assert identity_of(*one()) != identity_of(*other())


def test_the_adapter_that_dspy_was_configured_with_is_part_of_a_program() -> None:
    with dspy.context(adapter=dspy.JSONAdapter()):
        in_json = identity_of(Asks(), metric)
    with dspy.context(adapter=dspy.XMLAdapter()):
        assert identity_of(Asks(), metric) != in_json
    assert identity_of(Asks(), metric) != in_json


def test_the_code_of_what_a_program_holds_counts() -> None:
    name = "pipeline.tasks.bm25"
    search = import_module(name).BM25  # by its name, so that this file's own code does not have it
    assert name not in identity_of(Asks(), metric)["code"]
    assert name in identity_of(Asks([functools.partial(search)]), metric)["code"]


def test_what_holds_itself_is_followed_once_and_no_key_is_told() -> None:
    ring: list[Any] = [Retriever(1)]
    ring.append(ring)
    assert Held().plain(ring)[1] == "<builtins:list>"
    held = Held().plain({"judge": Judge(strict=True).lm})
    assert held == Held().plain({"judge": dspy.LM("openai/judge", api_key="another")})
    assert held != Held().plain({"judge": dspy.LM("openai/other", api_key="secret")})
