"""What happens to data of each age: how far the policy has moved from the one that sampled them.

Age counts the policies of the run that are newer than the one that sampled a member: 0 is pi_0. Sums are kept as plain
numbers by name, so that they add up over micro-batches and processes.
"""

from __future__ import annotations

from typing import Any

import torch

from schemas.training import RATIO_EDGES
from stages.training.buckets import Bucket
from stages.training.objective import Objective
from stages.training.ratio import effective_share

UNKNOWN = "unknown"
_EDGES = torch.tensor(RATIO_EDGES, dtype=torch.float64).log()


def count_tokens(sums: dict[str, float], bucket: Bucket, objective: Objective) -> None:
    """Add a bucket's tokens to the sums of their ages, by `<age> <what>`."""
    mask = bucket.inputs["completion_mask"].bool()
    ages = bucket.age.nan_to_num(-1.0)
    ratio = bucket.log_probs.detach() - bucket.inputs["old_per_token_logps"]
    cut = clipped(ratio, mask, bucket.inputs["advantages"], objective)
    for age in sorted(set(ages.tolist())):
        here = mask & (ages == age)[:, None]
        drift, name = bucket.drift[here].double(), UNKNOWN if age < 0 else str(int(age))
        found = {
            "members": float((ages == age).sum()),
            "tokens": float(len(drift)),
            "k1": float(-drift.sum()),
            "k3": float((torch.expm1(drift) - drift).sum()),
            "entropy": float(bucket.entropy[here].double().sum()),
        }
        if cut is not None:
            found["clipped"] = float(cut[here].sum())
        found |= _histogram("ratio", drift)
        if bucket.rho is not None:
            found |= _histogram("rho", bucket.rho[here].double().log())
        for what, value in found.items():
            sums[f"{name} {what}"] = sums.get(f"{name} {what}", 0.0) + value


def clipped(
    ratio: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor, objective: Objective
) -> torch.Tensor | None:
    """(b, T) tokens whose ratio pi_theta/pi_0 the loss clips, by TRL's rule; None for a loss that clips nothing.

    Args:
        ratio: (b, T) its logarithm.
        mask: (b, T) bool.
        advantages: (b, T), rho in them.
        objective: the loss, its level and bounds.
    """
    if objective.loss_type == "sapo":
        return None
    if objective.ratio_level == "sequence":
        ratio = (ratio * mask).sum(-1, keepdim=True).div(mask.sum(-1, keepdim=True)).expand_as(ratio)
    weight = ratio.exp()
    if objective.loss_type == "cispo":
        return (weight > objective.epsilon_high) & (advantages > 0) & mask
    low = (weight < 1 - objective.epsilon_low) & (advantages < 0)
    high = (weight > 1 + objective.epsilon_high) & (advantages > 0)
    return (low | high) & mask


def _histogram(what: str, log_ratio: torch.Tensor) -> dict[str, float]:
    bins = torch.bucketize(log_ratio.cpu(), _EDGES, right=True).bincount(minlength=len(RATIO_EDGES) + 1)
    return {f"{what} {index}": float(count) for index, count in enumerate(bins.tolist())}


def age_rows(sums: dict[str, float], units: torch.Tensor) -> list[dict[str, Any]]:
    """Rows of the ages table for one step, the youngest policy first, unknown ones last.

    Args:
        sums: from `count_tokens`.
        units: (n, 3) age, log pi_0/mu and log of the engine's mismatch of each unit.
    """
    names = sorted({name.split(" ")[0] for name in sums}, key=lambda name: (name == UNKNOWN, name.zfill(9)))
    return [_row(name, sums, units) for name in names]


def _row(name: str, sums: dict[str, float], units: torch.Tensor) -> dict[str, Any]:
    age = None if name == UNKNOWN else int(name)
    mine = units[units[:, 0].isnan() if age is None else units[:, 0] == age]
    far = mine[:, 1][~mine[:, 1].isnan()]
    tokens = sums[f"{name} tokens"]

    def mean(what: str) -> float | None:
        return sums[f"{name} {what}"] / tokens if f"{name} {what}" in sums else None

    def histogram(what: str) -> list[int] | None:
        if f"{name} {what} 0" not in sums:
            return None
        return [int(sums[f"{name} {what} {index}"]) for index in range(len(RATIO_EDGES) + 1)]

    return {
        "age": age,
        "members": int(sums[f"{name} members"]),
        "completion_tokens": int(tokens),
        "ess": effective_share(far) if len(far) else None,
        "clip_share": mean("clipped"),
        "kl_k1": mean("k1"),
        "kl_k3": mean("k3"),
        "entropy": mean("entropy"),
        "ratio_histogram": histogram("ratio"),
        "rho_histogram": histogram("rho"),
    }
