"""What an exported folder gives, computed by the libraries of others alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stages.engines.interface import Adapter, Engine, Request, Result, Sampling
from stages.engines.models import BaseModel

PROMPTS = [tuple(range(5, 5 + length)) for length in (3, 9, 17)]
DRAWN = Sampling(max_new_tokens=12)


def with_peft(base: Path, folder: Path) -> Any:
    """As the card says."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, folder).eval()


def alone(folder: Path) -> Any:
    """Merged weights, as the card says."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """(len(ids), vocabulary)."""
    found: torch.Tensor = model(torch.tensor([list(ids)])).logits[0]
    return found


def drawn(engine: Engine, adapter: Adapter | None) -> list[Result]:
    """What an engine samples and how likely it says that was."""
    return engine.generate([Request(prompt, DRAWN, seed, adapter) for seed, prompt in enumerate(PROMPTS)])


def worst_difference(model: Any, results: Sequence[Result]) -> float:
    """The largest difference of a sampled token's log-probability between an engine and a model, in nats."""
    worst = 0.0
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.completion_ids
        assert result.logprobs
        own = logits(model, [*prompt, *result.completion_ids])[len(prompt) - 1 : -1].log_softmax(-1)
        told = own.gather(1, torch.tensor(result.completion_ids)[:, None])[:, 0]
        worst = max(worst, float((told - torch.tensor(result.logprobs)).abs().max()))
    return worst


def model_of(folder: Path) -> BaseModel:
    """A model folder as a base of ours."""
    from stages.engines.models import resolve_base

    return resolve_base(str(folder.absolute()), folder, folder.parent / "cache")
