"""The model that a job trains or scores with, on its device, checked against what the run recorded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import DataError
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Inputs
from stages.engines.digests import recorded_digests

if TYPE_CHECKING:
    from stages.engines.models import BaseModel
    from stages.training.members import Row
    from stages.training.scorer import Scorer

log = logging.getLogger(__name__)


def checked_base(inputs: Inputs, recipe: Recipe, execution: Execution) -> BaseModel:
    """The base model's folder.

    Raises:
        RecipeError: when it cannot be had.
        DataError: when it is not the one that the base artifact was made from.
    """
    from stages.engines.models import resolve_base

    base = resolve_base(recipe.model.base, inputs.root, Path(execution.cache) if execution.cache else None)
    expected = recorded_digests(inputs["base"].file("base.json"))["base"]
    if base.digest != expected:
        raise DataError(
            f"model.base '{recipe.model.base}' is {base.digest[:12]}, the base artifact is of {expected[:12]}: the "
            "model's files have changed since the run began. Restore them, or start a new run."
        )
    return base


def build_scorer(
    recipe: Recipe,
    execution: Execution,
    base: BaseModel,
    adapter: Path | None,
    rows: Sequence[Row],
    *,
    dropout: float,
    seed: int = 0,
    sharded: bool = False,
) -> tuple[Scorer, str]:
    """The model with its adapter, and how it will be computed: `packed`, or `plain` and why.

    Args:
        recipe: precision, and the shape of the adapter.
        execution: the device.
        base: the base model.
        adapter: a folder to continue from; None for a fresh one, which changes nothing.
        rows: what will be scored: their ids are checked.
        dropout: that the rows will be computed with; 0 where nothing is trained.
        seed: what a fresh adapter is drawn from.
        sharded: whether the base is sharded over the processes of this launch; it is then loaded into main memory.
    """
    import torch

    from stages.engines.factory import release
    from stages.engines.models import load_model
    from stages.training.adapter import attach
    from stages.training.members import check_vocabulary
    from stages.training.scorer import Scorer, why_plain
    from stages.training.sharding import shard

    train = recipe.train
    assert train.precision != "auto", "settled before a stage runs"
    dtype = "float32" if train.precision == "float32" else recipe.model.dtype
    device = _device(execution)
    if device == "cuda" and execution.engine == "vllm":
        release()  # vLLM has claimed most of the GPU's memory
    model = load_model(base, dtype, "cpu" if sharded else device)
    check_vocabulary(rows, model.get_input_embeddings().weight.shape[0])
    model.requires_grad_(False)
    reason = why_plain(model.config, dropout, train.prefix_sharing)
    peft = attach(model, recipe.adapter, seed, adapter)
    how = f", {shard(peft, torch.device(device))}" if sharded else ""
    scorer = Scorer(peft, packed=reason is None, autocast=train.precision == "bfloat16")
    if reason:
        log.info("prompts are computed row by row: %s", reason)
    if scorer.device.type == "cuda" and scorer.why_blocks:
        log.info("prefixes are shared block by block: %s", scorer.why_blocks)
        return scorer, f"packed, block by block: {scorer.why_blocks}{how}"
    return scorer, _in_words(reason) + how


def how_computed(recipe: Recipe, base: BaseModel, *, dropout: float) -> str:
    """`packed`, or `plain` and why, from the model's configuration alone."""
    from transformers import AutoConfig

    from stages.training.scorer import why_plain

    config = AutoConfig.from_pretrained(base.path, local_files_only=True, trust_remote_code=False)
    return _in_words(why_plain(config, dropout, recipe.train.prefix_sharing))


def _in_words(reason: str | None) -> str:
    return "packed" if reason is None else f"plain: {reason}"


def _device(execution: Execution) -> str:
    import torch

    if execution.device != "auto":
        return execution.device
    return "cuda" if torch.cuda.is_available() else "cpu"
