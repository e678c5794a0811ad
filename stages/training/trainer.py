"""TRL's GRPOTrainer on precomputed tables.

What it changes from GRPO/TRL, and nothing else:

- `get_train_dataloader`: batches come from the batch plan; one batch is one optimizer step.
- `training_step`: the step's micro-batches, cut by computed tokens, are accumulated here, and added up over processes.
- `_prepare_inputs`: runs the model on a micro-batch and builds the dicts that TRL's loss takes; rho = pi_0/mu is
  multiplied into per-token advantages, and the calls of a trajectory are one line. Nothing is generated, rewarded or
  tokenised.
- `_get_per_token_logps_and_entropies`: hands TRL the log-probabilities that the packed forward pass has computed.
- `compute_loss`: TRL's own `_compute_loss` for every bucket of equally weighted lines, times the bucket's share of
  the step. A step's loss and gradient do not depend on how it was cut.
- `_clip_grad_norm`: remembers the norm.
- `log`: trackers (`report_to`) are told the rows of the steps table instead.

Loss types, clipping, the KL estimator and their metrics are TRL's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from schemas.canonical import seed_from
from schemas.recipe_training import TrainSection
from stages.training.baselines import Baselines, check_finite
from stages.training.buckets import Batch, Bucket, Indices, MicroBatch, lay_out
from stages.training.cutting import blocks_of, split
from stages.training.members import Members, Row
from stages.training.norms import ModuleNorms
from stages.training.objective import Objective, step_shares
from stages.training.scorer import Scorer
from stages.training.sharding import idle
from stages.training.statistics import StepSums, check_step, step_row, why_end
from stages.training.trackers import report
from stages.training.world import World


class OfflineTrainer(GRPOTrainer):
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
        world: World,
        **trl: Any,
    ) -> None:
        super().__init__(model=scorer.model, reward_funcs=_unused_reward, callbacks=[_OnStep(self)], **trl)
        self.remove_callback(PrinterCallback)
        self.beta = self.args.beta = objective.beta
        self.importance_sampling_level = self.args.importance_sampling_level = objective.ratio_level
        self.scorer, self.members, self.batches, self.baselines = scorer, members, batches, baselines
        self.objective, self.section, self.budget, self.plan_seed = objective, section, budget, seed
        self.on_step, self.world = on_step, world
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
        total = torch.zeros((), device=self.args.device)
        self.norms = ModuleNorms(self.scorer.model)
        parts = list(enumerate(self.micro_batches(batch)))
        for index, part in self.world.mine(parts):
            torch.manual_seed(seed_from("dropout", self.plan_seed, batch.step, index))
            micro = MicroBatch.of(self.members, batch, part)
            with self._measured(batch, part):
                total += super().training_step(model, {"micro": micro}, num_items_in_batch)
        for _ in range(self.world.idle_rounds(parts)):
            idle(self.scorer(self._rows(MicroBatch.of(self.members, batch, parts[0][1]))))
        self.world.add(total)
        self.world.add_gradients([each for each in self.scorer.model.parameters() if each.requires_grad])
        self.sums = self.world.merge(self.sums)
        self._end_of_step(float(total))
        return total

    def micro_batches(self, batch: Batch) -> list[list[int]]:
        """Positions in `batch.members`, cut so that members of one row, and rows of one unit, stay together."""
        everything = np.arange(len(batch.members))
        if not self.section.module_norms:
            return self._cut(batch, everything)
        module = self.members.module[batch.members]
        return [part for name in np.unique(module) for part in self._cut(batch, everything[module == name])]

    def _cut(self, batch: Batch, places: Indices) -> list[list[int]]:
        chosen = np.array(batch.members, np.intp)[places]
        block = blocks_of(self.members, chosen.tolist())
        pairs = np.unique(np.stack([block, self.members.row[chosen]]), axis=1)
        rows: list[list[Row]] = [[] for _ in range(block.max() + 1)]
        for number, row in pairs.T:
            rows[number].append(self.members.rows[row])
        parts = split(rows, self.budget, packed=self.scorer.packed)
        return [places[np.isin(block, part)].tolist() for part in parts]

    def _measured(self, batch: Batch, part: list[int]) -> contextlib.AbstractContextManager[None]:
        if not self.section.module_norms:
            return contextlib.nullcontext()
        return self.norms.of(str(self.members.module[batch.members[part[0]]]))

    def _prepare_inputs(self, generation_batch: dict[str, MicroBatch]) -> list[Bucket]:
        """Score a micro-batch and lay out its members for TRL, by weight."""
        micro = generation_batch["micro"]
        rows = self._rows(micro)
        scored = self.scorer(rows)
        self.sums.forward_tokens += scored.forward_tokens
        check_finite(list(scored.log_probs.detach()), rows)
        tokens = self.batch.shares.tokens
        return lay_out(self.members, micro, scored, self.baselines, self.objective, tokens=tokens)

    def _rows(self, micro: MicroBatch) -> list[Row]:
        return [self.members.rows[index] for index in micro.rows]

    def compute_loss(self, model: torch.nn.Module, inputs: list[Bucket], *_: Any, **__: Any) -> torch.Tensor:
        """A micro-batch's part of the step's loss: TRL's loss of each bucket times the bucket's factor."""
        total = torch.zeros((), device=self.args.device)
        for bucket in inputs:
            self._scored = bucket
            self._metrics["train"].clear()
            total = total + bucket.factor * self._compute_loss(model, bucket.inputs)
            told = {name: values[-1] for name, values in self._metrics["train"].items()}
            self.sums.add(bucket, told, self.objective)
        return total

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        """What `_prepare_inputs` has scored for the bucket at hand."""
        return self._scored.log_probs, self._scored.entropy, None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Nothing: trackers are told each step's own row, and not the summary at the end, which counts from 0."""

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        norms, modules = self.norms.norms(), self.row["modules"]  # before gradients are clipped where they lie
        norm: torch.Tensor = super()._clip_grad_norm(model)
        self.row["grad_norm"] = float(norm)
        if not norms and len(modules) == 1:
            norms = {modules[0]["module"]: float(norm)}
        for each in modules:
            each["grad_norm"] = norms.get(each["module"])
        return norm

    def _end_of_step(self, loss: float) -> None:
        """Measure the step; stop the stage, or end it before this step's update, where the recipe says so."""
        rate = self.lr_scheduler.get_last_lr()[0]
        self.row = step_row(self.members, self.batch, self.sums, loss, rate)
        check_step(self.members, self.batch, self.row, self.section)
        self.ended_early = why_end(self.row, self.section)
        if self.ended_early:
            self.model.zero_grad(set_to_none=True)  # parameters without a gradient are not moved
            self.control.should_training_stop = True


class _OnStep(TrainerCallback):
    """Tells the stage about every step that was taken."""

    def __init__(self, trainer: OfflineTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self.trainer.ended_early is None:
            self.trainer.on_step(self.trainer.row)
            report(self.trainer, self.trainer.row)


def _unused_reward(**_: Any) -> list[float]:
    """TRL demands a reward function; rewards come from the tables."""
    raise AssertionError("the offline trainer computes no rewards")


def make_batches(members: Members, steps: Sequence[tuple[int, list[int]]], objective: Objective) -> list[Batch]:
    """Batches from (step of the run, members) pairs."""
    return [Batch(step, chosen, step_shares(members, chosen, objective)) for step, chosen in steps]
