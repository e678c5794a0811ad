"""Requests and completions in vLLM's words."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from schemas.errors import DataError
from stages.engines.adapters import CONFIG
from stages.engines.interface import Adapter, Request

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Highest ranks that vLLM can be started for."""
LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature where a lower one is asked for."""


def parameters_of(request: Request, limit: int, eos: Collection[int]) -> SamplingParams:
    """What vLLM is asked for: `limit` new tokens at most, or the first of `eos`.

    Raises:
        ValueError: for what vLLM would sample in another way than it was asked to.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise ValueError(f"temperature {sampling.temperature}: vLLM has 0, or {LEAST_TEMPERATURE} and more")
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        top_k=0 if sampling.top_k is None else sampling.top_k,
        max_tokens=limit,
        seed=request.seed,
        stop_token_ids=sorted(eos),
        ignore_eos=True,  # those given here are all
        logprobs=0,  # of the sampled token alone
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion_of(
    output: RequestOutput, eos: Collection[int]
) -> tuple[tuple[int, ...], tuple[float, ...], Literal["stop", "length"]]:
    """Ids, log-probabilities and finish reason: "stop" also of a completion that ends by itself at its limit.

    Raises:
        RuntimeError: when vLLM ended the request for another reason.
    """
    completion = output.outputs[0]
    ids, entries, reason = tuple(completion.token_ids), completion.logprobs, completion.finish_reason
    if reason not in ("stop", "length") or entries is None:
        raise RuntimeError(f"vLLM ended the request with '{reason}'")
    logprobs = tuple(float(entry[token].logprob) for token, entry in zip(ids, entries, strict=True))
    return ids, logprobs, "stop" if ids[-1] in eos else reason


def rank_of(adapter: Adapter) -> int:
    """The step of vLLM's that holds an adapter's highest rank.

    Raises:
        DataError: when none does.
    """
    config: Mapping[str, Any] = json.loads((adapter.path / CONFIG).read_bytes())
    rank = max([config["r"], *(config.get("rank_pattern") or {}).values()])
    if rank > RANKS[-1]:
        raise DataError(f"the adapter {adapter.path} has rank {rank}; vLLM serves ranks up to {RANKS[-1]}")
    return next(step for step in RANKS if step >= rank)
