"""What is measured in an optimizer step, and what follows from it: stop, end early, or go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from schemas.errors import StageError
from schemas.recipe import TrainSection
from stages.training.buckets import Batch, Bucket
from stages.training.members import Members
from stages.training.objective import effective_share


@dataclass
class StepSums:
    """Sums over the units (copies count as often as they occur) of one optimizer step."""

    tokens: float = 0.0
    kl_old: float = 0.0
    forward_tokens: int = 0
    log_rho: list[torch.Tensor] = field(default_factory=list)
    trl: dict[str, float] = field(default_factory=dict)
    """Token-weighted sums of the means that TRL reports for each bucket."""

    def add(self, bucket: Bucket, means: dict[str, float]) -> None:
        """Add one bucket and what TRL reported for it."""
        self.tokens += bucket.tokens
        self.kl_old += bucket.kl_old
        if bucket.log_rho is not None:
            self.log_rho.append(bucket.log_rho)
        for name, mean in means.items():
            self.trl[name] = self.trl.get(name, 0.0) + mean * bucket.tokens

    def mean(self, name: str) -> float | None:
        """A mean over tokens of what TRL reported, or None where this loss has no such figure."""
        return self.trl[name] / self.tokens if name in self.trl else None

    @property
    def ess(self) -> float | None:
        """Effective sample size of rho as a share, or None when mu is not known."""
        return effective_share(torch.cat(self.log_rho)) if self.log_rho else None


def step_row(members: Members, batch: Batch, sums: StepSums, loss: float, rate: float) -> dict[str, Any]:
    """The step's row of the steps table, but for the gradient's norm."""
    chosen = np.array(batch.members, np.intp)
    units = chosen[np.unique(members.unit[chosen], return_index=True)[1]]
    tokens = int(members.tokens[chosen].sum())
    clipped = sums.mean("clip_ratio/region_mean")
    return {
        "step": batch.step,
        "loss": loss,
        "learning_rate": rate,
        "reward": float(members.reward[units].mean()),
        "advantage_abs": float(np.abs(members.advantage[units]).mean()),
        "kl_old": sums.kl_old / sums.tokens,
        "kl_ref": sums.mean("kl"),
        "entropy": sums.mean("entropy"),
        "clip_share": sums.mean("cispo_clip_ratio") if clipped is None else clipped,
        "ess": sums.ess,
        "members": len(units),
        "groups": len(np.unique(members.group[chosen])),
        "completion_tokens": tokens,
        "row_tokens": tokens + sum(len(members.rows[row].prompt) for row in members.row[chosen]),
        "forward_tokens": sums.forward_tokens,
    }


def check_step(members: Members, batch: Batch, row: dict[str, Any], train: TrainSection) -> None:
    """Refuse to take a step that would do harm.

    Raises:
        StageError: for a loss that is not finite, naming rows, and for an effective sample size below the floor.
    """
    if not np.isfinite(row["loss"]):
        names = sorted({members.rows[index].name for index in members.row[batch.members]})
        raise StageError(
            f"the loss of step {batch.step} is {row['loss']}, over {len(names)} rows, for example "
            f"({'), ('.join(names[:3])}): lower train.learning_rate, or train.rho_max"
        )
    if row["ess"] is not None and row["ess"] < train.ess_floor:
        raise StageError(
            f"step {batch.step}: the effective sample size is {row['ess']:.3f} of {row['members']} members, below "
            f"train.ess_floor = {train.ess_floor}: the data are too far from the policy that is trained. Were they "
            "sampled by another policy or at another precision? Sample again, or lower train.ess_floor knowingly."
        )


def why_end(row: dict[str, Any], train: TrainSection) -> str | None:
    """Why training ends here, as a success, before this step's update; None to go on."""
    if train.target_kl is not None and row["kl_old"] > train.target_kl:
        return f"KL to the start of the stage {row['kl_old']:.4g} passed target_kl {train.target_kl:g}"
    if train.entropy_floor is not None and row["entropy"] < train.entropy_floor:
        return f"entropy {row['entropy']:.4g} fell below entropy_floor {train.entropy_floor:g}"
    return None
