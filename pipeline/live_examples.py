"""DSPy's examples as the data file of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import canonical_json, seed_from
from schemas.errors import DataError
from schemas.examples import example_id
from stages.programs.jsonable import jsonable

if TYPE_CHECKING:
    import dspy


@dataclass(frozen=True)
class Columns:
    """Which columns of the file are what."""

    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    split: str


def columns_of(trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example]) -> Columns:
    """The columns of a file with all examples.

    Raises:
        DataError: for no example, one without input keys, or one whose input keys are not those of the first.
    """
    if not trainset:
        raise DataError("MMGRPO.compile: the trainset is empty")
    inputs: tuple[str, ...] = ()
    fields: set[str] = set()
    for place, example in _placed(trainset, valset):
        keys = tuple(sorted(_inputs(example, place)))
        if inputs and keys != inputs:
            raise DataError(f"{place}: its input keys are {', '.join(keys)}, those of trainset[0] {', '.join(inputs)}")
        inputs = inputs or keys
        fields |= set(example.keys())
    labels = tuple(sorted(fields - set(inputs)))
    split = "split"
    while split in fields:
        split += "_"
    return Columns(inputs, labels, split)


def write_examples(
    folder: Path,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    columns: Columns,
    share: float,
) -> dict[str, dspy.Example]:
    """Write examples.jsonl, in an order that does not depend on the lists'; returns the examples by example_id.

    Args:
        folder: where to.
        trainset: split `train`; without a valset, a share of it is split `dev`, drawn by what the examples are.
        valset: split `dev`.
        columns: of the file.
        share: see `trainset`; at least one example.

    Raises:
        DataError: for a value without a JSON form, or a trainset of which nothing would be left.
    """
    rows = {place: _row(example, columns, place) for place, example in _placed(trainset, valset or [])}
    held = (
        set() if valset else _held_out([rows[f"trainset[{index}]"] for index in range(len(trainset))], columns, share)
    )
    known: dict[str, dspy.Example] = {}
    lines: list[str] = []
    for place, example in _placed(trainset, valset or []):
        name = _id(rows[place], columns)
        known[name] = example
        dev = place.startswith("valset") or name in held
        lines.append(canonical_json({**rows[place], columns.split: "dev" if dev else "train"}))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "examples.jsonl").write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
    return known


def _placed(trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example]) -> list[tuple[str, dspy.Example]]:
    named = (("trainset", trainset), ("valset", valset))
    return [(f"{name}[{index}]", example) for name, part in named for index, example in enumerate(part)]


def _inputs(example: dspy.Example, place: str) -> list[str]:
    try:
        return list(example.inputs().keys())
    except ValueError:
        raise DataError(f"{place}: it has no input keys. Set them with example.with_inputs('question', …).") from None


def _row(example: dspy.Example, columns: Columns, place: str) -> dict[str, Any]:
    try:
        return {name: jsonable(example.get(name), name) for name in (*columns.inputs, *columns.labels)}
    except TypeError as error:
        raise DataError(f"{place}: {error}") from None


def _id(row: dict[str, Any], columns: Columns) -> str:
    return example_id({name: row[name] for name in columns.inputs})


def _held_out(rows: list[dict[str, Any]], columns: Columns, share: float) -> set[str]:
    ids = sorted((_id(row, columns) for row in rows), key=lambda name: seed_from("held out", name))
    count = max(1, int(len(ids) * share))
    if count >= len(ids):
        raise DataError(
            f"MMGRPO.compile: of {len(ids)} example(s), {count} would be held out to score policies on. Give a valset."
        )
    return set(ids[:count])
