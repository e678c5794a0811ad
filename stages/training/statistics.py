"""What is measured in an optimizer step, and what follows from it: stop, end early, or go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from schemas.errors import StageError
from schemas.recipe_training import TrainSection
from stages.training.ages import age_rows, count_tokens
from stages.training.buckets import Batch, Bucket
from stages.training.members import Members
from stages.training.objective import Objective
from stages.training.ratio import effective_share


@dataclass
class StepSums:
    """Sums over the units (copies count as often as they occur) of one optimizer step."""

    tokens: float = 0.0
    kl_old: float = 0.0
    forward_tokens: int = 0
    units: list[torch.Tensor] = field(default_factory=list)
    """(b, 3): age of the policy that sampled a unit, log pi_0/mu, log trainer's/engine's; NaN where not known."""
    mismatch: list[torch.Tensor] = field(default_factory=list)
    """(n,) |trainer's less engine's| log-probability of each token under one policy, where both are known."""
    rho_tokens: float = 0.0
    """Tokens that have a rho."""
    rho_cut: float = 0.0
    """Of these, how many had one above its bound."""
    by_age: dict[str, float] = field(default_factory=dict)
    """Sums over tokens by age: see `ages.py`."""
    trl: dict[str, float] = field(default_factory=dict)
    """Token-weighted sums of the means that TRL reports for each bucket."""

    def add(self, bucket: Bucket, means: dict[str, float], objective: Objective) -> None:
        """Add one bucket and what TRL reported for it."""
        self.tokens += bucket.tokens
        self.kl_old += float((torch.expm1(bucket.drift) - bucket.drift).sum())
        difference = bucket.mismatch.double()
        self.units.append(torch.stack([bucket.age.double(), bucket.far.double(), difference.nansum(-1)], dim=1).cpu())
        known = difference[~difference.isnan()].abs().float().cpu()
        self.units[-1][difference.isnan().all(-1).cpu(), 2] = torch.nan
        if len(known):
            self.mismatch.append(known)
        if bucket.cut is not None:
            self.rho_tokens += bucket.tokens
            self.rho_cut += float(bucket.cut.sum())
        count_tokens(self.by_age, bucket, objective)
        for name, mean in means.items():
            self.trl[name] = self.trl.get(name, 0.0) + mean * bucket.tokens

    def mean(self, name: str) -> float | None:
        """A mean over tokens of what TRL reported, or None where this loss has no such figure."""
        return self.trl[name] / self.tokens if name in self.trl else None

    @property
    def ess(self) -> float | None:
        """Effective sample size of pi_0/mu as a share, or None when mu is not known."""
        return known_share(torch.cat(self.units)[:, 1])

    @property
    def mismatches(self) -> dict[str, float | None]:
        """How far the engine's log-probabilities are from the trainer's of the same policy."""
        if not self.mismatch:
            return dict.fromkeys(("mismatch_ess", "mismatch_mean", "mismatch_p99", "mismatch_max"))
        apart = torch.cat(self.mismatch).double()
        return {
            "mismatch_ess": known_share(torch.cat(self.units)[:, 2]),
            "mismatch_mean": float(apart.mean()),
            "mismatch_p99": float(apart.kthvalue(-(-99 * len(apart) // 100)).values),
            "mismatch_max": float(apart.max()),
        }


def known_share(log_ratio: torch.Tensor) -> float | None:
    """`effective_share` of the ratios that are known; None without any."""
    known = log_ratio[~log_ratio.isnan()]
    return effective_share(known) if len(known) else None


def step_row(members: Members, batch: Batch, sums: StepSums, loss: float, rate: float) -> dict[str, Any]:
    """A row of the steps table without the norm of its gradient; `ages` and `modules` hold rows of those tables."""
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
        **sums.mismatches,
        "rho_cut": sums.rho_cut / sums.rho_tokens if sums.rho_tokens else None,
        "members": len(units),
        "groups": len(np.unique(members.group[chosen])),
        "completion_tokens": tokens,
        "row_tokens": tokens + sum(len(members.rows[row].prompt) for row in members.row[chosen]),
        "forward_tokens": sums.forward_tokens,
        "ages": age_rows(sums.by_age, torch.cat(sums.units)),
        "modules": module_rows(members, chosen),
    }


def module_rows(members: Members, chosen: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """What each module has in a step; the gradient's norm is measured later."""
    return [
        {
            "module": str(module),
            "members": int((members.module[chosen] == module).sum()),
            "completion_tokens": int(members.tokens[chosen][members.module[chosen] == module].sum()),
            "grad_norm": None,
        }
        for module in np.unique(members.module[chosen])
    ]


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
            f"train.ess_floor = {train.ess_floor}: the data are too far from the policy that is trained. Sample again, "
            "replay fewer iterations, or lower train.ess_floor knowingly."
        )


def why_end(row: dict[str, Any], train: TrainSection) -> str | None:
    """Why training ends here, as a success, before this step's update; None to go on."""
    if train.target_kl is not None and row["kl_old"] > train.target_kl:
        return f"KL to the start of the stage {row['kl_old']:.4g} passed target_kl {train.target_kl:g}"
    if train.entropy_floor is not None and row["entropy"] < train.entropy_floor:
        return f"entropy {row['entropy']:.4g} fell below entropy_floor {train.entropy_floor:g}"
    return None
