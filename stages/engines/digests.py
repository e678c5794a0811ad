"""The identity of a base model: digests of its weights, tokenizer and chat template, from the files of its folder.

No path and no library version enters a digest, so the same model has the same digest on every machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas import foreign
from schemas.canonical import digest, digest_file
from schemas.errors import DataError, RecipeError
from schemas.foreign import lies_within
from stages.engines.files import read_json, remembered_digest

_NOT_IDENTITY = frozenset(
    {"_name_or_path", "_model_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json")


def weights_digest(folder: Path, cache: Path) -> str:
    """Digest of the safetensors bytes and of the model's config and generation config (for its eos ids)."""
    config = {key: value for key, value in read_json(folder / "config.json").items() if key not in _NOT_IDENTITY}
    eos = read_json(folder / "generation_config.json").get("eos_token_id")
    files = [[path.name, remembered_digest(path, cache)] for path in weight_files(folder)]
    return digest({"files": files, "config": config, "eos": eos})


def recorded_digests(file: Path) -> dict[str, str]:
    """Digests of the base model as `base.json` of its artifact holds them: `base`, `weights`, `tokenizer`, `template`.

    Raises:
        DataError: naming the file, when it does not hold them.
    """
    try:
        told = foreign.read_json(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: no digests of a base model ({error}): delete its artifact and run again") from None
    if not isinstance(told, dict) or "base" not in told or not all(isinstance(value, str) for value in told.values()):
        raise DataError(f"{file}: expected digests of a base model, `base` among them: delete its artifact, run again")
    return told


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, sorted: one, or those that its index names.

    Raises:
        RecipeError: when there are none, or one is missing.
    """
    index = read_json(folder / "model.safetensors.index.json")
    told = index.get("weight_map") or {}
    named = list(told.values()) if isinstance(told, dict) else [told]
    if strange := [name for name in named if not isinstance(name, str) or not lies_within(name)]:
        raise RecipeError(f"the model folder {folder}: its index names {strange[0]!r}, which is no file in it")
    names = sorted(set(named)) or ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise RecipeError(
            f"the model folder {folder} has no {missing[0]}: weights are read from safetensors files only "
            "(convert others with model.save_pretrained(folder))"
        )
    return [folder / name for name in names]


def tokenizer_digest(folder: Path) -> str:
    """Digest of the tokenizer's files and settings, the chat template left out."""
    files = {name: digest_file(folder / name) for name in _TOKENIZER_FILES if (folder / name).is_file()}
    if not files:
        raise RecipeError(f"the model folder {folder} has no tokenizer files (tokenizer.json)")
    settings = read_json(folder / "tokenizer_config.json")
    left_out = _NOT_IDENTITY | {"chat_template"}
    return digest({"files": files, "settings": {key: settings[key] for key in settings.keys() - left_out}})


def chat_template(folder: Path) -> str:
    """The chat template of a model folder.

    Raises:
        RecipeError: when it has none: prompts could not be made as the model was trained to read them.
    """
    file = folder / "chat_template.jinja"
    try:
        template = file.read_text(encoding="utf-8") if file.is_file() else _template_in_settings(folder)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if not template:
        raise RecipeError(
            f"the model folder {folder} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json): choose an instruct model, or add the template the model was trained with"
        )
    return template


def _template_in_settings(folder: Path) -> str | None:
    value: Any = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):  # several named templates
        named = [item for item in value if isinstance(item, dict) and item.get("name") == "default"]
        value = named[-1].get("template") if named else None
    return value if isinstance(value, str) else None
