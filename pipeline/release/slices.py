"""Slices of a split: its examples by the values of metadata columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pipeline.reporting.opened import OpenRun, frame
from schemas.cells import FIELDS, cell
from schemas.examples import EXAMPLES

MOST_VALUES = 20
"""A column with more distinct values is an id or a text, unless the recipe names it."""


def slices_of(
    run: OpenRun, scored: Collection[str], columns: Sequence[str] | None, least: int
) -> list[tuple[str, str, list[str]]]:
    """(column, value, ids of examples) of every slice with enough examples, sorted.

    Args:
        run: the run.
        scored: ids of the examples that were scored.
        columns: metadata columns; None: those with 2 to 20 distinct values.
        least: fewest examples of a slice.
    """
    artifact = run.store.find("examples", run.state.setup.get("examples", ""))
    if artifact is None:
        return []
    table = frame(artifact, EXAMPLES, ["example_id", "metadata"])
    members: dict[str, dict[str, list[str]]] = {}
    for example, text in sorted(table.iter_rows()):
        if example in scored and text is not None:
            for column, value in cell(text, FIELDS, f"{artifact.folder / 'examples.parquet'}, metadata").items():
                if (name := _name(value)) is not None:
                    members.setdefault(column, {}).setdefault(name, []).append(example)
    wanted = {
        column: values
        for column, values in members.items()
        if (2 <= len(values) <= MOST_VALUES if columns is None else column in columns)
    }
    return [
        (column, value, examples)
        for column, values in sorted(wanted.items())
        for value, examples in sorted(values.items())
        if len(examples) >= least
    ]


def _name(value: Any) -> str | None:
    """A value as the name of a slice; None for what is missing or no plain value."""
    if value is None or isinstance(value, (dict, list)):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
