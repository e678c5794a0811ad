"""Groups: made again from their rollouts, and every call of those rollouts in them or excluded with a reason."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from pipeline.audit.check import Check, Run, each
from pipeline.audit.tables import files_differ, read, values_differ
from pipeline.manifests import MANIFEST
from pipeline.progress import Reporter
from schemas.execution import Execution
from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Artifact
from stages.grouping.files import input_files

_CALL = ("rollout_id", "call_index")


def made_again(run: Run) -> Check:
    """Every group artifact from its rollouts, in a folder for the time being."""

    def look(artifact: Artifact) -> Iterator[str]:
        job = run.job(artifact)
        with tempfile.TemporaryDirectory(prefix="mmgrpo-audit-") as folder:
            again = job.again(Path(folder), Execution(), Reporter("off"))
            yield from files_differ(artifact, again, (GROUPS, EXCLUDED, SUMMARY))[0]
            told = [(artifact.manifest.metrics, again.manifest.metrics)]
            told.append(({"excluded": artifact.manifest.excluded}, {"excluded": again.manifest.excluded}))
            for was, now in told:
                yield from (f"{artifact.path / MANIFEST}: {line}" for line in values_differ(was, now))

    return each(run, Check("groups made again from their rollouts are the same"), ("group",), look)


def accounted(run: Run) -> Check:
    """Every call of the rollouts that groups were made of is a member or excluded, and nothing else is."""

    def look(artifact: Artifact) -> Iterator[str]:
        calls = _calls(run, artifact)
        members = read(artifact.file("groups.parquet"), GROUPS, _CALL).unique()
        excluded = read(artifact.file("excluded.parquet"), EXCLUDED, _CALL)
        either = pl.concat([members, excluded])
        wrong = {
            "both members and excluded": members.join(excluded, on=_CALL, how="semi", nulls_equal=True),
            "of no rollout that they were made of": either.join(calls, on=_CALL, how="anti", nulls_equal=True),
            "neither members nor excluded": calls.join(either, on=_CALL, how="anti", nulls_equal=True),
        }
        for words, found in wrong.items():
            if found.height:
                row = ", ".join(f"{name}={value}" for name, value in found.row(0, named=True).items())
                yield f"{artifact.file('groups.parquet')}: {found.height} calls are {words}, for example {row}"

    return each(run, Check("groups account for every call of their rollouts"), ("group",), look)


def _calls(run: Run, artifact: Artifact) -> pl.DataFrame:
    """(rollout_id, call_index) of every call, and of every rollout without one, which has a null."""
    parts = []
    for files in input_files(run.job(artifact).inputs):
        calls = pl.concat([read(path, INVOCATIONS, _CALL) for path in files.calls])
        rollouts = pl.concat([read(path, ROLLOUTS, ["rollout_id"]) for path in files.rollouts])
        parts += [calls, rollouts.join(calls, on="rollout_id", how="left").filter(pl.col("call_index").is_null())]
    return pl.concat(parts)
