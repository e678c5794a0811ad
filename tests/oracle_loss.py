"""The mmGRPO loss by hand: row by row, unpadded, in float64, with nothing of the trainer or of TRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Example:
    """One group member."""

    prompt: Sequence[int]
    completion: Sequence[int]
    sampling: Sequence[float]
    advantage: float
    temperature: float = 1.0
    weight: float = 1.0
    module: str = "m"
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None


def log_probs(model: Any, row: Example) -> torch.Tensor:
    """Log-probabilities of the completion, from one unpadded forward pass with full logits."""
    ids = torch.tensor([*row.prompt, *row.completion])[None]
    logits = model(input_ids=ids, use_cache=False).logits[0].double() / row.temperature
    first = len(row.prompt) - 1
    picked = torch.log_softmax(logits[first:-1], dim=-1)
    return picked[torch.arange(len(row.completion)), torch.tensor(row.completion)]


def member_terms(current: torch.Tensor, row: Example, **o: Any) -> torch.Tensor:
    """(T,) per-token objective to minimise: -rho min(w A, clip(w) A) + beta KL."""
    old = current.detach() if row.old is None else row.old
    w = torch.exp(current - old)
    if o.get("ratio_level") == "sequence":
        w = torch.exp((current - old).mean()).expand_as(current)
    rho = torch.exp(old.detach() - torch.tensor(row.sampling, dtype=torch.float64))
    if o.get("rho_level") == "sequence":
        rho = rho.prod().expand_as(rho)
    if o["rho"] == "truncate":
        rho = torch.minimum(rho, torch.tensor(o["rho_max"], dtype=torch.float64))
    elif o["rho"] == "mask":
        rho = torch.where(rho > o["rho_max"], 0.0, rho)
    else:
        rho = torch.ones_like(rho)
    a = row.advantage
    low, high = o.get("epsilon_low", 0.2), o.get("epsilon_high", 0.2)
    if o["loss"] == "cispo":
        policy = -torch.clamp(w, max=1 + high).detach() * a * current
    elif o["loss"] == "sapo":
        t = 1.0 if a > 0 else 1.05
        policy = -torch.sigmoid(t * (w - 1)) * 4 / t * a
    else:
        policy = -torch.minimum(w * a, torch.clamp(w, 1 - low, 1 + high) * a)
    terms = rho.detach() * policy
    if o["beta"]:
        reference = current.detach() if row.reference is None else row.reference
        d = reference - current
        terms = terms + o["beta"] * (torch.exp(d) - d - 1)
    return terms


def step_loss(model: Any, rows: Sequence[Example], **o: Any) -> torch.Tensor:
    """The loss of one optimizer step over all its members."""
    terms = [member_terms(log_probs(model, row), row, **o) for row in rows]
    weights = [row.weight for row in rows]
    if o.get("balance") == "module":
        modules = sorted({row.module for row in rows})
        sums = {m: sum(row.weight for row in rows if row.module == m) for m in modules}
        weights = [row.weight / sums[row.module] / len(modules) for row in rows]
    total = sum(weights)
    if o["loss"] in ("grpo", "sapo"):
        return sum((w * t.mean() for w, t in zip(weights, terms, strict=True)), torch.zeros(())) / total
    summed = sum((w * t.sum() for w, t in zip(weights, terms, strict=True)), torch.zeros(()))
    if o["loss"] == "dr_grpo":
        return summed / total / o["length"]
    return summed / sum(w * len(t) for w, t in zip(weights, terms, strict=True))  # bnpo, dapo, cispo
