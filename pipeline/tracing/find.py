"""Finding what a person names: rollouts, examples and traces, by the first digits of their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.graph import Graph
from pipeline.tombstones import tombstone_of
from schemas.errors import RecipeError
from schemas.examples import EXAMPLES
from schemas.manifest import TELEMETRY
from schemas.parquet import read_frame
from schemas.rollouts import ROLLOUTS
from schemas.table import TableSpec
from schemas.traces import TRACES
from stages.contract import Artifact

ROLLED = ("rollout", "teacher", "ingest")
"""Stages whose artifacts hold rollouts."""
_SHOWN = 8


def one_id(known: Collection[str], beginning: str, what: str) -> str:
    """The one id that begins so.

    Args:
        known: all ids.
        beginning: of the wanted one.
        what: what they are, and where they were looked for.

    Raises:
        RecipeError: when none or several do.
    """
    fits = sorted({item for item in known if item.startswith(beginning)})
    if beginning in known:
        return beginning
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise RecipeError(f"'{beginning}' fits {len(fits)} ids ({_few(fits)}): give more of the {what}")
    raise RecipeError(f"there is no {what} that begins with '{beginning}'; there are {len(known)}: {_few(known)}")


def _few(known: Collection[str]) -> str:
    shown = [item[:12] if len(item) == 64 else item for item in list(dict.fromkeys(known))[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(known) > _SHOWN else "") or "none"


def find_rollout(graph: Graph, beginning: str, folder: Path) -> tuple[dict[str, Any], list[Artifact]]:
    """The row of a rollout, and the artifacts that hold it.

    Raises:
        RecipeError: when the run has no such rollout, or the beginning fits several.
    """
    return _one_row(_readable(graph.of(*ROLLED)), ROLLOUTS, "rollout_id", beginning, folder)


def find_example(graph: Graph, beginning: str, folder: Path) -> tuple[dict[str, Any], list[Artifact]]:
    """The row of an example, and the artifacts that hold it.

    Raises:
        RecipeError: when the run has no such example, or the beginning fits several.
    """
    return _one_row(_readable(graph.of("examples", "ingest")), EXAMPLES, "example_id", beginning, folder)


def find_trace(graph: Graph, beginning: str, folder: Path) -> tuple[dict[str, Any], list[Artifact]]:
    """The row of a logged trace, and the snapshots in the run that hold it.

    Raises:
        RecipeError: when the run has no snapshot, or none with such a trace.
    """
    holders = _readable(graph.of("ingest"))
    if not holders:
        raise RecipeError(f"{folder} has no snapshot of traces: its recipe sets no traces.snapshot, or it was deleted")
    return _one_row(holders, TRACES, "trace", beginning, folder)


def _readable(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Artifacts whose bytes were not deleted by request."""
    return [item for item in artifacts if tombstone_of(item.path) is None]


def _one_row(
    holders: Collection[Artifact], spec: TableSpec, key: str, beginning: str, folder: Path
) -> tuple[dict[str, Any], list[Artifact]]:
    """The one row whose key begins so, and who holds it."""
    rows: dict[str, dict[str, Any]] = {}
    found: dict[str, list[Artifact]] = {}
    others: set[str] = set()
    for holder in holders:
        for path in table_files(holder, spec):
            table = read_frame(path, spec, validate=False)
            for row in table.filter(pl.col(key).str.starts_with(beginning)).iter_rows(named=True):
                rows.setdefault(row[key], row)
                found.setdefault(row[key], []).append(holder)
            others |= set() if rows else set(table[key])
    places = ", ".join(sorted({f"{item.manifest.stage}/{item.path.name}" for item in holders})) or "nothing"
    name = one_id(rows or sorted(others), beginning, f"{key} in {folder} (looked through: {places})")
    return rows[name], found[name]


def table_files(artifact: Artifact, spec: TableSpec) -> list[Path]:
    """The files of a table: `name.parquet`, or all below the folder `name`."""
    names = sorted(artifact.manifest.files)
    mine = [name for name in names if name == f"{spec.name}.parquet" or name.startswith(f"{spec.name}/")]
    return [artifact.file(name) for name in mine if not name.startswith(TELEMETRY)]


def groups_of(graph: Graph, holders: Iterable[Artifact]) -> Iterator[Artifact]:
    """The group artifacts that rollouts of some artifacts were put into."""
    seen: set[Path] = set()
    for holder in holders:
        for _, user in graph.users(holder):
            if user.manifest.stage == "group" and user.path not in seen:
                seen.add(user.path)
                yield user
