"""The examples stage: a data file becomes the examples table.

Rows keep their split; the columns that the recipe names become inputs (the identity of an example), labels (seen by
the metric only) and metadata.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.addresses import is_address
from schemas.canonical import canonical_json
from schemas.errors import ContractError, DataError, RecipeError, Violation
from schemas.examples import EXAMPLES, example_row
from schemas.execution import Execution
from schemas.foreign import unique_keys
from schemas.parquet import read_rows, write_table
from schemas.recipe import Recipe
from schemas.recipe_data import ExamplesSection
from schemas.table import NAME_KEY
from stages.contract import Inputs, Out
from stages.places import place_of

Records = list[dict[str, Any]]

TABLE = "examples.parquet"
NAME = "examples"
VERSION = 1


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """The examples section without the path: the file's bytes are in the key instead."""
    return recipe.examples.model_dump(mode="json", exclude={"path"})


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write examples.parquet, sorted by (split, example_id).

    A file that is such a table already, as of a snapshot of traces, is taken row by row: its ids may be keyed.

    Raises:
        RecipeError: when the file or a named column is not there.
        ContractError: when rows break a rule: null inputs, an input that stands in two rows or two splits.
        DataError: when a split that the recipe names is empty.
    """
    path, rows = data_path(recipe, inputs.root), read_examples(recipe, inputs.root)
    counts = _split_counts(rows, recipe.examples, path)
    rows.sort(key=lambda row: (row["split"], row["example_id"]))
    draft = out.scratch / TABLE
    write_table(rows, draft, EXAMPLES)
    out.commit_shard(TABLE, draft)
    return {"examples": len(rows), "splits": counts}


def read_examples(recipe: Recipe, root: Path) -> Records:
    """The rows of the examples table that the recipe's data file gives, in its order.

    Raises:
        RecipeError, ContractError: as `run` does.
    """
    path = data_path(recipe, root)
    rows = _table_rows(path, recipe.examples) if _is_table(path) else _rows(*_read(path), recipe.examples, path)
    _refuse_duplicates(rows, path)
    return rows


def data_path(recipe: Recipe, root: Path) -> Path:
    """The data file of a recipe: the one that it names, or the examples of the snapshot of traces that it names.

    Raises:
        RecipeError: when there is no such file.
    """
    path = place_of(root, recipe.examples.path)
    if (path / TABLE).is_file():
        return path / TABLE
    if is_address(recipe.examples.path) and not path.is_file():
        raise RecipeError(
            f"examples.path: no snapshot at {recipe.examples.path}. An address names a snapshot, as `mmgrpo ingest "
            "--snapshots` prints it; any other data file lies on this machine"
        )
    if not path.is_file():
        raise RecipeError(f"examples.path: no file at {path}. The path starts at the recipe's folder.")
    return path


def _is_table(path: Path) -> bool:
    if path.suffix != ".parquet":
        return False
    try:
        return (pq.read_metadata(path).metadata or {}).get(NAME_KEY) == EXAMPLES.name.encode()
    except (pa.ArrowException, OSError):
        return False  # said when it is read


def _table_rows(path: Path, section: ExamplesSection) -> Records:
    """The rows of an examples table.

    Raises:
        ContractError: naming rows whose inputs are others than the recipe's.
    """
    rows = read_rows(path, EXAMPLES)
    strange = [row["example_id"] for row in rows if set(json.loads(row["inputs"])) != set(section.inputs)]
    if strange:
        rule = f"inputs are {', '.join(section.inputs)}, as examples.inputs says"
        raise ContractError("examples", str(path), [Violation(rule, len(strange), tuple(strange[:3]))])
    return rows


def _read(path: Path) -> tuple[list[str], Records]:
    """Column names, and rows by column, in the file's order."""
    try:
        if path.suffix == ".jsonl":
            return _read_lines(path)
        if path.suffix == ".parquet":
            frame = pl.read_parquet(path)
        elif path.suffix == ".csv":
            frame = pl.read_csv(path, infer_schema=False)
        else:
            raise RecipeError(f"examples.path: {path} is none of .parquet, .csv, .jsonl")
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ContractError("examples", str(path), [Violation(f"the file is readable ({reason})", 1)]) from None
    return frame.columns, list(frame.iter_rows(named=True))


def _read_lines(path: Path) -> tuple[list[str], Records]:
    """JSON lines, each value as it stands there: a table reader would fill, widen and rename to one type a column."""
    columns: dict[str, None] = {}
    records: Records = []
    bad: list[str] = []
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            bad.append(f"line {number} ({error})")
            continue
        if isinstance(record, dict):
            columns.update(dict.fromkeys(record))
            records.append(record)
        else:
            bad.append(f"line {number} (a {type(record).__name__})")
    if bad:
        rule = "every line is a JSON object"
        raise ContractError("examples", str(path), [Violation(rule, len(bad), tuple(bad[:3]))])
    return list(columns), records


def _rows(columns: list[str], records: Records, section: ExamplesSection, path: Path) -> list[dict[str, Any]]:
    wanted = (*section.inputs, *section.labels, *section.metadata, section.split_column)
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise RecipeError(f"examples: {path} has no column {', '.join(missing)}; it has {', '.join(columns)}")
    broken: dict[str, list[int]] = {}
    rows: list[dict[str, Any]] = []
    for index, record in enumerate(records):
        nulls = [name for name in (*section.inputs, section.split_column) if record.get(name) is None]
        for name in nulls:
            broken.setdefault(f"{name} is not null", []).append(index)
        try:
            rows += [] if nulls else [_row(record, section)]
        except TypeError as error:
            broken.setdefault(f"every value has a JSON form ({error})", []).append(index)
    if broken:
        violations = [
            Violation(rule, len(found), tuple(f"row {index}" for index in found[:3])) for rule, found in broken.items()
        ]
        raise ContractError("examples", str(path), violations)
    return rows


def _row(record: Mapping[str, Any], section: ExamplesSection) -> dict[str, Any]:
    split = str(record[section.split_column])
    canonical_json(split)  # refuses what cannot be stored; the other columns are made of it anyway
    return example_row(
        split,
        {name: record[name] for name in section.inputs},
        {name: record.get(name) for name in section.labels} or None,
        {name: record.get(name) for name in section.metadata} or None,
    )


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
