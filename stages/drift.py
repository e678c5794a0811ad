"""The drift stage: how far a policy that was just scored is from the base, beside its score.

From the calls that the evaluation kept: how long completions are, how many were cut or did not parse, whether they
are ever the same few. From some of them, scored with policy and base by the trainer's own forward pass: KL and
entropy. And from canaries, prompts that never change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from schemas.drift import CANARIES, DRIFT
from schemas.execution import Execution
from schemas.parquet import read_frame, write_table
from schemas.policies import SHARED
from schemas.recipe import Recipe
from schemas.table import TableSpec
from stages.contract import Inputs, Out
from stages.drifting import canaries
from stages.drifting.calls import chosen, scored_rows, student_calls, with_tokens
from stages.drifting.figures import alarms, figures, with_gain
from stages.engines.factory import policy_adapters
from stages.training.build import build_scorer, checked_base, how_computed

if TYPE_CHECKING:
    from stages.drifting.divergence import Measure
    from stages.engines.models import BaseModel
    from stages.training.members import Row

NAME = "drift"
VERSION = 1

BASE = "base."
"""How the roles of the base's own artifacts begin."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """How calls are chosen and scored, how canaries are completed, and what is an alarm."""
    asked = recipe.canaries.model_dump(mode="json", exclude={"path"}) | {"context": recipe.model.context}
    return {
        "model": {"dtype": recipe.model.dtype},
        "train": {"precision": recipe.train.precision, "prefix_sharing": recipe.train.prefix_sharing},
        "evaluate": {"drift_calls": recipe.evaluate.drift_calls},
        "drift": recipe.drift.model_dump(mode="json"),
        "canaries": asked if recipe.canaries.path else None,
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write drift.parquet, and canaries.parquet where the recipe has canaries.

    Params: `policy`, `split`, `canaries`, the digest of their file or None. Artifacts: `base`, `adapter` for a trained
    policy, `evaluate`, its scores; and of the base `base.evaluate` and `base.drift`, unless it is the policy itself.

    Raises:
        RecipeError, DataError: for canaries or a model that cannot be used, or an adapter that does not fit.
        StageError: when the engine failed, or figures are not finite.
    """
    is_base = f"{BASE}drift" not in inputs.artifacts
    calls = student_calls(inputs["evaluate"])
    usable = with_tokens(calls)
    out.exclude("no_tokens", calls.height - usable.height)
    some = chosen(usable, recipe.evaluate.drift_calls)
    said = [] if inputs.params["canaries"] is None else canaries.complete(inputs, recipe, execution, out)
    rows = [*scored_rows(some), *canaries.scored_canaries(said)]
    base = checked_base(inputs, recipe, execution)
    measures = _measured(rows, base, inputs, recipe, execution, out=out)

    scored = _scored(some, measures)
    _write(out, "drift.parquet", scored, DRIFT)
    own = figures(calls, scored)
    first = own if is_base else _of_base(inputs)
    found = {**with_gain(own, first), "base": first, "canaries": None}
    if said:
        table = canaries.compared(said, measures[some.height :], None if is_base else inputs[f"{BASE}drift"])
        _write(out, canaries.NAME, table, CANARIES)
        found["canaries"] = canaries.canary_figures(table)
    about = {"policy": inputs.params["policy"], "split": inputs.params["split"]}
    told = alarms(found, recipe.drift)
    return {**about, **found, "alarms": told, "path": how_computed(recipe, base, dropout=0.0)}


def _of_base(inputs: Inputs) -> dict[str, Any]:
    """The base's figures, from its own artifacts."""
    scored = read_frame(inputs[f"{BASE}drift"].file("drift.parquet"), DRIFT)
    return figures(student_calls(inputs[f"{BASE}evaluate"]), scored)


def _measured(
    rows: Sequence[tuple[str, Row]], base: BaseModel, inputs: Inputs, recipe: Recipe, execution: Execution, *, out: Out
) -> list[Measure]:
    """A measure of each row, by the adapter of its module; no model is loaded for none."""
    from stages.drifting.divergence import measure
    from stages.engines.models import check_adapter
    from stages.training.process import isolated

    found: dict[int, Measure] = {}
    for folder, places in _by_adapter(rows, inputs):
        own = [rows[index][1] for index in places]

        def told(done: int, before: int = len(found)) -> None:
            out.progress(before + done, len(rows), "completions scored")

        if folder is not None:
            check_adapter(folder, base)
        with isolated(execution.threads):
            started = time.monotonic()
            scorer, _ = build_scorer(recipe, execution, base, folder, own, dropout=0.0)
            loaded = time.monotonic()
            measures, forward = measure(scorer, own, execution.train_tokens, told, is_base=folder is None)
        out.telemetry(
            load_seconds=loaded - started,
            score_seconds=time.monotonic() - loaded,
            row_tokens=sum(len(row.fed) for row in own),
            forward_tokens=forward,
        )
        found |= zip(places, measures, strict=True)
    return [found[index] for index in range(len(rows))]


def _by_adapter(rows: Sequence[tuple[str, Row]], inputs: Inputs) -> list[tuple[Path | None, list[int]]]:
    """The places of the rows of each of the policy's adapters, by its folder; None for those that the base serves."""
    adapters = policy_adapters(inputs)
    places: dict[Path | None, list[int]] = {}
    for index, (module, _) in enumerate(rows):
        adapter = adapters.get(SHARED) or adapters.get(module)
        places.setdefault(adapter.path if adapter else None, []).append(index)
    return [(folder, places[folder]) for folder in sorted(places, key=str)]


def _scored(calls: pl.DataFrame, measures: Sequence[Measure]) -> pl.DataFrame:
    """Rows of the drift table."""
    own = measures[: calls.height]
    return calls.select(
        "example_id",
        "sample",
        "rollout_id",
        "call_index",
        "module",
        "invocation_index",
        tokens=pl.col("completion_ids").list.len().cast(pl.Int32),
        kl_to_base=pl.Series([found.kl for found in own], dtype=pl.Float64),
        entropy=pl.Series([found.entropy for found in own], dtype=pl.Float64),
    )


def _write(out: Out, name: str, rows: pl.DataFrame | list[dict[str, Any]], spec: TableSpec) -> None:
    draft = out.scratch / name
    write_table(rows, draft, spec)
    out.commit_shard(name, draft)
