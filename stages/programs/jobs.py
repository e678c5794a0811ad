"""The program runs of a stage: their identities, their seeds, and their rows of the rollouts table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.canonical import seed_from
from schemas.rollouts import rollout_id
from stages.programs.run import Finished, Job


@dataclass(frozen=True)
class Runs:
    """What the runs of a stage have in common."""

    program: str
    """Digest of the program as it runs."""
    policy: str | None
    source: str
    seed: int
    iteration: int
    draws: tuple[str | int, ...]
    """What the seed of a run is made of, beside its example and index."""

    def of(self, example: Mapping[str, Any], count: int) -> list[Job]:
        """The runs on one example, a row of the examples table."""
        name = str(example["example_id"])
        return [
            Job(
                example_id=name,
                index=index,
                rollout_id=rollout_id(
                    program=self.program,
                    policy=self.policy,
                    source=self.source,
                    seed=self.seed,
                    iteration=self.iteration,
                    example_id=name,
                    index=index,
                ),
                seed=seed_from(*self.draws, name, index),
                inputs=example["inputs"],
                labels=example["labels"],
                metadata=example["metadata"],
            )
            for index in range(count)
        ]

    def row(self, finished: Finished) -> dict[str, Any]:
        """A finished run as a row of the rollouts table."""
        job, outcome = finished.job, finished.outcome
        return {
            "example_id": job.example_id,
            "rollout_index": job.index,
            "rollout_id": job.rollout_id,
            "iteration": self.iteration,
            "source": self.source,
            "policy": self.policy,
            "program": self.program,
            "reward": outcome.score,
            "reward_parts": outcome.parts,
            "status": outcome.status,
            "error": outcome.error,
            "output": outcome.output,
            "seed": job.seed,
        }
