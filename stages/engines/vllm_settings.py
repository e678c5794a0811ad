"""What vLLM is started with: our settings, and those that are passed through."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

from schemas.errors import RecipeError
from schemas.installing import install

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DISTRIBUTIONS = ("vllm", "vllm-cpu")
INSTALL = install("vllm (NVIDIA GPUs)", "vllm-cpu")

_BY_RECIPE = "the recipe decides it"
_BY_CONTRACT = "what is recorded of a completion depends on it"
_BY_SERVER = "start `vllm serve` with it and take engine = 'server'"
_REFUSED = {
    **dict.fromkeys(("model", "model_weights", "tokenizer", "dtype", "max_model_len", "hf_overrides"), _BY_RECIPE),
    **dict.fromkeys(
        ("enable_lora", "max_loras", "max_lora_rank", "default_mm_loras", "lora_dtype"), "adapters decide it"
    ),
    **dict.fromkeys(("logprobs_mode", "skip_tokenizer_init", "runner", "convert", "model_impl"), _BY_CONTRACT),
    **dict.fromkeys(("speculative_config", "spec_method", "spec_model", "watermark_config"), _BY_CONTRACT),
    **dict.fromkeys(("generation_config", "override_generation_config", "diffusion_config"), _BY_CONTRACT),
    **dict.fromkeys(("trust_remote_code", "config_format"), "no code of a model's repository is run"),
    **dict.fromkeys(("data_parallel_size", "data_parallel_backend"), _BY_SERVER),
}
_NAMED = ("quantization", "kv_cache_dtype", "attention_backend", "load_format")
"""Settings that change the distribution itself: they stand in the engine's name."""


def installed() -> tuple[str, str] | None:
    """The distribution of vLLM that is installed, and its version; None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def engine_name(dtype: str, device: str, options: Mapping[str, Any]) -> str:
    """For example `vllm-cpu-0.32.0/bfloat16`, with the passed settings that change what is sampled from.

    Raises:
        RecipeError: when vLLM is not installed, or not the one for the device ("cpu" or "cuda").
    """
    found = installed()
    if found is None:
        raise RecipeError(f"engine = 'vllm': vLLM is not installed. {INSTALL}, or leave out --exec engine=vllm")
    built_for = "cpu" if found[0] == "vllm-cpu" else "cuda"
    if device != built_for:
        raise RecipeError(
            f"engine = 'vllm': {found[0]} is installed, which computes on {built_for}; the device here is {device}. "
            f"{INSTALL}, or --exec device={built_for}"
        )
    named = [f"/{name}={options[name]}" for name in _NAMED if name in options]
    return f"{found[0]}-{found[1]}/{dtype}{''.join(named)}"


def checked_options(options: Mapping[str, Any], known: set[str], device: str) -> dict[str, Any]:
    """The settings to pass through.

    Args:
        options: `vllm` of the execution settings.
        known: the names that this vLLM has.
        device: "cpu" or "cuda".

    Raises:
        RecipeError: naming the setting that is unknown, or would break what the engine promises.
    """
    for name in options:
        if name in _REFUSED:
            raise RecipeError(f"vllm.{name} cannot be set here: {_REFUSED[name]}. Leave it out")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ": `vllm serve --help` lists what there is"
            raise RecipeError(f"vllm.{name} is no setting of this vLLM{hint}")
    if device == "cpu" and options.get("enable_chunked_prefill"):
        raise RecipeError(
            "vllm.enable_chunked_prefill cannot be set on a CPU: requests with seeds would end the engine. Leave it out"
        )
    return dict(options)


def known_options() -> set[str]:
    """Names of the settings that this vLLM's engine takes."""
    from vllm import EngineArgs

    return {field.name for field in fields(EngineArgs)}


def arguments(
    path: str, dtype: str, context: int, *, device: str, config: PreTrainedConfig, batch_tokens: int
) -> dict[str, Any]:
    """Our settings of vLLM's engine, adapters apart. Those that are passed through come over them.

    On a CPU prompts are computed whole: a request whose prompt is computed in parts would take back draws of its seeded
    generator, which CPU generators cannot. Graphs are not compiled there: it takes minutes, and vLLM does not use them
    with adapters.
    """
    ours: dict[str, Any] = {
        "model": path,
        "dtype": dtype,
        "max_model_len": context,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if device != "cpu":
        return ours
    whole = max(context, min(batch_tokens, 8192))
    return ours | {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": whole,
        "block_size": 32,
        "kv_cache_memory_bytes": max(batch_tokens, 2 * context) * _bytes_per_token(config, dtype),
    }


def _bytes_per_token(config: PreTrainedConfig, dtype: str) -> int:
    """Keys and values of one token in all layers."""
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layers: int = config.num_hidden_layers
    return 2 * layers * heads * _head_size(config) * (4 if dtype == "float32" else 2)


def check_heads(base: str, config: PreTrainedConfig, sizes: Collection[int]) -> None:
    """Refuse a model for whose attention vLLM has no CPU kernel: it would say so by dying at the first request.

    Args:
        base: as the recipe names it.
        config: the model's.
        sizes: of attention heads, that there are kernels for.

    Raises:
        RecipeError: naming the sizes.
    """
    size = _head_size(config)
    if size not in sizes:
        raise RecipeError(
            f"model.base '{base}' has attention heads of size {size}; vLLM on a CPU has kernels for "
            f"{', '.join(map(str, sorted(sizes)))}: choose another base, or leave out --exec engine=vllm"
        )


def kernel_sizes() -> list[int]:
    """Sizes of attention heads that vLLM has CPU kernels for."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes: list[int] = CPUAttentionBackend.get_supported_head_sizes()
    return sizes


def _head_size(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or int(config.hidden_size // config.num_attention_heads)
