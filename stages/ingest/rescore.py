"""Scoring logged outputs with the program's own metric, instead of the scores that were logged.

The metric is run as ever, with its tries, time limits and judges, on what the log says the program returned; labels
come from the recipe's data file where that has the example.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from schemas.canonical import canonical_json, seed_from
from schemas.examples import example_id
from stages.engines.interface import EngineUsage, Request, Result
from stages.programs.load import Program
from stages.programs.run import Job
from stages.programs.runner import run_programs
from stages.programs.session import Caller, Session

METRIC_FAILED, NO_OUTPUT = "metric_failed", "no_output"
Rows = list[dict[str, Any]]


class NoEngine:
    """Stands for the engine where no judge asks the base model."""

    logprob_kind: Literal["processed", "raw"] = "processed"

    def __init__(self) -> None:
        self.name, self.usage = "none", EngineUsage()

    def expect(self, digests: Collection[str]) -> None:
        """It has no adapters."""

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """There is nothing to encode for."""
        raise AssertionError(messages)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Nothing asks it: judges are LMs of the recipe, and none of those is the base model."""
        raise AssertionError(requests)


@dataclass(frozen=True)
class Rescorer:
    """Scores the rollouts of a range.

    Args:
        program: the recipe's.
        session: for the judges of the metric.
        labelled: rows of the recipe's examples, by the id of their inputs.
        concurrency: metrics in flight at once.
    """

    program: Program
    session: Session
    labelled: Mapping[str, Mapping[str, Any]]
    concurrency: int

    def score(self, tables: Mapping[str, Rows]) -> None:
        """Give the rollouts among the tables of a range their scores, in place."""
        inputs = {row["example_id"]: row["inputs"] for row in tables["examples"]}
        traces = {row["rollout_id"]: row for row in tables["traces"]}
        rollouts = {row["rollout_id"]: row for row in tables["rollouts"] if row["status"] == "ok"}
        calls: dict[str, Rows] = {}
        for row in tables["invocations"]:
            calls.setdefault(row["rollout_id"], []).append(row)
        for row in rollouts.values():
            row["reward"], row["reward_parts"] = None, None
            traces[row["rollout_id"]]["reward_reason"] = NO_OUTPUT if row["output"] is None else None
        jobs = [self._job(row, inputs[row["example_id"]]) for row in rollouts.values() if row["output"] is not None]
        replay = replace(
            self.program,
            invoke=lambda _, caller: self._output(rollouts[caller.recorder.rollout_id]["output"]),
            is_async=False,
            metric=self._metric(calls),
        )
        for finished in run_programs(replay, jobs, self.session, self.concurrency):
            row, outcome = rollouts[finished.job.rollout_id], finished.outcome
            row["reward"], row["reward_parts"] = outcome.score, outcome.parts
            if outcome.score is None:
                traces[row["rollout_id"]]["reward_reason"] = METRIC_FAILED

    def _job(self, row: Mapping[str, Any], inputs: str) -> Job:
        known = self.labelled.get(example_id(json.loads(inputs)), {})
        name, index = row["rollout_id"], int(row["rollout_index"])
        seed = seed_from("rescore", name)
        return Job(row["example_id"], index, name, seed, inputs, known.get("labels"), known.get("metadata"))

    def _output(self, logged: str) -> Any:
        """What the program returned, as its metric knows it: of a DSPy program, a prediction."""
        output = json.loads(logged)
        if self.program.module is None or not isinstance(output, dict):
            return output
        import dspy

        return dspy.Prediction(**output)

    def _metric(self, calls: Mapping[str, Rows]) -> Any:
        metric = self.program.metric

        def scored(example: Any, output: Any, own: Rows, judge: Caller | None = None) -> Any:
            logged = own if judge is None else [_view(row) for row in calls.get(judge.recorder.rollout_id, [])]
            return metric(example, output, logged, judge)

        return scored


def _view(row: Mapping[str, Any]) -> dict[str, Any]:
    """A logged call as a metric sees it. What the program parsed of it is not in the log."""
    named = ("module", "invocation_index", "attempt", "lm", "completion")
    return {**{name: row[name] for name in named}, "messages": json.loads(row["messages"]), "value": None}


def identity(program: Mapping[str, Any]) -> str:
    """What decides the scores, for the key: the metric, its arguments and the program's code."""
    kept = {name: program[name] for name in ("metric", "metric_args", "code", "files")}
    return canonical_json(kept)
