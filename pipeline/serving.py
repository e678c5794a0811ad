"""serve: the command that starts vLLM as the server of a recipe's base and of its run's newest policy."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import runfile
from pipeline.lineage import newest_adapters
from pipeline.recipes import LoadedRecipe
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.engines.adapters import adapter_digest
from stages.engines.factory import device_of
from stages.engines.limits import context_of
from stages.engines.models import BaseModel, load_config, resolve_base
from stages.engines.server_adapters import served_name
from stages.engines.vllm_settings import INSTALL

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Highest ranks that vLLM can be started for."""
_CPU_TOKENS = 8192
_CPU_SPARE = 16
"""Slots for adapters that stay empty: vLLM's CPU kernels give a request without an adapter the last slot's, where
others of its batch have one. Slots fill from the first, and those of adapters that were unloaded are not empty."""


@dataclass(frozen=True)
class Serving:
    """A command that starts a server."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    """Variables that it needs beside those that are set."""
    key_variable: str | None = None
    """Name of the variable that holds the key which clients must send."""

    def printed(self) -> str:
        """The command for a shell. The key stays in its variable."""
        named = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        if self.key_variable:
            named.append(f'VLLM_API_KEY="${self.key_variable}"')
        return " ".join([*named, shlex.join(self.argv)])

    def start(self) -> None:
        """Become the server: this process goes on as it, and ends with it.

        Raises:
            RecipeError: when vLLM is not installed here, or the key is not set.
        """
        if find_spec("vllm") is None:
            raise RecipeError(f"vLLM is not installed: {INSTALL}, or run what --print prints where it is")
        environment = {**os.environ, **self.environment}
        if self.key_variable:
            key = os.environ.get(self.key_variable)
            if not key:
                raise RecipeError(f"server.api_key_env: the environment variable {self.key_variable} is not set")
            environment["VLLM_API_KEY"] = key
        os.execvpe(self.argv[0], self.argv, environment)  # noqa: S606 - our own argument list, and no shell


def serving(loaded: LoadedRecipe, execution: Execution, folder: Path, host: str, port: int) -> Serving:
    """The command for a recipe whose `auto` is settled.

    Args:
        loaded: the recipe.
        execution: its `device` is served on, its `vllm` settings become flags, its `server.api_key_env` names the key.
        folder: the run folder; without a run the base alone is served, and adapters as they are made.
        host: address to listen at.
        port: port to listen at.

    Raises:
        RecipeError: when the base cannot be had, or vLLM does not serve what the recipe trains.
    """
    recipe, device = loaded.recipe, device_of(execution)
    base = resolve_base(recipe.model.base, loaded.root, Path(execution.cache) if execution.cache else None)
    context = context_of(load_config(base), recipe.model.context)
    flags: dict[str, Any] = {
        "host": host,
        "port": port,
        "served_model_name": recipe.model.base,
        "dtype": recipe.model.dtype,
        "max_model_len": context,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
        **_template(base),
        **_lora(recipe, folder, _CPU_SPARE if device == "cpu" else 0),
        **(_on_cpu(load_config(base), recipe.model.dtype, context) if device == "cpu" else {}),
        **execution.vllm,
    }
    begin = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    # The command `vllm` looks for its distribution by that name, which is not what the CPU build is called.
    argv = (*(begin if device == "cpu" else ["vllm", "serve"]), str(base.path), *_as_flags(flags))
    return Serving(argv, _environment(device), execution.server.api_key_env)


def _template(base: BaseModel) -> dict[str, Any]:
    file = base.path / "chat_template.jinja"
    return {"chat_template": str(file)} if file.is_file() else {}


def _lora(recipe: Recipe, folder: Path, spare: int) -> dict[str, Any]:
    """Room for what the run trains, and the newest policy's adapters under the names that runs ask for them."""
    if recipe.adapter.use_dora:
        raise RecipeError("adapter.use_dora: vLLM does not serve DoRA. Sample with the embedded engine, or train LoRA")
    adapters = newest_adapters(folder) if (folder / runfile.NAME).exists() else {}
    rank = max([recipe.adapter.r, *recipe.adapter.rank_pattern.values()])
    modules = recipe.adapter.modules
    several = 1 if modules == "shared" else max(len(adapters), len(modules) if isinstance(modules, dict) else 1)
    named = [f"{served_name(adapter_digest(path))}={path.absolute()}" for path in adapters.values()]
    flags: dict[str, Any] = {"enable_lora": True, "max_lora_rank": _step(rank), "max_loras": several + spare}
    return flags | ({"lora_modules": named} if named else {})


def _step(rank: int) -> int:
    if rank > _RANKS[-1]:
        raise RecipeError(f"adapter.r = {rank}: vLLM serves ranks up to {_RANKS[-1]}")
    return next(step for step in _RANKS if step >= rank)


def _on_cpu(config: PreTrainedConfig, dtype: str, context: int) -> dict[str, Any]:
    """Prompts are computed whole: in parts they would take back draws of a seed, which CPU generators cannot."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * heads * size * (4 if dtype == "float32" else 2)
    whole = max(context, _CPU_TOKENS)
    return {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": whole,
        "kv_cache_memory_bytes": 4 * whole * token,
    }


def _environment(device: str) -> dict[str, str]:
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_NO_USAGE_STATS": "1"}
    if device == "cpu" and "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        settings["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # by itself it leaves a core idle
    return settings


def _as_flags(flags: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            found += [f"--{flag}", *map(str, value)]
        else:
            found += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return found
