"""A tiny random Llama, made on the spot: for tests, fault runs and newcomers. It says nothing of use, quickly.

Every number is drawn with integer arithmetic from Philox, so the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.files import made_once

if TYPE_CHECKING:
    import numpy as np

TINY = "tiny-random"
_VERSION = 1
_HIDDEN, _MLP, _LAYERS, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 128, 2, 4, 2, 16
_SPECIAL = ("<|unk|>", "<|im_start|>", "<|im_end|>")
_UNK, _START, _EOS = range(3)
_CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
_VOCABULARY = len(_SPECIAL) + len(_CHARACTERS)
_BIAS = 3.0
"""Value of hidden dimension 0 in every embedding. No layer writes to it: it carries the logit biases below."""
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_folder(cache: Path, seed: int) -> Path:
    """The tiny model of a seed, as a Hugging Face folder in the cache."""
    return made_once(cache / f"{TINY}-{seed}-v{_VERSION}", lambda folder: make_tiny(folder, seed))


def make_tiny(folder: Path, seed: int) -> None:
    """Write the tiny model of a seed: 2 layers, hidden size 64, one token a character (printable ASCII, newline).

    Logits are random functions of the context, with biases: it ends about one in five tokens, mostly speaks in
    lower-case letters, digits and spaces, and hardly ever emits a special token.
    """
    from safetensors.numpy import save_file

    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config())
    _write_json(folder / "generation_config.json", {"eos_token_id": _EOS, "pad_token_id": _EOS})
    _write_tokenizer(folder)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _MLP,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": _EOS,
        "pad_token_id": _EOS,
        "dtype": "float32",
    }


def _weights(seed: int) -> dict[str, np.ndarray]:
    import numpy as np

    stream = np.random.Philox(key=seed)

    def draw(rows: int, columns: int, scale: float) -> np.ndarray:
        """Uniform numbers of standard deviation about `scale`, exact in float32."""
        whole = (stream.random_raw(rows * columns) >> np.uint64(48)).astype(np.int64) - (1 << 15)
        return (whole.astype(np.float32) * np.float32(round(scale * 3464) / (1000 << 16))).reshape(rows, columns)

    embedding, head = draw(_VOCABULARY, _HIDDEN, 1.0), draw(_VOCABULARY, _HIDDEN, 0.1)
    embedding[:, 0], head[:, 0] = _BIAS, _logit_biases() / np.float32(_BIAS)
    ones = np.ones(_HIDDEN, np.float32)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": ones, "lm_head.weight": head}
    for layer in range(_LAYERS):
        parts = {
            "self_attn.q_proj": draw(_HEADS * _HEAD_DIM, _HIDDEN, 0.15),
            "self_attn.k_proj": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN, 0.15),
            "self_attn.v_proj": draw(_KV_HEADS * _HEAD_DIM, _HIDDEN, 0.125),
            "self_attn.o_proj": draw(_HIDDEN, _HEADS * _HEAD_DIM, 0.125),
            "mlp.gate_proj": draw(_MLP, _HIDDEN, 0.125),
            "mlp.up_proj": draw(_MLP, _HIDDEN, 0.125),
            "mlp.down_proj": draw(_HIDDEN, _MLP, 0.1),
            "input_layernorm": ones.copy(),
            "post_attention_layernorm": ones.copy(),
        }
        parts["self_attn.o_proj"][0] = parts["mlp.down_proj"][0] = 0.0
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return weights


def _logit_biases() -> np.ndarray:
    import numpy as np

    biases = np.zeros(_VOCABULARY, np.float32)
    for index, character in enumerate(_CHARACTERS, start=len(_SPECIAL)):
        biases[index] = 1.5 if character.islower() or character.isdigit() or character == " " else 0.0
    biases[_UNK] = biases[_START] = -6.0
    biases[_EOS] = 5.0
    return biases


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *_CHARACTERS])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=_SPECIAL[_UNK]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"unk_token": _SPECIAL[_UNK], "eos_token": _SPECIAL[_EOS], "pad_token": _SPECIAL[_EOS]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True), encoding="utf-8")
