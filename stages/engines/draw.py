"""Drawing tokens: the processed distribution (temperature, then top_k, then top_p) and its inverse CDF.

Each row is drawn with a number of its own, so that a completion does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stages.engines.interface import Sampling

_BLOCK = 256
_CACHED_ROWS = 8
_NUCLEUS = 1024
"""Tokens looked at first for top_p; the whole vocabulary is sorted only for rows whose nucleus is larger."""


def draw(
    logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one token for each row.

    Args:
        logits: (rows, vocabulary), any float dtype.
        samplings: one for each row.
        uniforms: one number in [0, 1) for each row; unused where the temperature is 0.

    Returns:
        Token ids, and their log-probabilities: under the distribution drawn from, or at temperature 1 for greedy rows.
    """
    kinds: dict[tuple[float, float | None, int | None], list[int]] = {}
    for row, sampling in enumerate(samplings):
        kinds.setdefault((sampling.temperature, sampling.top_p, sampling.top_k), []).append(row)
    tokens, logprobs = [0] * len(samplings), [0.0] * len(samplings)
    for (temperature, top_p, top_k), rows in kinds.items():
        part = logits if len(kinds) == 1 else logits[rows]
        drawn = _draw_alike(part, temperature, top_p, top_k, [uniforms[row] for row in rows])
        for row, token, logprob in zip(rows, *drawn, strict=True):
            tokens[row], logprobs[row] = token, logprob
    return tokens, logprobs


def _draw_alike(
    logits: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None, uniforms: list[float]
) -> tuple[list[int], list[float]]:
    """Some rows at a time, so that what is read over and over stays in the processor's cache."""
    size = _CACHED_ROWS if logits.device.type == "cpu" else len(uniforms)
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    parts = [
        _draw_part(logits[start : start + size], temperature, top_p, top_k, numbers[start : start + size])
        for start in range(0, len(uniforms), size)
    ]
    tokens, logprobs = (torch.cat(column).squeeze(-1).tolist() for column in zip(*parts, strict=True))
    return tokens, logprobs


def _draw_part(
    logits: torch.Tensor, temperature: float, top_p: float | None, top_k: int | None, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, 1) token ids and their log-probabilities."""
    scores = logits.to(torch.float32, copy=True)
    if temperature == 0:
        tokens = scores.argmax(-1, keepdim=True)
        return tokens, scores.gather(-1, tokens) - scores.logsumexp(-1, keepdim=True)
    scores = _processed(scores.div_(temperature), top_p, top_k)
    scores -= scores.amax(-1, keepdim=True)
    weights = scores.exp()
    tokens = inverse_cdf(weights, numbers)
    return tokens, scores.gather(-1, tokens) - weights.sum(-1, keepdim=True).log()


def _processed(scores: torch.Tensor, top_p: float | None, top_k: int | None) -> torch.Tensor:
    """Scores with the tokens that cannot be drawn at -inf. Ties with the last token kept are kept."""
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p is not None and top_p < 1:
        scores = scores.masked_fill(scores < _nucleus_least(scores, top_p), -torch.inf)
    return scores


def _nucleus_least(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """(rows, 1): the score of the last token of the smallest set whose probability reaches `top_p`."""
    normalizer = scores.logsumexp(-1, keepdim=True)
    size = min(_NUCLEUS, scores.shape[-1])
    least, reached = _least_of(scores.topk(size, dim=-1).values, normalizer, top_p)
    if size < scores.shape[-1] and not reached.all():
        rows = (~reached).nonzero().squeeze(-1)
        least[rows] = _least_of(scores[rows].sort(-1, descending=True).values, normalizer[rows], top_p)[0]
    return least


def _least_of(falling: torch.Tensor, normalizer: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    mass = (falling - normalizer).double().exp().cumsum(-1)
    last = (mass < top_p).sum(-1, keepdim=True)
    return falling.gather(-1, last.clamp(max=falling.shape[-1] - 1)), last.squeeze(-1) < falling.shape[-1]


def inverse_cdf(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The tokens at which the running sum of `weights` first passes `numbers` times their total.

    The sum is taken over blocks, then within one block, in double precision: a running sum over a whole vocabulary is
    slow on CPUs, and in single precision loses the rare tokens at its end.

    Args:
        weights: (rows, vocabulary), not negative, each row with a positive sum.
        numbers: (rows, 1) in [0, 1), double.

    Returns:
        (rows, 1) token ids, never one of weight 0.
    """
    rows, vocabulary = weights.shape
    if vocabulary % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -vocabulary % _BLOCK))
    weights = weights.view(rows, -1, _BLOCK)
    sums = weights.sum(-1)
    running = sums.double().cumsum(-1)
    target = numbers * running[:, -1:]
    block = _first_above(running, target, sums > 0)
    before = torch.where(block > 0, running.gather(-1, (block - 1).clamp(min=0)), 0.0)
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1)
    return block * _BLOCK + _first_above(inside.double().cumsum(-1), target - before, inside > 0)


def _first_above(running: torch.Tensor, target: torch.Tensor, possible: torch.Tensor) -> torch.Tensor:
    """(rows, 1): the first place where `running` exceeds `target`; where rounding leaves none, the last possible."""
    places = torch.arange(running.shape[-1], device=running.device)
    last = torch.where(possible, places, -1).amax(-1, keepdim=True)
    first = torch.where((running > target) & possible, places, running.shape[-1]).amin(-1, keepdim=True)
    return torch.minimum(first, last)
