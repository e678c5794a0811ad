"""The engine and the LMs of a job, from the recipe and its input artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import DataError
from schemas.execution import Execution
from schemas.policies import named_adapters
from schemas.recipe import Recipe
from schemas.recipe_data import ModelSection
from stages.contract import Inputs
from stages.engines.adapters import read_adapters
from stages.engines.digests import recorded_digests
from stages.engines.endpoint import Endpoint
from stages.engines.interface import Adapter, Closing, Engine

if TYPE_CHECKING:
    from stages.engines.models import BaseModel

_ENGINES: dict[tuple[str, ...], Engine] = {}
"""The engine made last: consecutive stages of one process do not load the model again."""


def make_engine(recipe: Recipe, execution: Execution, inputs: Inputs) -> Engine:
    """The engine that the execution settings ask for, over the recipe's base model.

    Raises:
        RecipeError: when the base model or the engine cannot be had.
        DataError: when it is not the one that the base artifact was made from.
    """
    from stages.engines.models import resolve_base

    base = resolve_base(recipe.model.base, inputs.root, Path(execution.cache) if execution.cache else None)
    recorded = base_digests(inputs)["base"]
    if base.digest != recorded:
        raise DataError(
            f"model.base '{recipe.model.base}' is now {base.digest[:12]}, but this run's base artifact "
            f"{inputs['base'].path} was made from {recorded[:12]}: the model's files changed. Restore them, or start "
            "another run."
        )
    engine = engine_of(base, recipe.model, execution)
    engine.expect({adapter.digest for adapter in policy_adapters(inputs).values()})
    return engine


def engine_of(base: BaseModel, model: ModelSection, execution: Execution) -> Engine:
    """The engine over a base model: the one of this process, where it is the same.

    Raises:
        RecipeError: when the engine is not installed, or its settings are wrong.
    """
    if execution.threads:
        import torch

        torch.set_num_threads(execution.threads)
    key = (base.digest, model.dtype, str(model.context), device_of(execution), _settings(execution))
    if key not in _ENGINES:
        release()
        _ENGINES[key] = _make(base, model, execution)
    return _ENGINES[key]


def _make(base: BaseModel, model: ModelSection, execution: Execution) -> Engine:
    if execution.engine == "vllm":
        from stages.engines.vllm_engine import VllmEngine

        return VllmEngine(base, model.dtype, model.context, device_of(execution), execution)
    if execution.engine == "server":
        from stages.engines.server_engine import ServerEngine

        return ServerEngine(base, model.context, execution.server)
    from stages.engines.transformers_engine import TransformersEngine

    return TransformersEngine(base, model.dtype, model.context, device_of(execution), execution.batch_tokens)


def _settings(execution: Execution) -> str:
    return execution.model_dump_json(include={"engine", "batch_tokens", "vllm", "server", "threads"})


def release() -> None:
    """Let the engine of this process go, with the memory and the processes that it holds."""
    for engine in _ENGINES.values():
        if isinstance(engine, Closing):
            engine.close()
    _ENGINES.clear()


def device_of(execution: Execution) -> str:
    """Where models run: "cpu" or "cuda"."""
    if execution.device != "auto":
        return execution.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def base_digests(inputs: Inputs) -> dict[str, str]:
    """Digests of the base model as its artifact holds them: `base`, `weights`, `tokenizer`, `template`."""
    return recorded_digests(inputs["base"].file("base.json"))


def policy_adapters(inputs: Inputs) -> dict[str, Adapter]:
    """The adapters of the policy to sample from, by module or under "*"; empty for the base.

    Raises:
        DataError: when the adapter artifact does not hold that policy.
    """
    if "adapter" not in inputs.artifacts:
        return {}
    artifact, policy = inputs["adapter"], str(inputs.params["policy"])
    digests = named_adapters(artifact.file("policies.parquet"), policy)
    folders = read_adapters(artifact.path).by_module
    if folders.keys() != digests.keys():
        raise DataError(
            f"{artifact.path} has adapters for {sorted(folders)}, the policy {policy[:12]} in its policies.parquet for "
            f"{sorted(digests)}: restore the artifact, or delete it and run again"
        )
    return {module: Adapter(folders[module], digest) for module, digest in digests.items()}


def make_endpoints(recipe: Recipe) -> dict[str, Endpoint]:
    """Clients of the recipe's LMs behind endpoints, by name.

    Raises:
        RecipeError: when a key's environment variable is not set.
    """
    return {
        name: Endpoint(name, lm.url, lm.model, lm.api_key_env, timeout_s=lm.timeout_s, retries=lm.retries)
        for name, lm in recipe.lms.items()
        if lm.kind == "openai" and lm.url and lm.model
    }
