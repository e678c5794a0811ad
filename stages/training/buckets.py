"""A scored micro-batch laid out as TRL's loss takes it: one bucket for each weight that its members have.

Change from GRPO/TRL: advantages are per token, because rho = pi_0/mu multiplies them. TRL has no place for member
weights, so members of equal weight are one call of its loss, which the trainer multiplies. Copies point to one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.training.baselines import Baselines
from stages.training.members import Members, Row
from stages.training.objective import Objective, Shares, bucket_factor, rho_of
from stages.training.scorer import Scored

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Batch:
    """One optimizer step: its members and their shares of the loss."""

    step: int
    """Of the run, from 0."""
    members: list[int]
    shares: Shares


@dataclass(frozen=True)
class MicroBatch:
    """Some of a step's members, and the distinct rows that they point to."""

    chosen: Indices
    """(b,) indices of members."""
    weight: npt.NDArray[np.float64]
    """(b,) shares of the loss."""
    rows: Indices
    """(R,) indices of rows."""
    line: Indices
    """(b,) each member's row among `rows`."""

    @classmethod
    def of(cls, members: Members, batch: Batch, part: list[int]) -> MicroBatch:
        """From positions in `batch.members`."""
        chosen = np.array(batch.members, np.intp)[part]
        rows, line = np.unique(members.row[chosen], return_inverse=True)
        return cls(chosen, batch.shares.weight[part], rows, line)


@dataclass(frozen=True)
class Bucket:
    """Members of one micro-batch that have equal weight, ready for TRL's loss."""

    factor: float
    inputs: dict[str, torch.Tensor]
    log_probs: torch.Tensor
    entropy: torch.Tensor
    tokens: float
    kl_old: float
    """Sum over tokens of the k3 estimate of KL(pi_0 || theta)."""
    log_rho: torch.Tensor | None


def lay_out(
    members: Members, micro: MicroBatch, scored: Scored, baselines: Baselines, objective: Objective, *, tokens: float
) -> list[Bucket]:
    """The buckets of a micro-batch; `tokens` are the weighted completion tokens of the whole step."""
    fixed = _fixed([members.rows[index] for index in micro.rows], micro.rows, scored, baselines, objective)
    buckets = []
    for weight in np.unique(micro.weight):
        here = np.flatnonzero(micro.weight == weight)
        line = torch.from_numpy(micro.line[here]).to(scored.mask.device)
        advantage = torch.from_numpy(members.advantage[micro.chosen[here]])
        values = {name: value[line] for name, value in fixed.items()}
        own = Scored(scored.log_probs[line], scored.entropy[line], scored.mask[line], 0)
        buckets.append(_bucket(float(weight), advantage, own, values, objective, tokens=tokens))
    return buckets


def _fixed(
    rows: list[Row], indices: Indices, scored: Scored, baselines: Baselines, objective: Objective
) -> dict[str, torch.Tensor]:
    """Per row of the micro-batch, (R, T): token ids and log-probabilities that have no gradient."""
    current = scored.log_probs.detach()

    def fill(values: list[torch.Tensor]) -> torch.Tensor:
        flat = torch.cat(values).to(scored.mask.device)
        return flat.new_zeros(scored.mask.shape).masked_scatter(scored.mask, flat)

    old, reference = baselines.old, baselines.reference
    fixed = {"completion_ids": fill([torch.from_numpy(row.completion) for row in rows])}
    fixed["old"] = current if old is None else fill([old[index] for index in indices])
    if reference is not None:
        fixed["reference"] = fill([reference[index] for index in indices])
    elif baselines.reference_is_old:
        fixed["reference"] = fixed["old"]
    if objective.rho != "none":
        sampling = [torch.from_numpy(row.sampling) for row in rows if row.sampling is not None]
        fixed["sampling"] = fill(sampling).to(current.dtype)
    return fixed


def _bucket(
    weight: float,
    advantage: torch.Tensor,
    scored: Scored,
    fixed: dict[str, torch.Tensor],
    objective: Objective,
    *,
    tokens: float,
) -> Bucket:
    """TRL's inputs for b members of equal weight; all tensors are theirs, (b, T)."""
    mask, log_probs, old = scored.mask, scored.log_probs, fixed["old"]
    advantages = advantage.to(log_probs)[:, None].expand_as(log_probs)
    log_rho = None
    if "sampling" in fixed:
        rho, log_rho = rho_of(old, fixed["sampling"], mask, objective)
        advantages = advantages * rho
    inputs: dict[str, Any] = {
        "prompt_ids": mask.new_empty(len(mask), 0, dtype=torch.long),  # scored already
        "prompt_mask": mask.new_empty(len(mask), 0, dtype=torch.long),
        "completion_ids": fixed["completion_ids"],
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "num_items_in_batch": torch.tensor(tokens, device=mask.device),
    }
    if "reference" in fixed:
        inputs["ref_per_token_logps"] = fixed["reference"]
    own = float(mask.sum())
    drift = (log_probs.detach() - old).masked_fill(~mask, 0.0)
    return Bucket(
        factor=bucket_factor(objective, weight, members=len(mask), tokens=own, total_tokens=tokens),
        inputs=inputs,
        log_probs=log_probs,
        entropy=scored.entropy,
        tokens=own,
        kl_old=float((torch.expm1(drift) - drift).sum()),
        log_rho=log_rho,
    )
