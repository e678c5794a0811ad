"""KL(policy || base) and the policy's entropy over the whole vocabulary, at every token of some completions.

Exact rather than estimated from the sampled tokens: evaluation is greedy as a rule, and then they are no draws that an
estimate could be made of. Never negative, and without an estimate's noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from schemas.errors import StageError
from stages.training.cutting import split

if TYPE_CHECKING:
    from stages.training.members import Row
    from stages.training.scorer import Scorer, States

_CHUNK_ELEMENTS = 1 << 24
"""Logits of one policy held at once (64 MiB of float32)."""


@dataclass(frozen=True)
class Measure:
    """Means over the tokens of one completion, in nats."""

    kl: float
    entropy: float


def measure(
    scorer: Scorer, rows: Sequence[Row], budget: int, told: Callable[[int], None], *, is_base: bool
) -> tuple[list[Measure], int]:
    """Measure rows with the weights as they are, in evaluation mode.

    Args:
        scorer: the policy's; its adapter is switched off for the base.
        rows: to measure.
        budget: computed tokens of a micro-batch.
        told: how many rows are done.
        is_base: whether the adapter is to be left off, so that the policy is the base: its KL is 0.

    Returns:
        One measure a row, and the number of token positions that were computed.

    Raises:
        StageError: naming rows whose figures are not finite.
    """
    scorer.model.eval()
    found: dict[int, Measure] = {}
    forward = 0
    with torch.no_grad():
        for batch in split([[row] for row in rows], budget, packed=scorer.packed):
            chosen = [rows[index] for index in batch]
            with scorer.model.disable_adapter():
                base = scorer.states(chosen)
            own = base if is_base else scorer.states(chosen)
            forward += base.forward_tokens + (0 if is_base else own.forward_tokens)
            found |= zip(batch, _means(scorer, own, base, chosen), strict=True)
            told(len(found))
    measures = [found[index] for index in range(len(rows))]
    _check_finite(measures, rows)
    return measures, forward


def _means(scorer: Scorer, own: States, base: States, rows: Sequence[Row]) -> list[Measure]:
    kl, entropy = divergence(own.hidden, base.hidden, scorer.head, own.temperature, dtype=scorer.head_dtype)
    lengths = [len(row.completion) for row in rows]
    parts = zip(*(torch.split(values[own.position].double(), lengths) for values in (kl, entropy)), strict=True)
    return [Measure(float(one.mean()), float(other.mean())) for one, other in parts]


def divergence(
    own: torch.Tensor, base: torch.Tensor, head: torch.nn.Linear, temperature: torch.Tensor, *, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(own || base) and the entropy of own, (S,) nats each, at positions with hidden states `own` and `base`, (S, D).

    Args:
        own: of the policy. May be the very tensor of the base.
        base: of the base.
        head: the output embedding, which both share.
        temperature: (S,) what logits are divided by.
        dtype: of the products with the head.
    """
    weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
    kl = torch.zeros(len(own), dtype=torch.float32, device=own.device)
    entropy = torch.empty_like(kl)
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[0])

    def logs(hidden: torch.Tensor, part: slice) -> torch.Tensor:
        logits = torch.nn.functional.linear(hidden[part].to(dtype), weight, bias).float()
        return torch.log_softmax(logits / temperature[part, None].float(), dim=-1)

    with torch.autocast(own.device.type, enabled=False):
        for start in range(0, len(own), rows):
            part = slice(start, start + rows)
            mine = logs(own, part)
            shares = mine.exp()
            entropy[part] = -torch.linalg.vecdot(shares, mine)
            if own is not base:
                kl[part] = torch.linalg.vecdot(shares, mine - logs(base, part))
    return kl.clamp_min(0), entropy.clamp_min(0)  # rounding alone goes below


def _check_finite(measures: Sequence[Measure], rows: Sequence[Row]) -> None:
    limit = torch.finfo(torch.float32).max
    wrong = [row.name for row, found in zip(rows, measures, strict=True) if not found.kl + found.entropy < limit]
    if wrong:
        raise StageError(
            f"the model gives probabilities that are not finite for {len(wrong)} completions, for example "
            f"({'), ('.join(wrong[:3])}): check the base model and the adapter, or lower train.learning_rate"
        )
