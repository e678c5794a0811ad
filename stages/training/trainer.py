"""TRL's GRPOTrainer on precomputed tables.

What it changes from GRPO/TRL, and nothing else:

- `get_train_dataloader`: batches come from the batch plan; one batch is one optimizer step.
- `training_step`: the step's micro-batches, cut by computed tokens, are accumulated here.
- `_prepare_inputs`: runs the model on a micro-batch and builds the dict that TRL's loss takes; rho = pi_0/mu is
  multiplied into per-token advantages. Nothing is generated, rewarded or tokenised.
- `_get_per_token_logps_and_entropies`: hands TRL the log-probabilities that the packed forward pass has computed.
- `compute_loss`: TRL's own `_compute_loss` for every bucket of equally weighted members, times the bucket's share of
  the step. A step's loss and gradient do not depend on how it was cut.
- `_clip_grad_norm`: remembers the norm.

Loss types, clipping, the KL estimator and their metrics are TRL's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from schemas.canonical import seed_from
from schemas.errors import StageError
from schemas.recipe import TrainSection
from stages.training.baselines import Baselines, check_finite
from stages.training.members import Members
from stages.training.objective import Objective, Shares, bucket_factor, rho_of, step_shares
from stages.training.scorer import Scored, Scorer, split
from stages.training.statistics import StepSums


@dataclass(frozen=True)
class Batch:
    """One optimizer step: its members and their shares of the loss."""

    step: int
    """Of the run, from 0."""
    members: list[int]
    shares: Shares


@dataclass(frozen=True)
class Bucket:
    """Members of one micro-batch that have equal weight, ready for TRL's loss."""

    factor: float
    inputs: dict[str, torch.Tensor]
    log_probs: torch.Tensor
    entropy: torch.Tensor
    kl_old: float
    log_rho: torch.Tensor | None


class OfflineTrainer(GRPOTrainer):  # type: ignore[misc]  # trl has no type information
    """Trains one adapter on the members of group tables, step by step of a plan."""

    def __init__(
        self,
        *,
        scorer: Scorer,
        members: Members,
        batches: list[Batch],
        baselines: Baselines,
        objective: Objective,
        section: TrainSection,
        budget: int,
        seed: int,
        on_step: Callable[[dict[str, Any]], None],
        **trl: Any,
    ) -> None:
        super().__init__(model=scorer.model, reward_funcs=_unused_reward, callbacks=[_OnStep(self)], **trl)
        self.remove_callback(PrinterCallback)
        self.beta = self.args.beta = objective.beta
        self.scorer, self.members, self.batches, self.baselines = scorer, members, batches, baselines
        self.objective, self.section, self.budget, self.plan_seed = objective, section, budget, seed
        self.on_step = on_step
        self.ended_early: str | None = None
        self.row: dict[str, Any] = {}

    def get_train_dataloader(self) -> list[dict[str, Batch]]:
        """The steps to take, in order."""
        return [{"batch": batch} for batch in self.batches]

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Forward and backward of one optimizer step; returns its loss."""
        batch: Batch = inputs["batch"]
        self.batch, self.sums = batch, StepSums()
        torch.manual_seed(seed_from("dropout", self.plan_seed, batch.step))
        total = torch.zeros((), device=self.args.device)
        for part in self._micro_batches(batch):
            total += super().training_step(model, {"members": part}, num_items_in_batch)
        self._end_of_step(float(total))
        return total

    def _micro_batches(self, batch: Batch) -> list[list[int]]:
        """Positions in `batch.members`, cut so that members of one row stay together."""
        row_of = self.members.row[batch.members]
        distinct = np.unique(row_of)
        rows = [self.members.rows[index] for index in distinct]
        parts = split(rows, self.budget, packed=self.scorer.packed)
        return [np.flatnonzero(np.isin(row_of, distinct[part])).tolist() for part in parts]

    def _prepare_inputs(self, generation_batch: dict[str, Any]) -> list[Bucket]:
        """Score a micro-batch and lay out its members for TRL, by weight."""
        part = np.array(generation_batch["members"])
        chosen = np.array(self.batch.members)[part]
        distinct, line = np.unique(self.members.row[chosen], return_inverse=True)
        scored = self.scorer([self.members.rows[index] for index in distinct])
        self.sums.forward_tokens += scored.forward_tokens
        lengths = scored.mask.sum(-1).tolist()
        check_finite(
            [values[:length] for values, length in zip(scored.log_probs.detach(), lengths, strict=True)],
            [self.members.rows[index] for index in distinct],
        )
        fixed = self._fixed(distinct, scored)
        weights = self.batch.shares.weight[part]
        buckets = []
        for weight in np.unique(weights):
            here = np.flatnonzero(weights == weight)
            buckets.append(self._bucket(float(weight), chosen[here], torch.from_numpy(line[here]), scored, fixed))
        return buckets

    def _fixed(self, distinct: Sequence[int], scored: Scored) -> dict[str, torch.Tensor]:
        """Per row of the micro-batch, (R, T): token ids and log-probabilities that have no gradient."""
        rows = [self.members.rows[index] for index in distinct]
        current = scored.log_probs.detach()

        def fill(values: list[torch.Tensor]) -> torch.Tensor:
            flat = torch.cat(values).to(scored.mask.device)
            return flat.new_zeros(scored.mask.shape).masked_scatter(scored.mask, flat)

        old = self.baselines.old
        fixed = {"completion_ids": fill([torch.from_numpy(row.completion) for row in rows])}
        fixed["old"] = current if old is None else fill([old[index] for index in distinct])
        if self.baselines.reference is not None:
            fixed["reference"] = fill([self.baselines.reference[index] for index in distinct])
        elif self.baselines.reference_is_old:
            fixed["reference"] = fixed["old"]
        if self.objective.rho != "none":
            sampling = [torch.from_numpy(row.sampling) for row in rows if row.sampling is not None]
            fixed["sampling"] = fill(sampling).to(current.dtype)
        return fixed

    def _bucket(
        self, weight: float, chosen: np.ndarray[Any, Any], line: torch.Tensor, scored: Scored, fixed: dict[str, Any]
    ) -> Bucket:
        """TRL's inputs for members of equal weight; `line` is each one's row in the micro-batch."""
        line = line.to(scored.mask.device)
        mask, log_probs, old = scored.mask[line], scored.log_probs[line], fixed["old"][line]
        advantages = torch.from_numpy(self.members.advantage[chosen]).to(log_probs)[:, None].expand_as(log_probs)
        log_rho = None
        if "sampling" in fixed:
            rho, log_rho = rho_of(old, fixed["sampling"][line], mask, self.objective)
            advantages = advantages * rho
        tokens, total = float(mask.sum()), self.batch.shares.tokens
        inputs = {
            "prompt_ids": torch.empty(len(line), 0, dtype=torch.long, device=mask.device),  # scored already
            "prompt_mask": torch.empty(len(line), 0, dtype=torch.long, device=mask.device),
            "completion_ids": fixed["completion_ids"][line],
            "completion_mask": mask.long(),
            "advantages": advantages,
            "old_per_token_logps": old,
            "num_items_in_batch": torch.tensor(total, device=mask.device),
        }
        if "reference" in fixed:
            inputs["ref_per_token_logps"] = fixed["reference"][line]
        drift = (log_probs.detach() - old).masked_fill(~mask, 0.0)
        return Bucket(
            factor=bucket_factor(self.objective, weight, len(line), tokens, total),
            inputs=inputs,
            log_probs=log_probs,
            entropy=scored.entropy[line],
            kl_old=float((torch.expm1(drift) - drift).sum()),
            log_rho=log_rho,
        )

    def compute_loss(
        self, model: torch.nn.Module, inputs: list[Bucket], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """A micro-batch's part of the step's loss: TRL's loss of each bucket times the bucket's factor."""
        total = torch.zeros((), device=self.args.device)
        for bucket in inputs:
            self._scored = bucket
            self._metrics["train"].clear()
            total = total + bucket.factor * self._compute_loss(model, bucket.inputs)
            means = {name: values[-1] for name, values in self._metrics["train"].items()}
            tokens = float(bucket.inputs["completion_mask"].sum())
            self.sums.add(tokens, bucket.kl_old, bucket.log_rho, means)
        return total

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        """What `_prepare_inputs` has scored for the bucket at hand."""
        return self._scored.log_probs, self._scored.entropy, None

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        norm: torch.Tensor = super()._clip_grad_norm(model)
        self.row["grad_norm"] = float(norm)
        return norm

    def _end_of_step(self, loss: float) -> None:
        """Measure the step; stop the stage, or end it before this step's update, where the recipe says so."""
        chosen = self.batch.members
        figures = self.sums.figures()
        lengths = self.members.tokens[chosen]
        self.row = {
            "step": self.batch.step,
            "loss": loss,
            "learning_rate": self.lr_scheduler.get_last_lr()[0],
            "reward": float(self.members.reward[chosen].mean()),
            "advantage_abs": float(np.abs(self.members.advantage[chosen]).mean()),
            "members": len(chosen),
            "groups": len(np.unique(self.members.group[chosen])),
            "completion_tokens": int(lengths.sum()),
            "row_tokens": int(lengths.sum())
            + sum(len(self.members.rows[row].prompt) for row in self.members.row[chosen]),
            **figures,
        }
        if not np.isfinite(loss):
            names = sorted({self.members.rows[row].name for row in self.members.row[chosen]})
            raise StageError(
                f"the loss of step {self.batch.step} is {loss}, over {len(names)} rows, for example "
                f"({'), ('.join(names[:3])}): lower train.learning_rate, or train.rho_max"
            )
        ess, floor = figures["ess"], self.section.ess_floor
        if ess is not None and ess < floor:
            raise StageError(
                f"step {self.batch.step}: the effective sample size is {ess:.3f} of {len(chosen)} members, below "
                f"train.ess_floor = {floor}: the data are too far from the policy that is trained. Were they sampled by "
                "another policy or at another precision? Sample again, or lower train.ess_floor knowingly."
            )
        self.ended_early = self._why_end(figures)
        if self.ended_early:
            self.model.zero_grad(set_to_none=True)  # parameters without a gradient are not moved
            self.control.should_training_stop = True

    def _why_end(self, figures: dict[str, Any]) -> str | None:
        target, floor = self.section.target_kl, self.section.entropy_floor
        if target is not None and figures["kl_old"] > target:
            return f"KL to the start of the stage {figures['kl_old']:.4g} passed target_kl {target:g}"
        if floor is not None and figures["entropy"] < floor:
            return f"entropy {figures['entropy']:.4g} fell below entropy_floor {floor:g}"
        return None


class _OnStep(TrainerCallback):  # type: ignore[misc]  # transformers is skipped by the type checker
    """Tells the stage about every step that was taken."""

    def __init__(self, trainer: OfflineTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *args: Any, **options: Any) -> None:
        if self.trainer.ended_early is None:
            self.trainer.on_step(self.trainer.row)


def _unused_reward(**_: Any) -> list[float]:
    """TRL demands a reward function; rewards come from the tables."""
    raise AssertionError("the offline trainer computes no rewards")


def make_batches(members: Members, steps: Sequence[tuple[int, list[int]]], objective: Objective) -> list[Batch]:
    """Batches from (step of the run, members) pairs."""
    return [Batch(step, chosen, step_shares(members, chosen, objective)) for step, chosen in steps]
