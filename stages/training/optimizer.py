"""AdamW over the adapter, a learning rate that spans the run, and optimizer state that outlives the stage.

Change from GRPO/TRL: state is carried over to the next iteration by parameter name, in safetensors, and the schedule
counts the steps of the run, not those since the process started. With several adapters the run's steps are those of
the batch plan, one clock for all: a step that has no members of an adapter moves nothing of it, but its schedule goes
on, so that all adapters have one learning rate at one step. Adam's own count is that of the adapter's steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from schemas.errors import DataError
from schemas.recipe_training import TrainSection

if TYPE_CHECKING:
    from peft import PeftModel

MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Tensors = dict[str, torch.Tensor]


def rate_factor(train: TrainSection, step: int) -> float:
    """What the learning rate is multiplied by at step `step` of the run, counted from 0.

    Warm-up rises linearly and is over after `warmup_steps`; no step has a rate of 0 within `total_steps`.
    """
    if step < train.warmup_steps:
        return (step + 1) / (train.warmup_steps + 1)
    if train.schedule == "constant" or train.total_steps is None:
        return 1.0
    progress = min(1.0, (step - train.warmup_steps) / max(1, train.total_steps - train.warmup_steps))
    return 1.0 - progress if train.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters by name, sorted."""
    return dict(sorted((name, value) for name, value in model.named_parameters() if value.requires_grad))


def make_optimizer(
    model: PeftModel, train: TrainSection, steps: Sequence[int]
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW (fused) and its schedule; `steps` are the steps to take, as the run counts them."""
    optimizer = torch.optim.AdamW(
        list(parameters(model).values()),
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        eps=1e-8,
        weight_decay=train.weight_decay,
        fused=True,
    )
    # After its last step the schedule is asked once more; that rate is used for nothing.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda taken: rate_factor(train, steps[min(taken, len(steps) - 1)])
    )
    return optimizer, schedule


def take_state(model: PeftModel, optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimizer's state by `<parameter>::<moment>`, on the CPU. Parameters without a step yet have none."""
    state: Tensors = {}
    for name, parameter in parameters(model).items():
        for moment in MOMENTS:
            if moment in optimizer.state.get(parameter, {}):
                value = optimizer.state[parameter][moment].detach().to("cpu")
                state[f"{name}::{moment}"] = value.contiguous().clone()
    return state


def put_state(model: PeftModel, optimizer: torch.optim.Optimizer, state: Tensors, where: str) -> None:
    """Continue from a state that `take_state` gave.

    Raises:
        DataError: when names or shapes do not fit the parameters.
    """
    known = parameters(model)
    left = dict(state)
    for name, parameter in known.items():
        moments = {moment: left.pop(f"{name}::{moment}") for moment in MOMENTS if f"{name}::{moment}" in left}
        if not moments:
            continue
        if len(moments) != len(MOMENTS) or moments["exp_avg"].shape != parameter.shape:
            raise DataError(f"{where}: the state of {name} has {sorted(moments)} and does not fit its shape")
        optimizer.state[parameter] = {
            moment: value.clone().to(torch.float32 if moment == "step" else parameter.dtype).to(parameter.device)
            for moment, value in moments.items()
        }
    if left:
        raise DataError(f"{where}: {len(left)} entries belong to no parameter, for example {min(left)}")
