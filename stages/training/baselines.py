"""Log-probabilities that stay fixed through a stage: pi_0's and the reference policy's, scored without dropout.

The logprobs stage scores them with `score_all`; the train stage reads them with `read_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from schemas.errors import DataError, StageError
from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.training import LOGPROBS
from stages.training.behaviour import Kind, Origin, kind_of
from stages.training.cutting import split
from stages.training.members import Row
from stages.training.needs import needs_behaviours, needs_old, reference_is_old
from stages.training.scorer import Scorer

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Baselines:
    """Per row, its completion's log-probabilities.

    `old` None: pi_0 is the policy of the very forward pass that the loss is computed from (a stage of one step,
    without dropout), so its ratio is exactly 1. `reference` None: no KL term, or the reference is pi_0.
    """

    old: Tensors | None
    reference: Tensors | None
    reference_is_old: bool
    origins: tuple[Origin, ...]
    """What is known of the policy that sampled each row."""


def score_all(
    scorer: Scorer, rows: Sequence[Row], budget: int, progress: Callable[[int, int], None]
) -> tuple[Tensors, int]:
    """Score every row with the weights as they are, in evaluation mode.

    Args:
        scorer: holds the weights.
        rows: to score.
        budget: computed tokens of a micro-batch.
        progress: told rows and computed tokens so far.

    Returns:
        The scores, and the number of token positions that were computed.

    Raises:
        StageError: naming the rows whose log-probabilities are not finite.
    """
    scorer.model.eval()
    scored: Tensors = [torch.empty(0)] * len(rows)
    done = forward = 0
    with torch.no_grad():
        for batch in split([[row] for row in rows], budget, packed=scorer.packed):
            scores = scorer([rows[index] for index in batch])
            values, forward = scores.log_probs.cpu(), forward + scores.forward_tokens
            for line, index in enumerate(batch):
                scored[index] = values[line, : len(rows[index].completion)].clone()
            done += len(batch)
            progress(done, forward)
    check_finite(scored, rows)
    return scored, forward


def check_finite(values: Sequence[torch.Tensor], rows: Sequence[Row]) -> None:
    """Refuse values that are not finite.

    Raises:
        StageError: with the keys of up to three of the rows.
    """
    wrong = [row.name for value, row in zip(values, rows, strict=True) if not torch.isfinite(value).all()]
    if wrong:
        raise StageError(
            f"the model gives log-probabilities that are not finite for {len(wrong)} rows, for example "
            f"({'), ('.join(wrong[:3])}): check the base model and the previous adapter, or lower train.learning_rate"
        )


Scores = dict[str, dict[tuple[str, int], torch.Tensor]]
"""Policy -> invocation -> log-probabilities."""


def read_scores(files: Sequence[Path]) -> Scores:
    """The rows of logprobs.parquet files, by policy and invocation."""
    frame = read_frame(files, LOGPROBS, validate=False)
    scores: Scores = {}
    for rollout, call, policy, values in frame.iter_rows():
        scores.setdefault(policy, {})[rollout, call] = torch.tensor(values, dtype=torch.float32)
    return scores


@dataclass(frozen=True)
class PolicyScores:
    """What policies think of the invocations of a stage."""

    chain: tuple[str, ...]
    """Digests of the run's policies, the base first, pi_0 last."""
    values: Scores

    def baselines(self, rows: Sequence[Row], recipe: Recipe, *, steps: int, fresh: bool) -> Baselines:
        """What one training needs; `needs.py` says when nothing is.

        Args:
            rows: the invocations that its members point to.
            recipe: the whole recipe.
            steps: optimizer steps that it takes.
            fresh: whether its adapter has not been trained before.

        Raises:
            DataError: naming rows that were not scored, and the command that scores them.
        """
        is_old = reference_is_old(recipe.train, fresh=fresh)
        old = self.of(self.chain[-1], rows) if needs_old(steps, recipe.adapter.dropout) else None
        reference = self.of(self.chain[0], rows) if recipe.train.beta != 0 and not is_old else None
        return Baselines(old, reference, is_old, self.origins(rows, recipe))

    def origins(self, rows: Sequence[Row], recipe: Recipe) -> tuple[Origin, ...]:
        """What is known of the policy that sampled each row."""
        ages = {policy: age for age, policy in enumerate(reversed(self.chain))}
        kinds = [kind_of(row, recipe, ages) for row in rows]
        scored: dict[int, torch.Tensor] = {}
        for policy in self.chain[:-1] if needs_behaviours(recipe.train) else ():
            mine = [index for index, row in enumerate(rows) if row.policy == policy]
            scored |= dict(zip(mine, self.of(policy, [rows[index] for index in mine]), strict=True))
        return tuple(
            Origin(cast("Kind", kind), ages.get(row.policy or ""), scored.get(index))
            for index, (row, kind) in enumerate(zip(rows, kinds, strict=True))
        )

    def of(self, policy: str, rows: Sequence[Row]) -> Tensors:
        """One policy's log-probabilities of some rows.

        Raises:
            DataError: naming rows that have none, or another number of tokens.
        """
        known = self.values.get(policy, {})
        found = [known.get((row.rollout_id, row.call_index), torch.empty(0)) for row in rows]
        wrong = [row.name for row, value in zip(rows, found, strict=True) if len(value) != len(row.completion)]
        if wrong:
            raise DataError(
                f"{len(wrong)} invocations lack the log-probabilities of policy {policy[:12]}, for example "
                f"({'), ('.join(wrong[:3])}). Score them first: mmgrpo stage logprobs RECIPE --iteration I"
            )
        return found
