"""Rows: completions in the making, one for each request that an engine serves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stages.engines.interface import Request, Sampling


@dataclass
class Row:
    """One completion in the making."""

    index: int
    """Place of its request in the call."""
    prompt: tuple[int, ...]
    sampling: Sampling
    limit: int
    """Most new tokens: the request's own limit, or what the context leaves."""
    uniforms: np.ndarray
    """One number in [0, 1) for each token that may be drawn."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    @property
    def uniform(self) -> float:
        """The number that the next token is drawn with."""
        return float(self.uniforms[len(self.ids)])

    def take(self, token: int, logprob: float, eos: Collection[int]) -> None:
        """Append a drawn token; the row is finished at an eos token or at its limit."""
        assert self.finish is None
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in eos:
            self.finish = "stop"
        elif len(self.ids) == self.limit:
            self.finish = "length"


def make_row(index: int, request: Request, context: int) -> Row | None:
    """The row of a request; None when its prompt leaves no room for a completion within `context` tokens."""
    assert request.prompt_ids, "an empty prompt has no next token"
    assert request.sampling.max_new_tokens > 0
    limit = min(request.sampling.max_new_tokens, context - len(request.prompt_ids))
    if limit < 1:
        return None
    return Row(index, request.prompt_ids, request.sampling, limit, uniform_stream(request.seed, limit))


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """`length` doubles in [0, 1) from Philox keyed by `seed`: the same on every machine, in every batch."""
    raw = np.random.Philox(key=seed).random_raw(length)
    uniforms: np.ndarray = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniforms
