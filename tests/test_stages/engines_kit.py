"""Tiny models, adapters and requests for the engine tests."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch

from stages.engines.interface import Adapter, Request, Result, Sampling
from stages.engines.models import BaseModel, adapter_digest, load_model, resolve_base

LETTERS = "abcdefgh "
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny(cache: Path, seed: int = 0) -> BaseModel:
    return resolve_base(f"tiny-random:{seed}", cache, cache)


def tiny_like(base: BaseModel, folder: Path, config: Any) -> BaseModel:
    """A random model of another architecture with the tiny model's tokenizer, sharp enough to be worth sampling."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(base.path / name, folder / name)
    return resolve_base(str(folder), folder, folder.parent / "cache")


def small_config(kind: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024}
    tokens = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 2, "tie_word_embeddings": False}
    return AutoConfig.for_model(kind, **(sizes | heads | tokens | changes))


def make_adapter(base: BaseModel, folder: Path, seed: int, scale: float = 0.3, **options: Any) -> Adapter:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    shape: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "init_lora_weights": False}
    config = LoraConfig(**(shape | options))
    model = get_peft_model(load_model(base, "float32"), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(scale)
    model.save_pretrained(folder)
    (folder / "base.json").write_text(json.dumps({"base": base.digest}))
    return Adapter(folder, adapter_digest(folder))


def chat(question: str, system: str = "Answer with one word, as short as you can.") -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def questions(count: int, seed: int = 0) -> list[str]:
    stream = random.Random(seed)
    return ["".join(stream.choice(LETTERS) for _ in range(stream.randint(1, 30))) for _ in range(count)]


def requests_for(
    prompts: list[tuple[int, ...]], samples: int, sampling: Sampling, adapter: Adapter | None = None
) -> list[Request]:
    return [
        Request(prompt, sampling, 1000 * place + sample, adapter)
        for place, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


@torch.no_grad()
def full_logprobs(model: Any, request: Request, result: Result) -> torch.Tensor:
    """(completion tokens, vocabulary) log-probabilities at temperature 1, by one plain forward pass."""
    ids = torch.tensor([request.prompt_ids + result.completion_ids])
    logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
    return logits.float().log_softmax(-1)


def of_tokens(logprobs: torch.Tensor, result: Result) -> torch.Tensor:
    return logprobs[range(len(result.completion_ids)), list(result.completion_ids)]
