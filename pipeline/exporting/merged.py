"""An adapter added to its base for good: whole weights that load without PEFT."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import DataError

if TYPE_CHECKING:
    from stages.engines.models import BaseModel


TOKENIZER = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.jinja",
)
"""The base's files that are copied as they are, so that prompts stay the same token for token."""


def write_merged(adapter: Path, base: BaseModel, folder: Path) -> str:
    """Write weights, config, tokenizer and chat template. Returns the dtype, which is that of the base's files.

    The sum is made in float32, whatever the base is kept in.

    Raises:
        DataError: when the adapter does not fit the base, or the sum is not finite.
    """
    from peft import PeftModel

    from stages.engines.adapters import check_adapter
    from stages.engines.models import load_config, load_model

    check_adapter(adapter, base)
    model = PeftModel.from_pretrained(load_model(base, "float32"), adapter, local_files_only=True)
    try:
        whole = model.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise DataError(f"{adapter} cannot be merged into its base: {error}") from error
    kept = load_config(base).dtype or whole.dtype
    whole.to(kept).save_pretrained(folder, safe_serialization=True)
    for name in TOKENIZER:
        if (base.path / name).is_file():
            shutil.copyfile(base.path / name, folder / name)
    return str(kept).removeprefix("torch.")
