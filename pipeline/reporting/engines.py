"""Which engines sampled, how, and how far their log-probabilities are from the trainer's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from pipeline.reporting.data_engines import EngineGap, Sampled
from pipeline.reporting.data_training import Step
from pipeline.reporting.opened import OpenRun, frame
from pipeline.reporting.sources import rollout_artifacts
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Artifact

HOW = ("engine", "logprob_kind", "temperature", "top_p", "top_k", "max_new_tokens", "adapter")


def collect_sampled(run: OpenRun) -> tuple[Sampled, ...]:
    """Per iteration and source, how many calls of the student's place were sampled in which way."""
    return tuple(
        row
        for index in range(len(run.state.iterations))
        for artifact in rollout_artifacts(run, index)
        for row in _sampled(artifact, index)
    )


def _sampled(artifact: Artifact, iteration: int) -> Iterator[Sampled]:
    sources = frame(artifact, ROLLOUTS, ["rollout_id", "source"])
    calls = frame(artifact, INVOCATIONS, ["rollout_id", "lm", *HOW]).filter(pl.col("lm") == "student")
    place = ["source", *HOW]
    counted = calls.join(sources, on="rollout_id").group_by(place).agg(calls=pl.len())
    for row in counted.sort(place, nulls_last=True).iter_rows(named=True):
        yield Sampled(iteration=iteration, **row)


def engine_gaps(steps: Sequence[Step]) -> tuple[EngineGap, ...]:
    """The steps of each iteration together: means by tokens, and the largest of what is a bound."""
    by_iteration: dict[int, list[Step]] = {}
    for step in steps:
        by_iteration.setdefault(step.iteration, []).append(step)
    return tuple(_gap(iteration, own) for iteration, own in sorted(by_iteration.items()))


def _gap(iteration: int, steps: Sequence[Step]) -> EngineGap:
    return EngineGap(
        iteration=iteration,
        completion_tokens=round(sum(step.figures["completion_tokens"] or 0.0 for step in steps)),
        mean=_mean(steps, "mismatch_mean"),
        p99=_most(steps, "mismatch_p99"),
        largest=_most(steps, "mismatch_max"),
        ess=_mean(steps, "mismatch_ess"),
        rho_cut=_mean(steps, "rho_cut"),
    )


def _known(steps: Iterable[Step], name: str) -> list[tuple[float, float]]:
    """The figure and the tokens of the steps that have it."""
    found = ((step.figures[name], step.figures["completion_tokens"] or 0.0) for step in steps)
    return [(value, tokens) for value, tokens in found if value is not None and math.isfinite(value)]


def _mean(steps: Sequence[Step], name: str) -> float | None:
    known = _known(steps, name)
    tokens = math.fsum(own for _, own in known)
    return math.fsum(value * own for value, own in known) / tokens if tokens else None


def _most(steps: Sequence[Step], name: str) -> float | None:
    return max((value for value, _ in _known(steps, name)), default=None)
