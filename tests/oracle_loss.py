"""The mmGRPO loss by hand: row by row, unpadded, in float64, with nothing of the trainer or of TRL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass
class Example:
    """One call of a group member: the whole member, or one of the calls of its rollout."""

    prompt: Sequence[int]
    completion: Sequence[int]
    sampling: Sequence[float]
    advantage: float
    temperature: float = 1.0
    weight: float = 1.0
    """Of the member."""
    module: str = "m"
    member: str | None = None
    """Calls of one name are one member, a trajectory; None: this call is a member of its own."""
    old: Tensor | None = None
    reference: Tensor | None = None


def log_probs(model: Any, row: Example) -> Tensor:
    """Log-probabilities of the completion, from one unpadded forward pass with full logits."""
    ids = torch.tensor([*row.prompt, *row.completion])[None]
    logits = model(input_ids=ids, use_cache=False).logits[0].double() / row.temperature
    first = len(row.prompt) - 1
    picked = torch.log_softmax(logits[first:-1], dim=-1)
    return picked[torch.arange(len(row.completion)), torch.tensor(row.completion)]


def ratios(current: list[Tensor], old: list[Tensor], **o: Any) -> list[Tensor]:
    """w = pi_theta/pi_0 of each token, or of the member: the geometric mean over the tokens of all its calls."""
    if o.get("ratio_level") != "sequence":
        return [torch.exp(now - then) for now, then in zip(current, old, strict=True)]
    total = torch.stack([(now - then).sum() for now, then in zip(current, old, strict=True)]).sum()
    length = sum(len(now) for now in current)
    return [torch.exp(total / length).expand_as(now) for now in current]


def log_rho_of(old: list[Tensor], rows: Sequence[Example]) -> Tensor:
    """log pi_0/mu of the whole member."""
    logged = [torch.tensor(row.sampling, dtype=torch.float64) for row in rows]
    return torch.stack([(then - mu).sum() for then, mu in zip(old, logged, strict=True)]).sum()


def rhos(old: list[Tensor], rows: Sequence[Example], **o: Any) -> list[Tensor]:
    """rho = pi_0/mu of each token, or of the member, after its bound."""
    if o["rho"] == "none":
        return [torch.ones_like(then) for then in old]
    if o.get("rho_level") == "sequence":
        found = [log_rho_of(old, rows).exp().expand_as(then) for then in old]
    else:
        pairs = zip(old, rows, strict=True)
        found = [torch.exp(then - torch.tensor(row.sampling, dtype=torch.float64)) for then, row in pairs]
    if o["rho"] == "truncate":
        return [rho.clamp(max=o["rho_max"]) for rho in found]
    return [torch.where(rho > o["rho_max"], 0.0, rho) for rho in found]


def policy_terms(w: Tensor, current: Tensor, a: float, **o: Any) -> Tensor:
    """What is minimised of each token, before rho and KL: each loss type's documented formula."""
    low, high = o.get("epsilon_low", 0.2), o.get("epsilon_high", 0.2)
    if o["loss"] == "cispo":
        return -torch.clamp(w, max=1 + high).detach() * a * current
    if o["loss"] == "sapo":
        t = 1.0 if a > 0 else 1.05
        return -torch.sigmoid(t * (w - 1)) * 4 / t * a
    return -torch.minimum(w * a, torch.clamp(w, 1 - low, 1 + high) * a)


def member_terms(current: list[Tensor], rows: Sequence[Example], **o: Any) -> list[Tensor]:
    """Per call, (T,) what is minimised: -rho min(w A, clip(w) A) + beta KL, and its like."""
    old = [now.detach() if row.old is None else row.old for now, row in zip(current, rows, strict=True)]
    terms = []
    for now, row, w, rho in zip(current, rows, ratios(current, old, **o), rhos(old, rows, **o), strict=True):
        term = rho.detach() * policy_terms(w, now, row.advantage, **o)
        if o["beta"]:
            reference = now.detach() if row.reference is None else row.reference
            d = reference - now
            term = term + o["beta"] * (torch.exp(d) - d - 1)
        terms.append(term)
    return terms


def members_of(rows: Sequence[Example]) -> list[list[Example]]:
    """The calls of each member, in order."""
    members: dict[Any, list[Example]] = {}
    for index, row in enumerate(rows):
        members.setdefault(index if row.member is None else row.member, []).append(row)
    return list(members.values())


def step_loss(model: Any, rows: Sequence[Example], **o: Any) -> Tensor:
    """The loss of one optimizer step over all its members."""
    members = members_of(rows)
    sums, lengths = [], []
    for calls in members:
        terms = member_terms([log_probs(model, call) for call in calls], calls, **o)
        sums.append(torch.stack([term.sum() for term in terms]).sum())
        lengths.append(sum(len(term) for term in terms))
    weights = [calls[0].weight for calls in members]
    if o.get("balance") == "module":
        of = [calls[0].module for calls in members]
        total = {m: sum(w for w, name in zip(weights, of, strict=True) if name == m) for m in of}
        weights = [w / total[name] / len(total) for w, name in zip(weights, of, strict=True)]
    zero = torch.zeros((), dtype=torch.float64)
    if o["loss"] in ("grpo", "sapo") or o.get("trajectory"):
        means = (w * s / n for w, s, n in zip(weights, sums, lengths, strict=True))
        return sum(means, zero) / sum(weights)
    summed = sum((w * s for w, s in zip(weights, sums, strict=True)), zero)
    if o["loss"] == "dr_grpo":
        return summed / sum(weights) / o["length"]
    return summed / sum(w * n for w, n in zip(weights, lengths, strict=True))  # bnpo, dapo, cispo
