"""Scoring logged outputs with the program's own metric, instead of the scores that were logged.

The metric is run as ever, with its tries, time limits and judges, on what the log says the program returned; labels
come from the recipe's data file where that has the example. Each score is kept as it is made, for a process that goes
on after a kill; where the metric failed, that process tries again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from schemas.canonical import digest, seed_from
from schemas.errors import StageError
from schemas.examples import example_id
from schemas.recipe import Recipe
from stages.engines.interface import EngineUsage, Request, Result
from stages.ingest.kept_scores import KeptScores, Score
from stages.programs.desk import Failure, all_failed, failures
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


@dataclass
class Rescorer:
    """Scores rollouts, range by range."""

    program: Program
    """The recipe's."""
    session: Session
    """For the judges of the metric."""
    labelled: Mapping[str, Mapping[str, Any]]
    """Rows of the recipe's examples, by the id of their inputs."""
    concurrency: int
    """Metrics in flight at once."""
    kept: KeptScores
    """Scores that are known already, and where new ones go."""
    progress: Callable[[int, int], None]
    """Told how many of a range's rollouts are scored, and how many there are."""
    scored: int = 0
    failed: list[Failure] = field(default_factory=list)
    """Rollouts on which it failed."""

    def score(self, tables: Mapping[str, Rows]) -> None:
        """Give the rollouts among the tables of a range their scores, in place. What is known is not scored again."""
        inputs = {row["example_id"]: row["inputs"] for row in tables["examples"]}
        traces = {row["rollout_id"]: row for row in tables["traces"]}
        rollouts = {row["rollout_id"]: row for row in tables["rollouts"] if row["status"] == "ok"}
        calls: dict[str, Rows] = {}
        for row in tables["invocations"]:
            calls.setdefault(row["rollout_id"], []).append(row)
        for row in rollouts.values():
            row["reward"], row["reward_parts"] = None, None
            traces[row["rollout_id"]]["reward_reason"] = NO_OUTPUT if row["output"] is None else None
        given = {name: row for name, row in rollouts.items() if row["output"] is not None}
        jobs = {name: self._job(row, inputs[row["example_id"]]) for name, row in given.items()}
        names = {name: _name_of(job, given[name]["output"], calls.get(name, [])) for name, job in jobs.items()}
        known = {name: found for name in jobs if (found := self.kept.get(names[name])) is not None}
        replay = replace(
            self.program,
            invoke=lambda _, caller: self._output(rollouts[caller.recorder.rollout_id]["output"]),
            is_async=False,
            metric=self._metric(calls),
        )
        waiting = [job for name, job in jobs.items() if name not in known]
        for done, finished in enumerate(run_programs(replay, waiting, self.session, self.concurrency), start=1):
            name, outcome = finished.job.rollout_id, finished.outcome
            if outcome.score is None:
                self.failed += failures([finished])
                traces[name]["reward_reason"] = METRIC_FAILED
            else:
                known[name] = Score(outcome.score, outcome.parts)
                self.kept.keep(names[name], known[name])
            self.progress(len(jobs) - len(waiting) + done, len(jobs))
        for name, found in known.items():
            rollouts[name]["reward"], rollouts[name]["reward_parts"] = found
        self.scored += len(known)

    def refuse_failure(self) -> None:
        """Once all ranges are scored.

        Raises:
            StageError: when the metric failed on every rollout that it was given.
        """
        if self.failed and not self.scored:
            raise StageError(all_failed(self.failed, "rollouts"))

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


def _name_of(job: Job, output: str, calls: Rows) -> str:
    """Of a score: another for another rollout, or other things that the metric sees of it."""
    seen = [job.rollout_id, job.inputs, job.labels, job.metadata, output, *map(_view, calls)]
    return hashlib.blake2b(orjson.dumps(seen), digest_size=16).hexdigest()


def identity(program: Mapping[str, Any], recipe: Recipe) -> str:
    """What decides the scores, for the key: the metric, its arguments, the program's code, and who judges, and how.

    Labels are no part of it; see `labels_digest`.
    """
    kept = {name: program[name] for name in ("metric", "metric_args", "code", "files")}
    judged = {"metric": recipe.metric.model_dump(mode="json"), "timeout_s": recipe.program.timeout_s}
    if recipe.lms:
        lms = {name: lm.model_dump(mode="json") for name, lm in recipe.lms.items()}
        own = {"dtype": recipe.model.dtype, "context": recipe.model.context}
        judged |= {"lms": lms, "model": own, "seed": recipe.seed}
    return digest([kept, judged])


def labels_digest(labelled: Mapping[str, Mapping[str, Any]]) -> str:
    """Of all that the recipe's data says of its examples beside their inputs."""
    return digest({name: [row["labels"], row["metadata"]] for name, row in labelled.items()})
