"""Who made the data: the student and its teachers, by iteration, from rollouts to the pull on the weights."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from pipeline.reporting.data import SourceStats
from pipeline.reporting.opened import OpenRun, frame
from schemas.rollouts import ROLLOUTS
from stages.contract import Artifact


def collect_sources(run: OpenRun) -> tuple[SourceStats, ...]:
    """Per iteration and source: its own rollouts, and its part of what was trained on."""
    return tuple(row for index in range(len(run.state.iterations)) for row in _sources(run, index))


def _sources(run: OpenRun, index: int) -> Iterator[SourceStats]:
    artifacts = list(rollout_artifacts(run, index))
    train = run.stage(index, "train")
    told = train.manifest.metrics.get("sources", {}) if train else {}
    if not artifacts:
        return
    table = pl.concat([frame(artifact, ROLLOUTS, ["source", "reward", "status"]) for artifact in artifacts])
    rolled = {str(name): rows for (name,), rows in table.partition_by("source", as_dict=True).items()}
    for name in sorted(rolled.keys() | told.keys(), key=lambda name: (name != "student", name)):
        rows, trained = rolled.get(name, table.clear()), told.get(name)
        mean = rows["reward"].mean()
        yield SourceStats(
            iteration=index,
            source=name,
            rollouts=rows.height,
            ok=int((rows["status"] == "ok").sum()),
            mean_reward=mean if isinstance(mean, float) else None,
            members=None if trained is None else int(trained["members"]),
            share=None if trained is None else trained["share"],
            pull_share=None if trained is None else trained["pull_share"],
        )


def rollout_artifacts(run: OpenRun, index: int) -> Iterator[Artifact]:
    """The student's and its teachers' rollouts."""
    for stage in sorted(run.state.iterations[index]):
        if stage == "rollout" or stage.startswith("teacher."):
            artifact = run.stage(index, stage)
            if artifact is not None:
                yield artifact
