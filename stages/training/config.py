"""TRL's settings, each set on purpose: several of its defaults would silently train something else.

Changes from GRPO/TRL defaults: loss type, KL weight and its importance weighting, clipping, dtype, gradient
checkpointing, accumulation, generation, logging, saving and reporting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from schemas.recipe_training import TrainSection
from stages.training.objective import Objective

if TYPE_CHECKING:
    from trl import GRPOConfig


def trl_config(
    objective: Objective,
    train: TrainSection,
    folder: Path,
    *,
    steps: int,
    seed: int,
    cpu: bool,
    name: str = "",
    report_to: tuple[str, ...] = (),
) -> GRPOConfig:
    """The configuration of a trainer that generates and saves nothing.

    Args:
        objective: loss type, clipping and KL.
        train: optimizer settings.
        folder: TRL demands one; nothing is written there.
        steps: optimizer steps to take.
        seed: TRL seeds the global generators with it when it starts.
        cpu: train on the CPU even where there is a GPU.
        name: what trackers call this training.
        report_to: the trackers that are told of each step.
    """
    from trl import GRPOConfig

    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=cpu,
        seed=seed % 2**32,
        # The step. One batch of the dataloader is one optimizer step; micro-batches are cut inside it, so that HF's
        # accumulation, which wants equally many of them in every step, stays at 1.
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=2,  # demanded although nothing is generated
        learning_rate=train.learning_rate,
        max_grad_norm=train.grad_clip,
        # The objective.
        loss_type=objective.loss_type,
        epsilon=objective.epsilon_low,
        epsilon_high=objective.epsilon_high,
        delta=None,
        importance_sampling_level="token",  # set when it is built: TRL would warn of sums that a step's shares undo
        beta=0.0,  # a value here would copy the adapter as reference; the trainer sets it once it is built
        use_bias_correction_kl=False,  # plain k3, as in the paper
        scale_rewards="none",  # advantages come from the group stage
        max_completion_length=objective.length,
        mask_truncated_completions=False,  # the group stage decides
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        entropy_coef=0.0,
        use_adaptive_entropy=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        router_aux_loss_coef=None,
        temperature=1.0,  # each row has its own
        use_vllm=False,
        vllm_importance_sampling_correction=False,  # rho multiplies the advantages instead
        # Numbers and memory. The scorer opens its own autocast.
        bf16=False,
        fp16=False,
        tf32=None,
        cast_lm_head_to_fp32=False,
        disable_dropout=False,
        gradient_checkpointing=False,
        sync_ref_model=False,
        # Data comes from the batch plan; nothing is saved, logged or sent anywhere by the trainer.
        shuffle_dataset=False,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        log_completions=False,
        report_to=list(report_to) or "none",
        run_name=name or None,
        project="mmgrpo",
        push_to_hub=False,
        disable_tqdm=True,
    )
    if config.n_gpu > 1:
        config._n_gpu = 1  # a process trains on one GPU: torch's DataParallel would cut our micro-batches again
    return config
