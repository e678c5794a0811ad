"""DSPy as it comes, for the sampling benchmark: a task's program over a function that answers one call at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dspy
from dspy import lm15

from schemas.examples import EXAMPLES
from schemas.parquet import read_rows
from stages.engines.interface import Sampling
from stages.programs.choice import order
from stages.programs.dspy_engine import overrides_of, request_messages, response_of
from stages.programs.imports import import_named
from stages.programs.metric import Example, prepare_metric
from stages.programs.recorder import overridden
from stages.programs.session import Reply
from tests.benchmarks.rollout_workloads import GROUP, Task

Ask = Callable[[list[dict[str, str]], Sampling], str]


class AskEngine:
    """A DSPy engine over such a function."""

    def __init__(self, ask: Ask, sampling: Sampling) -> None:
        self.ask, self.sampling = ask, sampling

    def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion."""
        text = self.ask(request_messages(request), overridden(self.sampling, overrides_of(request)))
        return response_of(request, Reply(text, "stop"))

    def __deepcopy__(self, memo: dict[int, Any]) -> AskEngine:
        return self


def plain_program(task: Task, ask: Ask) -> tuple[dspy.Module, dspy.Adapter]:
    """The task's program with its LMs set the way DSPy's users set them, and its adapter."""
    recipe = task.loaded.recipe
    factory = import_named(recipe.program.factory, "program.factory", task.loaded.root)
    needs_root = "root" in factory.__annotations__
    program = factory(**({"root": task.loaded.root} if needs_root else {}), **recipe.program.args)
    drawn = recipe.rollout.sampling
    student = Sampling(drawn.temperature, drawn.top_p, drawn.top_k, drawn.max_new_tokens)
    for predictor in program.predictors():
        predictor.lm = _lm("student", ask, student)
    if "untrusted" in recipe.lms:
        other = recipe.lms["untrusted"]
        sampling = Sampling(temperature=other.temperature, max_new_tokens=other.max_new_tokens)
        program.untrusted.answer.lm = _lm("untrusted", ask, sampling)
    return program, program.adapter


def _lm(name: str, ask: Ask, sampling: Sampling) -> dspy.LM:
    return dspy.LM(f"bench/{name}", engine=AskEngine(ask, sampling), cache=False, num_retries=0)


def devset(task: Task) -> list[dspy.Example]:
    """The examples that the rollout stage draws, each as often as it runs them."""
    recipe = task.loaded.recipe
    rows = {row["example_id"]: row for row in read_rows(task.inputs["examples"].file("examples.parquet"), EXAMPLES)}
    train = sorted(name for name, row in rows.items() if row["split"] == recipe.examples.train)
    chosen = order(train, recipe, 0, {})[: task.plain_rollouts // GROUP]
    return [_example(rows[name]) for name in chosen for _ in range(GROUP)]


def _example(row: dict[str, Any]) -> dspy.Example:
    inputs = json.loads(row["inputs"])
    return dspy.Example(**inputs, row=row).with_inputs(*inputs)


def scored(task: Task) -> Callable[..., float]:
    """The task's metric as DSPy calls one."""
    section = task.loaded.recipe.program
    metric = prepare_metric(import_named(section.metric, "program.metric", task.loaded.root), section.metric_args)

    def score(example: dspy.Example, prediction: Any, trace: Any = None) -> float:
        del trace
        row = example.row
        told = [json.loads(row[name] or "{}") for name in ("inputs", "labels", "metadata")]
        found = metric(Example(row["example_id"], *told), prediction, [])
        return float(found["score"] if isinstance(found, dict) else found)

    return score
