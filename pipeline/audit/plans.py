"""What was trained on: the members and their order in steps, from the groups once more.

Neither micro-batches, nor processes, nor devices are part of the plan, so it comes out the same on any machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pipeline.audit.check import Check, Run, each
from pipeline.audit.recorded import CannotRedoError, Recorded
from pipeline.audit.tables import read, rows_differ, values_differ
from pipeline.launching.nothing import KeepsNothing
from pipeline.manifests import MANIFEST
from schemas.errors import MmgrpoError
from schemas.execution import Execution
from schemas.parquet import as_arrow
from schemas.table import TableSpec
from schemas.training import BATCH_PLAN, TRAINED
from stages import train
from stages.contract import Artifact
from stages.training.rejection import params_of

if TYPE_CHECKING:
    from stages.training.members import Members

_LATER = ("ended before the first step", "no weight moved")
"""How a reason for training nothing begins that only training itself could tell."""


class _Counts(KeepsNothing):
    """The `Out` of a stage that is only asked what it would train on."""

    def __init__(self, folder: str) -> None:
        super().__init__(Path(folder))
        self.excluded: dict[str, int] = {}

    def exclude(self, reason: str, count: int = 1) -> None:
        if count:
            self.excluded[reason] = self.excluded.get(reason, 0) + count


def made_again(run: Run) -> Check:
    """The members that every train stage admitted, and which of its groups made which step."""

    def look(artifact: Artifact) -> Iterator[str]:
        job = run.job(artifact)
        _can_be_had(job)
        with tempfile.TemporaryDirectory(prefix="mmgrpo-audit-") as folder:
            out = _Counts(folder)
            members, reason = train.admitted(job.inputs, job.recipe, Execution(), out)
        told = artifact.manifest
        if told.metrics["trained"]:
            yield from _trained(job, members)
        elif not told.metrics["reason"].startswith(_LATER) and told.metrics["reason"] != reason:
            yield f"{artifact.path / MANIFEST}: nothing was trained since {told.metrics['reason']}; found now: {reason}"
        counts = values_differ({"excluded": told.excluded}, {"excluded": out.excluded})
        yield from (f"{artifact.path / MANIFEST}: {line}" for line in counts)

    return each(run, Check("batch plans made again from the groups are the same"), ("train",), look)


def _can_be_had(job: Recorded) -> None:
    """What the members are read with: the base's tokenizer, and the rules of rejection fine-tuning."""
    from stages.training.build import checked_base

    params = job.inputs.params
    if "rejection" in params and params_of(job.recipe, int(params["iteration"])) != {"rejection": params["rejection"]}:
        raise CannotRedoError("made with other rules of rejection fine-tuning than run.json has")
    try:
        checked_base(job.inputs, job.recipe, Execution())
    except MmgrpoError as error:
        raise CannotRedoError(str(error)) from None


def _trained(job: Recorded, members: Members) -> Iterator[str]:
    from stages.training.members import trained_rows
    from stages.training.plan import plan_rows

    artifact = job.artifact
    plan = plan_rows(train.planned(job.inputs, job.recipe, members))
    for spec, rows in ((BATCH_PLAN, plan), (TRAINED, trained_rows(members))):
        path = artifact.file(f"{spec.name}.parquet")
        if path.name not in artifact.manifest.files:
            yield f"{path}: missing: the stage makes it"
            continue
        yield from (f"{path}: {line}" for line in rows_differ(read(path, spec), _frame(rows, spec), spec.key))
    groups = len(set(members.group.tolist()))
    figures = values_differ(artifact.manifest.metrics, {"members": members.units, "groups": groups})
    yield from (f"{artifact.path / MANIFEST}: {line}" for line in figures)


def _frame(rows: list[dict[str, Any]], spec: TableSpec) -> pl.DataFrame:
    frame = pl.from_arrow(as_arrow(rows, spec, spec.name))
    assert isinstance(frame, pl.DataFrame)
    return frame
