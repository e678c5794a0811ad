"""The examples stage: a data file becomes the examples table.

Rows keep their split; the columns that the recipe names become inputs (the identity of an example), labels (seen by
the metric only) and metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from schemas.errors import ContractError, DataError, RecipeError, Violation
from schemas.examples import EXAMPLES, example_row
from schemas.execution import Execution
from schemas.parquet import write_table
from schemas.recipe import ExamplesSection, Recipe
from stages.contract import Inputs, Out

NAME = "examples"
VERSION = 1


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """The examples section without the path: the file's bytes are in the key instead."""
    return recipe.examples.model_dump(mode="json", exclude={"path"})


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write examples.parquet, sorted by (split, example_id).

    Raises:
        RecipeError: when the file or a named column is not there.
        ContractError: when rows break a rule: null inputs, an input that stands in two rows or two splits.
        DataError: when a split that the recipe names is empty.
    """
    path = data_path(recipe, inputs.root)
    rows = _rows(_read(path), recipe.examples, path)
    _refuse_duplicates(rows, path)
    counts = _split_counts(rows, recipe.examples, path)
    rows.sort(key=lambda row: (row["split"], row["example_id"]))
    draft = out.scratch / "examples.parquet"
    write_table(rows, draft, EXAMPLES)
    out.commit_shard("examples.parquet", draft)
    return {"examples": len(rows), "splits": counts}


def data_path(recipe: Recipe, root: Path) -> Path:
    """The data file of a recipe.

    Raises:
        RecipeError: when there is no such file.
    """
    path = root / recipe.examples.path
    if not path.is_file():
        raise RecipeError(f"examples.path: no file at {path}. The path starts at the recipe's folder.")
    return path


def _read(path: Path) -> pl.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        if path.suffix == ".csv":
            return pl.read_csv(path, infer_schema=False)
        if path.suffix == ".jsonl":
            return pl.read_ndjson(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ContractError("examples", str(path), [Violation(f"the file is readable ({reason})", 1)]) from None
    raise RecipeError(f"examples.path: {path} is none of .parquet, .csv, .jsonl")


def _rows(frame: pl.DataFrame, section: ExamplesSection, path: Path) -> list[dict[str, Any]]:
    wanted = (*section.inputs, *section.labels, *section.metadata, section.split_column)
    missing = [name for name in wanted if name not in frame.columns]
    if missing:
        raise RecipeError(f"examples: {path} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")
    nulls = [
        Violation(f"{name} is not null", count)
        for name in (*section.inputs, section.split_column)
        if (count := frame[name].null_count())
    ]
    if nulls:
        raise ContractError("examples", str(path), nulls)
    return [_row(record, section, index, path) for index, record in enumerate(frame.iter_rows(named=True))]


def _row(record: dict[str, Any], section: ExamplesSection, index: int, path: Path) -> dict[str, Any]:
    try:
        return example_row(
            str(record[section.split_column]),
            {name: record[name] for name in section.inputs},
            {name: record[name] for name in section.labels} or None,
            {name: record[name] for name in section.metadata} or None,
        )
    except TypeError as error:
        rule = f"every value has a JSON form ({error})"
        raise ContractError("examples", str(path), [Violation(rule, 1, (f"row {index}",))]) from None


def _refuse_duplicates(rows: list[dict[str, Any]], path: Path) -> None:
    first: dict[str, int] = {}
    repeats: list[str] = []
    for index, row in enumerate(rows):
        earlier = first.setdefault(row["example_id"], index)
        if earlier != index:
            repeats.append(f"row {index} ({row['split']}) repeats row {earlier} ({rows[earlier]['split']})")
    if repeats:
        rule = "the inputs of an example stand in one row of one split"
        hint = "Drop the repeated rows, or name more input columns in examples.inputs."
        raise ContractError("examples", str(path), [Violation(rule, len(repeats), tuple(repeats[:3]))], hint)


def _split_counts(rows: list[dict[str, Any]], section: ExamplesSection, path: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["split"]] = counts.get(row["split"], 0) + 1
    for role, split in (("train", section.train), ("dev", section.dev), ("test", section.test)):
        if split is not None and not counts.get(split):
            known = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items())) or "none"
            raise DataError(f"{path}: examples.{role} names split '{split}', which has no rows; splits there: {known}")
    return dict(sorted(counts.items()))
