"""Base models: where a recipe's `model.base` is found, what identifies it, and how it is loaded.

A base is a Hugging Face folder with safetensors weights, a tokenizer and a chat template. Nothing is ever unpickled
and no code of a model's repository is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import digest, digest_bytes
from schemas.errors import RecipeError
from stages.engines.adapters import adapter_digest, check_adapter
from stages.engines.convert import SMOLLM2, smollm2_folder
from stages.engines.digests import chat_template, tokenizer_digest, weights_digest
from stages.engines.files import cache_folder, read_json
from stages.engines.tiny import TINY, tiny_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "BaseModel",
    "adapter_digest",
    "check_adapter",
    "eos_ids",
    "load_config",
    "load_model",
    "load_tokenizer",
    "resolve_base",
]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_WITHOUT_A_CLASS, _QWEN = frozenset({"llama", "smollm3"}), frozenset({"qwen2", "qwen3"})
"""Types of models that have no tokenizer of their own in transformers, and those that have Qwen's."""
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]


@dataclass(frozen=True)
class BaseModel:
    """A base model on disk. Digests know neither paths nor versions; `digest` is that of the other three."""

    name: str
    """As the recipe names it."""
    path: Path
    digest: str
    weights: str
    tokenizer: str
    template: str


def resolve_base(base: str, root: Path, cache: Path | None = None) -> BaseModel:
    """Find (or convert, make, download) a base model and compute its identity.

    Args:
        base: `smollm2-135m-instruct`, `tiny-random` or `tiny-random:SEED`, a folder, or a hub id
            (`owner/name` or `owner/name@revision`).
        root: the folder that a relative folder name starts from.
        cache: where converted and made models are kept; default $MMGRPO_CACHE, else the user's cache folder.

    Raises:
        RecipeError: when it cannot be had or cannot be used, with what to do next.
    """
    cache = cache_folder(cache)
    path = _find(base, root, cache)
    _refuse_unusable(path)
    weights = weights_digest(path, cache)
    tokenizer = tokenizer_digest(path)
    template = digest_bytes(chat_template(path).encode())
    whole = digest({"weights": weights, "tokenizer": tokenizer, "template": template})
    return BaseModel(base, path, whole, weights, tokenizer, template)


def _find(base: str, root: Path, cache: Path) -> Path:
    if base == SMOLLM2:
        return smollm2_folder(cache)
    if base.partition(":")[0] == TINY:
        return tiny_folder(cache, _tiny_seed(base))
    folder = (root / Path(base).expanduser()).resolve()
    if folder.is_dir():
        return folder
    if _HUB_ID.fullmatch(base):
        return _download(base)
    raise RecipeError(
        f"model.base '{base}' is neither '{SMOLLM2}', '{TINY}', a folder ({folder} does not exist) nor a hub id"
    )


def _tiny_seed(base: str) -> int:
    seed = base.partition(":")[2] or "0"
    if not (base == TINY or seed.isdecimal()) or int(seed) >= 1 << 63:
        raise RecipeError(f"model.base '{base}': expected '{TINY}' or '{TINY}:SEED' with a whole number")
    return int(seed)


def _download(base: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    name, _, revision = base.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise RecipeError(
            f"model.base '{base}' is no folder here and could not be had from the hub ({_first_line(error)}): check "
            "the name and the network, or download it on a machine with access (hf download "
            f"{name} --local-dir FOLDER) and name that folder in the recipe"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _refuse_unusable(path: Path) -> None:
    """Refuse a folder without a config and one whose architecture only its own code knows."""
    config = read_json(path / "config.json")
    if "model_type" not in config:
        raise RecipeError(f"the model folder {path} has no config.json with a model_type")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for name in ("attn_implementation", "_attn_implementation"):
            if "/" in str(part.get(name)):
                raise RecipeError(
                    f"the model folder {path} names {part[name]!r} as its {name} in config.json, which is code of a "
                    "repository and never run: take the line out"
                )
    if "auto_map" in config:
        from transformers import CONFIG_MAPPING

        if config["model_type"] not in CONFIG_MAPPING:
            raise RecipeError(
                f"the model folder {path} needs code of its own repository (model type '{config['model_type']}'), "
                "which is never run: choose a model that transformers knows"
            )


def load_tokenizer(base: BaseModel) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with its chat template."""
    tokenizer: PreTrainedTokenizerBase = _tokenizer_class(base.path).from_pretrained(
        base.path, local_files_only=True, trust_remote_code=False
    )
    tokenizer.chat_template = chat_template(base.path)
    return tokenizer


def _tokenizer_class(path: Path) -> Any:
    """What loads a folder's tokenizer: `AutoTokenizer`, or directly the class that it would choose, where that is sure.

    AutoTokenizer imports torch and the table of all models first, which takes ten times as long as the rest.
    """
    settings, kind = read_json(path / "tokenizer_config.json"), read_json(path / "config.json").get("model_type")
    named = str(settings.get("tokenizer_class")).removesuffix("Fast")
    if (path / "tokenizer.json").is_file() and "auto_map" not in settings:
        if kind in _WITHOUT_A_CLASS and named in ("PreTrainedTokenizer", "TokenizersBackend"):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast
        if kind in _QWEN and named == "Qwen2Tokenizer":
            from transformers.models.qwen2 import Qwen2Tokenizer

            return Qwen2Tokenizer
    from transformers import AutoTokenizer

    return AutoTokenizer


def load_config(base: BaseModel) -> PreTrainedConfig:
    """The base's config, without its weights."""
    from transformers import AutoConfig

    config: PreTrainedConfig = AutoConfig.from_pretrained(base.path, local_files_only=True, trust_remote_code=False)
    return config


def load_model(base: BaseModel, dtype: str, device: str = "cpu") -> PreTrainedModel:
    """The base's weights in `dtype` ("float32" or "bfloat16") on `device`, in eval mode.

    Raises:
        RecipeError: when this transformers does not know the architecture.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    assert dtype in {"float32", "bfloat16"}, f"dtype '{dtype}': 'auto' is settled before a stage runs"
    logging.disable_progress_bar()
    options: dict[str, Any] = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForCausalLM.from_pretrained(base.path, dtype=getattr(torch, dtype), **options)
    except ValueError as error:
        raise RecipeError(f"the model folder {base.path} cannot be loaded: {_first_line(error)}") from error
    return model.to(device).eval()


def eos_ids(base: BaseModel) -> frozenset[int]:
    """The token ids that end a completion: the generation config's, else the config's."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(base.path / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if value is not None and all(type(token) is int for token in ids):
            return frozenset(ids)
        if value is not None:
            raise RecipeError(f"{base.path / name}: eos_token_id is {value!r}, expected a token id or a list of them")
    raise RecipeError(f"the model folder {base.path} names no eos_token_id in generation_config.json or config.json")
