"""A scored micro-batch laid out as TRL's loss takes it: one bucket for each weight that its units have.

Changes from GRPO/TRL:

- Advantages are per token, because rho = pi_0/mu multiplies them.
- TRL has no place for weights, so units of equal weight are one call of its loss, which the trainer multiplies.
- A line is what one unit trains on: a call's completion, or the completions of all calls of a rollout, one behind the
  other. Lines take their tokens from the scored rows; copies take the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from stages.training.baselines import Baselines
from stages.training.behaviour import Origin
from stages.training.members import Members, Row
from stages.training.objective import Objective, Shares, bucket_factor
from stages.training.ratio import rho_of
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
    """Some of a step's units, and the distinct rows that they point to."""

    first: Indices
    """(u,) each unit's first member."""
    weight: npt.NDArray[np.float64]
    """(u,) shares of the loss."""
    rows: Indices
    """(R,) indices of rows."""
    lines: list[Indices]
    """Per unit, its rows among `rows`, in order."""

    @classmethod
    def of(cls, members: Members, batch: Batch, part: list[int]) -> MicroBatch:
        """From positions in `batch.members`: whole units."""
        chosen = np.array(batch.members, np.intp)[part]
        rows, line = np.unique(members.row[chosen], return_inverse=True)
        _, first, unit = np.unique(members.unit[chosen], return_index=True, return_inverse=True)
        order = np.argsort(unit, kind="stable")
        lines = np.split(line[order], np.cumsum(np.bincount(unit))[:-1])
        return cls(chosen[first], batch.shares.weight[part][first], rows, lines)


@dataclass(frozen=True)
class Lines:
    """Where the tokens of some units come from: puts per-token values of rows, one behind the other, on lines."""

    tokens: torch.Tensor
    """(sum of lengths,) places among the rows' tokens."""
    mask: torch.Tensor
    """(b, T) bool; T is the longest line."""

    @classmethod
    def of(cls, lengths: Indices, lines: list[Indices], device: torch.device) -> Lines:
        """Lines of b units, from the (R,) lengths of rows and the rows of each unit."""
        end = np.cumsum(lengths)
        parts = [np.concatenate([np.arange(end[row] - lengths[row], end[row]) for row in line]) for line in lines]
        widths = np.array([len(part) for part in parts])
        mask = np.arange(widths.max())[None, :] < widths[:, None]
        return cls(torch.from_numpy(np.concatenate(parts)).to(device), torch.from_numpy(mask).to(device))

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        """(b, T) of values (N,), zero behind each line's end."""
        return flat.new_zeros(self.mask.shape).masked_scatter(self.mask, flat[self.tokens])


@dataclass(frozen=True)
class Bucket:
    """Units of one micro-batch that have equal weight, ready for TRL's loss."""

    factor: float
    inputs: dict[str, torch.Tensor]
    log_probs: torch.Tensor
    entropy: torch.Tensor
    tokens: float
    drift: torch.Tensor
    """(b, T) log pi_theta/pi_0, zero behind each line's end."""
    rho: torch.Tensor | None
    """(b, T) what multiplies the advantages; None where nothing is corrected."""
    cut: torch.Tensor | None
    """(b, T) bool: tokens whose rho lay above its bound; None where nothing is corrected."""
    far: torch.Tensor
    """(b,) log of the whole line's pi_0/mu, both scored by the trainer (mu as logged where its adapter is not there).
    NaN where mu is not known, or nothing is corrected."""
    mismatch: torch.Tensor
    """(b, T) log of the trainer's over the engine's value of one policy; NaN where only one of them is known."""
    age: torch.Tensor
    """(b,) of the policy that sampled the line; NaN for one that is not of the run."""


def lay_out(
    members: Members, micro: MicroBatch, scored: Scored, baselines: Baselines, objective: Objective, *, tokens: float
) -> list[Bucket]:
    """The buckets of a micro-batch; `tokens` are the weighted completion tokens of the whole step."""
    fixed = _fixed([members.rows[index] for index in micro.rows], micro.rows, scored, baselines, objective)
    lengths = np.array([len(members.rows[index].completion) for index in micro.rows], np.intp)
    buckets = []
    for weight in np.unique(micro.weight):
        here = np.flatnonzero(micro.weight == weight)
        lines = Lines.of(lengths, [micro.lines[unit] for unit in here], scored.mask.device)
        advantage = torch.from_numpy(members.advantage[micro.first[here]])
        values = {name: lines(value) for name, value in fixed.items()}
        own = Scored(lines(scored.log_probs[scored.mask]), lines(scored.entropy[scored.mask]), lines.mask, 0)
        buckets.append(_bucket(float(weight), advantage, own, values, objective, tokens=tokens))
    return buckets


def _fixed(
    rows: list[Row], indices: Indices, scored: Scored, baselines: Baselines, objective: Objective
) -> dict[str, torch.Tensor]:
    """Per token of the micro-batch's rows, one behind the other: ids and log-probabilities that have no gradient."""
    current = scored.log_probs.detach()[scored.mask]

    def join(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(values).to(scored.mask.device)

    old, reference = baselines.old, baselines.reference
    fixed = {"completion_ids": join([torch.from_numpy(row.completion) for row in rows])}
    fixed["old"] = current if old is None else join([old[index] for index in indices])
    if reference is not None:
        fixed["reference"] = join([reference[index] for index in indices])
    elif baselines.reference_is_old:
        fixed["reference"] = fixed["old"]
    return fixed | _behaviour(rows, [baselines.origins[index] for index in indices], fixed["old"], current)


def _behaviour(
    rows: list[Row], origins: list[Origin], start: torch.Tensor, current: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Per token: pi_0, the ratio's denominator, mu of three kinds, and the age of what sampled the row; NaN: not known.

    Args:
        rows: R rows, N completion tokens.
        origins: of each row.
        start: (N,) log-probabilities under pi_0.
        current: (N,) under theta.
    """
    lengths = [len(row.completion) for row in rows]
    logged, trained = torch.full_like(start, torch.nan), torch.full_like(start, torch.nan)
    old, age = start.clone(), torch.full_like(start, torch.nan)
    mu = start.clone()
    for row, origin, part in zip(rows, origins, _slices(lengths), strict=True):
        if origin.age is not None:
            age[part] = origin.age
        if origin.kind == "likelihood":
            old[part] = mu[part] = current[part]  # a ratio of 1 by construction: the gradient is A grad log pi
            continue
        if row.sampling is not None and row.as_sampled:
            logged[part] = torch.from_numpy(row.sampling).to(start)
        if origin.age == 0:
            trained[part] = start[part]
        elif origin.scored is not None:
            trained[part] = origin.scored.to(start)
        if origin.kind in ("logged", "scored"):
            mu[part] = logged[part] if origin.kind == "logged" else trained[part]
    nearest = torch.where(trained.isnan(), logged, trained)
    return {"start": start, "old": old, "mu": mu, "far": start - nearest, "mismatch": trained - logged, "age": age}


def _slices(lengths: list[int]) -> list[slice]:
    ends = np.cumsum(lengths).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def _bucket(
    weight: float,
    advantage: torch.Tensor,
    scored: Scored,
    fixed: dict[str, torch.Tensor],
    objective: Objective,
    *,
    tokens: float,
) -> Bucket:
    """TRL's inputs for b units of equal weight; all tensors are of their lines, (b, T)."""
    mask, log_probs, old = scored.mask, scored.log_probs, fixed["old"]
    advantages = advantage.to(log_probs)[:, None].expand_as(log_probs)
    rho, cut = (None, None) if objective.rho == "none" else rho_of(old, fixed["mu"], mask, objective)
    if rho is not None:
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
    own, own_ages = float(mask.sum()), fixed["age"][:, 0]
    return Bucket(
        factor=bucket_factor(objective, weight, units=len(mask), tokens=own, total_tokens=tokens),
        inputs=inputs,
        log_probs=log_probs,
        entropy=scored.entropy,
        tokens=own,
        drift=(log_probs.detach() - fixed["start"]).masked_fill(~mask, 0.0),
        rho=rho,
        cut=cut,
        far=fixed["far"].masked_fill(~mask, 0.0).sum(-1) if rho is not None else torch.full_like(own_ages, torch.nan),
        mismatch=fixed["mismatch"].masked_fill(~mask, torch.nan),
        age=own_ages,
    )
