"""One adapter's training: from loaded members to a folder with the adapter and its optimizer state.

Read with `trainer.py`, which says what changes from GRPO/TRL. Here: the order of things, and resuming from the last
checkpoint, to the bit. `turns.py` calls it for one adapter after another.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from schemas.canonical import seed_from
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Out
from stages.engines.adapters import SHARED_NAME
from stages.engines.models import BaseModel, load_tokenizer
from stages.training import adapter, checkpoint, optimizer
from stages.training.baselines import Baselines
from stages.training.build import build_scorer
from stages.training.config import trl_config
from stages.training.forecast import forecast
from stages.training.members import Members
from stages.training.objective import Objective
from stages.training.plan import PlannedStep, members_of
from stages.training.process import isolated
from stages.training.scorer import Scorer
from stages.training.trackers import tracked
from stages.training.trainer import OfflineTrainer, make_batches
from stages.training.world import World

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedTokenizerBase

FIXED_BUDGET = 4096
"""Tokens of a micro-batch where dropout makes micro-batches part of the result: the machine may not decide then."""


@dataclass(frozen=True)
class Job:
    """What one training run works on."""

    recipe: Recipe
    execution: Execution
    objective: Objective
    base: BaseModel
    adapter: str
    """The adapter's name."""
    previous: Trained | None
    """What the iteration before made of it."""
    iteration: int
    members: Members
    """Those of the adapter's modules."""
    baselines: Baselines
    """Of their rows."""
    plan: list[PlannedStep]
    """The steps that have members of it."""
    done_before: int
    """Steps of the run before this stage."""
    scratch: Path
    """Where checkpoints go: its own for each adapter."""

    @property
    def steps(self) -> list[int]:
        """Its steps as the run counts them."""
        return [self.done_before + step.step for step in self.plan]

    def unit(self, what: str) -> str:
        """What progress counts."""
        return what if self.adapter == SHARED_NAME else f"{what} of {self.adapter}"


@dataclass(frozen=True)
class Trained:
    """An adapter and what is needed to go on with it."""

    adapter: Path
    """Its PEFT folder."""
    optimizer: Path
    """Its optimizer's state, a safetensors file."""


@dataclass(frozen=True)
class Outcome:
    """What a training did."""

    rows: list[dict[str, Any]]
    """Rows of the steps table, one a step taken."""
    path: str
    """`packed`, or `plain` and why."""
    ended_early: str | None


def fit(job: Job, folder: Path, out: Out, world: World) -> Outcome:
    """Train, and write into a new `folder`: adapter/ and optimizer.safetensors.

    With no step taken (ended early before the first update) the folder is empty. Of several processes, the first
    writes, and all end with the same weights.
    """
    if world.leads:
        folder.mkdir()
    with isolated(job.execution.threads):
        return _fit(job, folder, out, world)


def _fit(job: Job, folder: Path, out: Out, world: World) -> Outcome:
    started = time.monotonic()
    own = () if job.adapter == SHARED_NAME else (job.adapter,)
    scorer, path = build_scorer(
        job.recipe,
        job.execution,
        job.base,
        None if job.previous is None else job.previous.adapter,
        job.members.rows,
        dropout=job.recipe.adapter.dropout,
        seed=seed_from("lora", job.recipe.seed, *own),
        sharded=world.sharded,
    )
    ready = time.monotonic()
    adam, schedule, rows = _resume(job, scorer.model, out)
    taken = len(rows)
    with tracked(job.execution, f"{job.recipe.name}-{job.adapter}"):
        trainer = _trainer(job, scorer, (adam, schedule), rows=rows, out=out, world=world)
        if taken < len(job.plan):
            ahead = forecast(job.members, trainer.batches, trainer.micro_batches, packed=scorer.packed)
            parts = ahead.micro_batches
            out.progress(parts, parts, job.unit("micro-batches planned"), **ahead.figures)
            trainer.train()
    out.telemetry(
        load_seconds=ready - started,
        train_seconds=time.monotonic() - ready,
        train_row_tokens=sum(row["row_tokens"] for row in rows[taken:]),
        train_forward_tokens=sum(row["forward_tokens"] for row in rows[taken:]),
    )
    if rows and world.leads:
        _write(job, scorer.model, adam, folder)
    return Outcome(rows, path, trainer.ended_early)


def _budget(job: Job) -> int:
    return FIXED_BUDGET if job.recipe.adapter.dropout > 0 else job.execution.train_tokens


def _resume(
    job: Job, model: PeftModel, out: Out
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR, list[dict[str, Any]]]:
    """Optimizer, schedule and steps so far: of the last checkpoint, else of the previous iteration, else fresh."""
    train = job.recipe.train
    before = checkpoint.load(job.scratch)
    taken = [] if before is None else before.steps
    adam, schedule = optimizer.make_optimizer(model, train, job.steps[len(taken) :])
    if before is not None:
        adapter.put(model, before.adapter, str(job.scratch))
        optimizer.put_state(model, adam, before.optimizer, str(job.scratch))
    elif job.previous is not None and train.optimizer_state == "continue":
        file = job.previous.optimizer
        optimizer.put_state(model, adam, load_file(file), str(file))
    return adam, schedule, taken


def _trainer(
    job: Job, scorer: Scorer, optimizers: tuple[Any, Any], *, rows: list[dict[str, Any]], out: Out, world: World
) -> OfflineTrainer:
    """TRL's trainer for the steps that are left."""
    from datasets import Dataset

    steps = [(job.done_before + step.step, members_of(step, job.members)) for step in job.plan[len(rows) :]]
    seed = seed_from("train", job.recipe.seed, job.iteration)
    clock = [time.monotonic()]

    def on_step(row: dict[str, Any]) -> None:
        rows.append({"adapter": job.adapter, **row})
        if len(rows) < len(job.plan) and world.leads:
            state = optimizer.take_state(scorer.model, optimizers[0])
            checkpoint.save(job.scratch, checkpoint.Checkpoint(adapter.weights(scorer.model), state, rows))
        seconds, clock[0] = time.monotonic() - clock[0], time.monotonic()
        speed = row["row_tokens"] / max(seconds, 1e-9)
        figures = {"loss": row["loss"], "reward": row["reward"], "tokens_per_second": speed}
        out.progress(len(rows), len(job.plan), job.unit("steps"), **figures)

    args = trl_config(
        job.objective,
        job.recipe.train,
        job.scratch / "trl",
        steps=max(1, len(steps)),
        seed=seed,
        cpu=scorer.device.type == "cpu",
        name=f"{job.recipe.name}, iteration {job.iteration}",
        report_to=job.execution.report_to,
    )
    return OfflineTrainer(
        scorer=scorer,
        members=job.members,
        batches=make_batches(job.members, steps, job.objective),
        baselines=job.baselines,
        objective=job.objective,
        section=job.recipe.train,
        budget=_budget(job),
        seed=seed,
        on_step=on_step,
        world=world,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [""]}),  # demanded, never read
        processing_class=_tokenizer(job.base),
        optimizers=optimizers,
    )


@functools.lru_cache(maxsize=1)
def _tokenizer(base: BaseModel) -> PreTrainedTokenizerBase:
    """TRL demands one and tokenises nothing: read once for all stages of a process."""
    return load_tokenizer(base)


def _write(job: Job, model: PeftModel, adam: Any, folder: Path) -> None:
    (folder / "adapter").mkdir()
    adapter.write(model, folder / "adapter", base_name=job.base.name, base_digest=job.base.digest)
    save_file(optimizer.take_state(model, adam), folder / "optimizer.safetensors")
