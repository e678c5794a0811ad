"""FSDP launches: the frozen base is sharded over the processes, the adapter stays whole in each.

`accelerate launch --use_fsdp` tells its settings by environment variables; accelerate's own plugin reads them. Only
decoder layers are sharded (FSDP2): embedding and head, which score positions outside of the model's forward, and the
LoRA weights are held by every process, so that gradients, optimizer state and checkpoints are those of one process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from schemas.errors import RecipeError

if TYPE_CHECKING:
    from accelerate import FullyShardedDataParallelPlugin
    from peft import PeftModel

USED = "ACCELERATE_USE_FSDP"
_ELSEWHERE = {
    "FSDP_ACTIVATION_CHECKPOINTING": "activations are bounded by --exec train_tokens=N",
    "FSDP_FORWARD_PREFETCH": "FSDP2 has no such setting",
}
"""Settings that would change nothing here, and what to do instead."""


def wanted() -> bool:
    """Whether the launcher asks for FSDP."""
    return _on(USED)


def shard(model: PeftModel, device: torch.device) -> str:
    """Shard the base's decoder layers over the processes of the default group, in place; the rest moves to `device`.

    Returns:
        What was done, in words.

    Raises:
        RecipeError: for settings that this does not support.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor

    plugin = _plugin()
    decoder = model.get_base_model().base_model
    within = _chosen(plugin, decoder)
    frozen = {weight for part in within for weight in part.parameters() if not weight.requires_grad}
    kept = {weight for weight in model.parameters() if weight not in frozen}
    for tensor in (*kept, *model.buffers()):
        tensor.data = tensor.data.to(device)
    options = {
        "reshard_after_forward": plugin.reshard_after_forward,
        "offload_policy": plugin.cpu_offload,
        "mp_policy": MixedPrecisionPolicy(),  # train.precision decides
        "ignored_params": kept,
    }
    for part in (*within, decoder):
        fully_shard(part, **options)
    weights = [weight for weight in model.parameters() if isinstance(weight, DTensor)]
    shares = {weight.device_mesh.size() for weight in weights}
    return f"{len(weights)} weights of the base sharded over {shares.pop()} processes"


def _plugin() -> FullyShardedDataParallelPlugin:
    from accelerate import FullyShardedDataParallelPlugin

    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise RecipeError("FSDP: version 1 is not supported; launch with --fsdp_version 2")
    for name, instead in _ELSEWHERE.items():
        if _on(name):
            raise RecipeError(f"FSDP: {name} is not supported: {instead}. Launch without it.")
    try:
        return FullyShardedDataParallelPlugin()
    except (ValueError, KeyError) as error:
        raise RecipeError(f"FSDP: {error}") from error


def _chosen(plugin: FullyShardedDataParallelPlugin, decoder: Any) -> list[torch.nn.Module]:
    """The parts of the decoder's layers that the auto wrap policy names, inner ones first."""
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy

    try:
        plugin.set_auto_wrap_policy(decoder)
    except ValueError as error:
        raise RecipeError(f"FSDP: {error}") from error
    chosen = fsdp2_prepare_auto_wrap_policy(plugin, decoder)
    within = [part for layer in decoder.layers for part in _bottom_up(layer) if chosen is not None and chosen(part)]
    if not within:
        raise RecipeError(
            "FSDP: the auto wrap policy chooses no decoder layer; launch with --fsdp_auto_wrap_policy "
            "TRANSFORMER_BASED_WRAP"
        )
    return within


def _bottom_up(module: torch.nn.Module) -> list[torch.nn.Module]:
    return [*(part for child in module.children() for part in _bottom_up(child)), module]


def _on(name: str) -> bool:
    return os.environ.get(name, "false").lower() in {"1", "true", "yes", "on"}


def idle(scored: Any) -> None:
    """The backward pass of a forward pass that counts for nothing: its gradients are zeros."""
    (scored.log_probs.sum() * 0.0).backward()
