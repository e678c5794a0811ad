"""The contestants of the trainer's benchmark: TRL's own GRPOTrainer, and our train stage on its plain and packed path.

All take the same optimizer steps on the same rows: the same base in the same dtype, the same fresh LoRA, the same
advantages, loss type and micro-batch budget for their memory. A step is timed from the end of the one before it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from schemas.canonical import seed_from
from schemas.execution import Execution
from schemas.parquet import read_rows
from schemas.policies import POLICIES
from schemas.recipe import Recipe
from stages import logprobs, train
from stages.contract import Inputs
from stages.training.scorer import Scorer
from tests.benchmarks.train_rows import grouped
from tests.test_stages.train_kit import LocalOut, artifact


@dataclass(frozen=True)
class Setting:
    """One comparison."""

    inputs: Inputs
    recipe: Recipe
    device: str
    threads: int
    tokens: int
    """Budget of computed tokens of our micro-batches."""
    stock_rows: int
    """Rows of a micro-batch of the stock trainer."""
    cache: Path | None
    folder: Path


@dataclass
class Watch:
    """Times of the steps, and the floating-point operations of the first one."""

    device: str
    ends: list[tuple[float, float]] = field(default_factory=list)
    """Wall and processor time at the start of the first step and the end of each, in seconds."""
    flops: int = 0
    counted: Callable[[], None] = lambda: None
    """Called when the operations are counted."""
    _counter: FlopCounterMode | None = None

    def begin(self) -> None:
        """The first step starts."""
        self._counter = FlopCounterMode(display=False)
        self._counter.__enter__()
        self.lap()

    def lap(self) -> None:
        """A step has ended."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        if self.ends and self._counter is not None:
            self._counter.__exit__(None, None, None)
            self.flops, self._counter = self._counter.get_total_flops(), None
            if self.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self.counted()
        self.ends.append((time.perf_counter(), time.process_time()))

    def seconds(self, clock: int) -> list[float]:
        """Of each step, by the wall (0) or of the processor (1)."""
        return [after[clock] - before[clock] for before, after in itertools.pairwise(self.ends)]


def ours(setting: Setting, packed: bool) -> tuple[Watch, dict[str, Any]]:
    """Our train stage, as a job runs it."""
    recipe = setting.recipe
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"prefix_sharing": packed})})
    watch = Watch(setting.device)
    out = LocalOut(setting.folder / "out", lambda done, total, unit: watch.lap() if unit == "steps" else None)
    execution = Execution(
        device=setting.device,
        threads=setting.threads,
        train_tokens=setting.tokens,
        cache=None if setting.cache is None else str(setting.cache),
    )

    def begin(scorer: Scorer) -> None:
        if setting.device == "cuda":  # a compiled kernel cannot be counted: the first step attends block by block
            kept, scorer.why_blocks = scorer.why_blocks, "operations are counted"
            watch.counted = lambda: setattr(scorer, "why_blocks", kept)
        watch.begin()

    with _before_training(begin):
        metrics = train.run(_with_old(setting, recipe, execution), recipe, execution, out)
    import polars as pl

    first = pl.read_parquet(out.committed()["steps.parquet"]).row(0, named=True)
    assert ("packed" in metrics["path"]) == packed, metrics["path"]
    return watch, {"grad_norm": first["grad_norm"], "computed_tokens": first["forward_tokens"], "path": metrics["path"]}


def _with_old(setting: Setting, recipe: Recipe, execution: Execution) -> Inputs:
    """The inputs with the old policy's log-probabilities, which a stage of more than one step wants."""
    inputs = setting.inputs
    if recipe.train.epochs == 1:
        return inputs
    policy = read_rows(inputs["base"].file("policies.parquet"), POLICIES)[0]["policy"]
    out = LocalOut(setting.folder / "old")
    logprobs.run(Inputs(inputs.artifacts, {"policy": policy, "rows": "all"}, inputs.root), recipe, execution, out)
    return Inputs({**inputs.artifacts, "logprobs.old": artifact(out.root / "files")}, inputs.params, inputs.root)


@contextlib.contextmanager
def _before_training(begin: Callable[[Scorer], None]) -> Iterator[None]:
    """Call `begin` when the trainer starts, once the model is loaded and the old policy is scored."""
    from stages.training.trainer import OfflineTrainer

    original = OfflineTrainer.train

    def timed(self: OfflineTrainer, *arguments: Any, **options: Any) -> Any:
        begin(self.scorer)
        return original(self, *arguments, **options)

    OfflineTrainer.train = timed
    try:
        yield
    finally:
        OfflineTrainer.train = original


def stock(setting: Setting) -> tuple[Watch, dict[str, Any]]:
    """TRL's GRPOTrainer as it is. Only generation is replaced: TRL's `rollout_func` hands it the rows.

    Its best settings for these rows: as many rows a micro-batch as fit, in order of length, whole groups where they do,
    so that a micro-batch is padded to its own group's longest row, no gradient checkpointing, bf16 where it is fast,
    base weights in that dtype, its own fused head on completion positions, no reference, no old log-probabilities.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from stages.engines.models import load_model, load_tokenizer, resolve_base
    from stages.training import adapter

    torch.set_num_threads(setting.threads)
    recipe, watch = setting.recipe, Watch(setting.device)
    groups = grouped(setting.inputs)
    size = len(groups[0])
    assert all(len(rows) == size for rows in groups), "groups of equal size"
    base = resolve_base(recipe.model.base, setting.inputs.root, setting.cache)
    model = load_model(base, recipe.model.dtype, setting.device).requires_grad_(False)
    model = adapter.attach(model, recipe.adapter, seed_from("lora", recipe.seed), None)  # as ours is drawn
    fed: list[int] = []

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = [groups[int(prompt)][place % size] for place, prompt in enumerate(prompts)]
        fed.append(len(rows) * max(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows))
        return {
            "prompt_ids": [row["prompt_ids"] for row in rows],
            "completion_ids": [row["completion_ids"] for row in rows],
            "logprobs": None,
            "score": [row["reward"] for row in rows],
        }

    class OnStep(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.lap()

    rows, temperatures = size * len(groups), {row["temperature"] for part in groups for row in part}
    assert rows % setting.stock_rows == 0
    assert size % setting.stock_rows == 0 or setting.stock_rows % size == 0, "parts of a group, or whole groups"
    steps = recipe.train.epochs
    args = GRPOConfig(
        output_dir=str(setting.folder),
        use_cpu=setting.device == "cpu",
        bf16=recipe.train.precision == "bfloat16",
        gradient_checkpointing=False,
        per_device_train_batch_size=setting.stock_rows,
        gradient_accumulation_steps=rows // setting.stock_rows,
        steps_per_generation=max(1, size // setting.stock_rows),  # TRL hands out rows by whole groups
        num_generations=size,
        max_steps=steps,
        learning_rate=recipe.train.learning_rate,
        max_grad_norm=recipe.train.grad_clip,
        optim="adamw_torch_fused",
        loss_type="grpo",
        beta=0.0,
        temperature=temperatures.pop(),
        max_completion_length=recipe.rollout.sampling.max_new_tokens,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    assert not temperatures, "TRL has one temperature for all rows"
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda score, **_: score,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(groups))]}),
        processing_class=load_tokenizer(base),
        rollout_func=rollout,
        callbacks=[OnStep()],
    )
    trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    return watch, {"grad_norm": float(norms[0]), "computed_tokens": sum(fed) // steps, "path": "stock"}
