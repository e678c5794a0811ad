"""Log-probabilities that stay fixed through a stage: pi_0's and the reference policy's, scored without dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from schemas.errors import StageError
from stages.training.cutting import split
from stages.training.members import Row
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


def score_all(scorer: Scorer, rows: Sequence[Row], budget: int, progress: Callable[[int, int], None]) -> Tensors:
    """Score every row with the weights as they are, in evaluation mode.

    Raises:
        StageError: naming the rows whose log-probabilities are not finite.
    """
    scorer.model.eval()
    scored: Tensors = [torch.empty(0)] * len(rows)
    done = 0
    with torch.no_grad():
        for batch in split([[row] for row in rows], budget, packed=scorer.packed):
            values = scorer([rows[index] for index in batch]).log_probs.cpu()
            for line, index in enumerate(batch):
                scored[index] = values[line, : len(rows[index].completion)].clone()
            done += len(batch)
            progress(done, len(rows))
    check_finite(scored, rows)
    return scored


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


def save_baselines(baselines: Baselines, file: Path) -> None:
    """Keep the scores for a restart: their bytes are then those of the first try."""
    parts = {"old": baselines.old, "reference": baselines.reference}
    temporary = file.with_suffix(".tmp")
    save_file({name: torch.cat(values) for name, values in parts.items() if values is not None}, temporary)
    temporary.replace(file)


def load_baselines(file: Path, rows: Sequence[Row], *, reference_is_old: bool) -> Baselines:
    """What `save_baselines` kept."""
    tensors = load_file(file)
    lengths = [len(row.completion) for row in rows]
    parts = {name: list(flat.split(lengths)) for name, flat in tensors.items()}
    return Baselines(parts.get("old"), parts.get("reference"), reference_is_old)
