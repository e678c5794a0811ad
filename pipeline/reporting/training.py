"""Optimizer steps as the trainer logged them, and their means per iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.reporting.data_training import Step, StepMeans
from pipeline.reporting.opened import OpenRun, frame
from schemas.training import STEPS

FIGURES = tuple(name for name in STEPS.schema.names if name not in STEPS.key)


def collect_steps(run: OpenRun) -> tuple[Step, ...]:
    """All optimizer steps of the run in order."""
    steps: list[Step] = []
    for index in range(len(run.state.iterations)):
        artifact = run.stage(index, "train")
        if artifact is not None:
            rows = frame(artifact, STEPS, [*STEPS.key, *FIGURES]).sort(STEPS.key).to_dicts()
            steps += [Step(index, row.pop("step"), row.pop("adapter"), row) for row in rows]
    return tuple(steps)


def step_means(steps: Sequence[Step]) -> tuple[StepMeans, ...]:
    """Mean of each figure over the steps of each iteration and adapter.

    Steps where a figure is absent or not finite do not count.
    """
    groups: dict[tuple[int, str], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.iteration, step.adapter), []).append(step)
    return tuple(
        StepMeans(*place, len(group), {name: _mean([step.figures[name] for step in group]) for name in FIGURES})
        for place, group in sorted(groups.items())
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
