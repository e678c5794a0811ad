"""Scores of one policy on one split, by example: what comparisons are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipeline.alike import way_of
from pipeline.reporting.opened import frame
from schemas.canonical import digest
from schemas.cells import NUMBERS, cell
from schemas.recipe import Recipe
from schemas.rollouts import NOT_OF_THE_PROGRAM
from schemas.scores import SCORES
from stages.contract import Artifact
from stages.statistics import example_means

NOT_THE_MODEL = (*NOT_OF_THE_PROGRAM, "timeout")
"""Statuses with which the machine or the metric failed: what such a run counts as says nothing of a policy."""


@dataclass(frozen=True)
class Scored:
    """An evaluate artifact, read."""

    artifact: Artifact
    policy: str
    means: dict[str, float]
    """Mean score by example_id, failed runs counted as the recipe says."""
    rows: tuple[tuple[str, float, dict[str, float]], ...]
    """Each run's example, score and parts of the metric."""
    spoiled: tuple[str, ...] = ()
    """Status of each run that failed for a reason that is not the policy's."""

    @cached_property
    def examples(self) -> str:
        """Digest of the ids that were scored."""
        return digest(sorted(self.means))

    @cached_property
    def way(self) -> str:
        """Digest of what decides scores beside the policy and its prompts: examples, program, metric and sampling."""
        return digest([self.examples, way_of(self.artifact)])

    @property
    def prompts(self) -> str | None:
        """Digest of the artifact of prompts that it was scored with."""
        found = self.artifact.manifest.payload["inputs"].get("prompts")
        return None if found is None else str(found)

    def span(self) -> tuple[float, float]:
        """Lowest and highest score among the runs."""
        scores = [score for _, score, _ in self.rows]
        return min(scores), max(scores)


def read_scored(artifact: Artifact, recipe: Recipe) -> Scored | None:
    """Read an evaluate artifact; None where it has no rows.

    Raises:
        ContractError: when its table cannot be read.
    """
    missing = recipe.evaluate.failure_score
    table = frame(artifact, SCORES, ["policy", "example_id", "score", "parts", "status"])
    ids, scores = table["example_id"].to_list(), table["score"].to_list()
    if not ids:
        return None
    where = f"{artifact.folder / 'scores.parquet'}, parts"
    parts = [{} if text is None else cell(text, NUMBERS, where) for text in table["parts"].to_list()]
    filled = [missing if score is None else float(score) for score in scores]
    rows = tuple(zip(ids, filled, parts, strict=True))
    spoiled = tuple(status for status in table["status"].to_list() if status in NOT_THE_MODEL)
    return Scored(artifact, table["policy"][0], example_means(ids, scores, missing), rows, spoiled)


def why_incomparable(*both: Scored) -> str | None:
    """Why scores say nothing of their policies, and what to do; None where they do."""
    told = [
        f"{len(item.spoiled)} of {len(item.rows)} runs of policy {item.policy[:12]} ended in "
        f"{' or '.join(sorted(set(item.spoiled)))}, which says nothing of it: mend that, delete "
        f"artifacts/evaluate/{item.artifact.path.name} in the run folder, and run again"
        for item in both
        if item.spoiled
    ]
    return "; ".join(told) or None
