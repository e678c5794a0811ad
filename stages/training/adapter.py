"""The LoRA adapter: made, continued, and written so that equal weights give equal bytes.

Change from PEFT's own saving: lists are sorted and neither paths nor versions are written.
"""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from schemas.errors import DataError, RecipeError
from schemas.recipe_training import AdapterSection
from stages.engines.adapters import without_folder

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

WEIGHTS, CONFIG, BASE = "adapter_model.safetensors", "adapter_config.json", "base.json"
_LEFT_OUT = ("peft_version", "revision", "auto_mapping", "runtime_config")

_SHAPE = (
    *("r", "lora_alpha", "target_modules", "use_rslora", "use_dora"),
    *("rank_pattern", "alpha_pattern", "layers_to_transform"),
)

Tensors = dict[str, torch.Tensor]


def lora_config(section: AdapterSection) -> LoraConfig:
    """PEFT's configuration of the recipe's adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=sorted(section.targets),
        use_rslora=section.use_rslora,
        use_dora=section.use_dora,
        init_lora_weights=True if section.init_lora_weights == "default" else section.init_lora_weights,
        rank_pattern=dict(section.rank_pattern),
        alpha_pattern=dict(section.alpha_pattern),
        layers_to_transform=None if section.layers is None else sorted(set(section.layers)),
        bias="none",  # biases belong to the base, which stays as it is
        task_type="CAUSAL_LM",
    )


def attach(model: PreTrainedModel, section: AdapterSection, seed: int, previous: Path | None) -> PeftModel:
    """Put a trainable LoRA on a model: the previous one continued, or a fresh one that changes nothing yet.

    LoRA weights are float32 whatever the base holds, so that small updates are not lost to rounding.

    Args:
        model: the base.
        section: the recipe's adapter.
        seed: what a fresh one is drawn from.
        previous: PEFT folder of the one to continue.

    Raises:
        RecipeError: when the model has no linear layer of a name in `adapter.targets`, no layer of an index in
            `adapter.layers`, or when a pattern fits none of them.
        DataError: when the previous adapter has another shape than the recipe's.
    """
    from peft import get_peft_model

    _check_targets(model, section)
    config = lora_config(section)
    torch.manual_seed(seed)
    wrapped: PeftModel = get_peft_model(model, config, autocast_adapter_dtype=True)
    _check_patterns(wrapped, section)
    if previous is not None:
        _check_same(previous / CONFIG, config)
        put(wrapped, load_file(previous / WEIGHTS), str(previous / WEIGHTS))
    return wrapped


def _check_targets(model: PreTrainedModel, section: AdapterSection) -> None:
    """PEFT passes over a target that does not exist as long as another one does."""
    linear = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    unknown = sorted(set(section.targets) - linear)
    if unknown:
        raise RecipeError(
            f"adapter.targets: the model has no linear layer {', '.join(unknown)}; it has {sorted(linear)}"
        )
    count = model.config.get_text_config().num_hidden_layers
    beyond = [index for index in section.layers or () if index >= count]
    if beyond or section.layers == ():
        raise RecipeError(f"adapter.layers = {list(section.layers or ())}: the model has layers 0 to {count - 1}")


def _check_patterns(model: PeftModel, section: AdapterSection) -> None:
    """PEFT passes over a pattern that fits nothing."""
    from peft.utils.other import get_pattern_key

    paths = {name.rpartition(".lora_A")[0] for name, _ in model.named_modules() if name.endswith(".lora_A")}
    for field in ("rank_pattern", "alpha_pattern"):
        for pattern in getattr(section, field):
            if not any(get_pattern_key([pattern], path) == pattern for path in paths):
                raise RecipeError(f"adapter.{field}: '{pattern}' fits no linear layer that gets LoRA, as {min(paths)}")


def _check_same(file: Path, config: LoraConfig) -> None:
    before, now = json.loads(file.read_text()), _plain(config)
    for key in _SHAPE:
        if _sorted(before.get(key)) != _sorted(now.get(key)):
            raise DataError(
                f"the previous adapter {file} has {key} = {before.get(key)}, the recipe asks for {now.get(key)}: an "
                "adapter keeps its shape over a run; start a new run for another one"
            )


def weights(model: PeftModel) -> Tensors:
    """The adapter's tensors by their name in a PEFT file."""
    from peft import get_peft_model_state_dict

    # Adapters have no embedding layers, and to look for them PEFT would ask the hub for the base's config.
    state: Tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: state[name].detach().to("cpu").contiguous() for name in sorted(state)}


def put(model: PeftModel, tensors: Tensors, where: str) -> None:
    """Set the adapter's tensors.

    Raises:
        DataError: when names or shapes differ from the model's.
    """
    from peft import set_peft_model_state_dict

    have = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    want = {name: tuple(tensor.shape) for name, tensor in weights(model).items()}
    if have != want:
        wrong = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
        raise DataError(f"{where}: {len(wrong)} tensors do not fit the adapter, for example {wrong[0]}")
    set_peft_model_state_dict(model, tensors)


def write(model: PeftModel, folder: Path, *, base_name: str, base_digest: str) -> None:
    """Write a PEFT folder that `PeftModel.from_pretrained` and vLLM load, and `base.json` with the base's digest.

    Args:
        model: holds the adapter, under PEFT's default name.
        folder: to write to; exists.
        base_name: as the base artifact names it; of a folder only the last part is written.
        base_digest: what `check_adapter` compares.
    """
    save_file(weights(model), folder / WEIGHTS, metadata={"format": "pt"})
    config = _plain(model.peft_config["default"])
    config |= {"base_model_name_or_path": without_folder(base_name), "inference_mode": True}
    _write_json(folder / CONFIG, config)
    _write_json(folder / BASE, {"base": base_digest})


def _plain(config: LoraConfig) -> dict[str, Any]:
    return {key: _sorted(value) for key, value in config.to_dict().items() if key not in _LEFT_OUT}


def _sorted(value: Any) -> Any:
    """JSON values: sets and lists of names sorted, enums by value."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset, list, tuple)):
        return sorted(map(_sorted, value), key=str)
    if isinstance(value, dict):
        return {str(key): _sorted(item) for key, item in value.items()}
    return value


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
