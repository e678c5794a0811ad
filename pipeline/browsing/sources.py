"""Where the rollouts of a run lie, and what was grouped of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from pipeline.jobs import stage_of
from pipeline.reporting.opened import OpenRun, table_files
from schemas.errors import DataError, MmgrpoError
from schemas.parquet import preflight
from schemas.table import TableSpec
from stages.contract import Artifact


@dataclass(frozen=True)
class Rolled:
    """Rollouts that were made in an iteration, by the student or a teacher, or logged before the run."""

    iteration: int | None
    """None: logged traces."""
    artifact: Artifact


@dataclass(frozen=True)
class Grouped:
    """What an iteration made of rollouts: its own, replayed ones, logged ones."""

    iteration: int
    group: Artifact
    train: Artifact | None
    sources: frozenset[str]
    """Digests of the rollout artifacts that took part."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Errors of damaged tables of a run as errors for people.

    Raises:
        DataError: naming the run folder.
    """
    try:
        yield
    except MmgrpoError:
        raise
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{folder}: a table of its rollouts or groups cannot be read ({first}). `mmgrpo verify {folder}` names the "
            "file: restore it, or delete its artifact folder and run again."
        ) from None


def rolled(run: OpenRun) -> list[Rolled]:
    """The rollout artifacts that run.json names, as far as they are finished: logged ones first, then by iteration."""
    found: list[Rolled] = []
    if "ingest" in run.state.setup and (logged := run.store.find("ingest", run.state.setup["ingest"])):
        found.append(Rolled(None, logged))
    for index, keys in enumerate(run.state.iterations):
        names = [name for name in sorted(keys) if stage_of(name) in {"rollout", "teacher"}]
        found += [Rolled(index, artifact) for name in names if (artifact := run.stage(index, name))]
    return found


def grouped(run: OpenRun) -> list[Grouped]:
    """The groups of the run by iteration, as far as they are finished."""
    found = []
    for index in range(len(run.state.iterations)):
        if (group := run.stage(index, "group")) is not None:
            inputs = frozenset(group.manifest.payload["inputs"].values())
            found.append(Grouped(index, group, run.stage(index, "train"), inputs))
    return found


def scan(artifact: Artifact, spec: TableSpec) -> pl.LazyFrame:
    """A table of an artifact, lazily; empty where the artifact has none.

    Raises:
        ContractError: naming the file, when its footer is not that of such a table.
    """
    files = table_files(artifact, spec)
    for path in files:
        preflight(path, spec)
    empty = pl.from_arrow(spec.schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    # The schema is given, or a first file in which a column is null throughout would decide its type.
    return pl.scan_parquet(files, schema=empty.schema) if files else empty.lazy()
