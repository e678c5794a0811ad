"""Which files of which artifacts are read. Whether their bytes are what the manifest says, the runner has checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DataError
from stages.contract import Artifact, Inputs

OWN = "rollout"
"""The role of this iteration's own rollouts. Others (teachers, snapshots, replay) are called `rollout.NAME`."""


@dataclass(frozen=True)
class TableFiles:
    """The Parquet files of one artifact's rollouts and invocations.

    Attributes:
        rollouts: files of the rollouts table, in order of name.
        calls: files of the invocations table.
        measure: whether the length of every call has to be read, because no engine of ours kept it in bounds.
    """

    rollouts: tuple[Path, ...]
    calls: tuple[Path, ...]
    measure: bool = False


def input_files(inputs: Inputs) -> list[TableFiles]:
    """The files of every artifact whose role is `rollout` or `rollout.NAME`, in order of role.

    Raises:
        DataError: for an artifact that is not there or is none of rollouts.
    """
    roles = sorted(role for role in inputs.artifacts if role == OWN or role.startswith(f"{OWN}."))
    if OWN not in roles:
        raise DataError(
            f"the group stage needs an artifact '{OWN}'; got {', '.join(sorted(inputs.artifacts)) or 'none'}"
        )
    found = []
    for role in roles:
        artifact = inputs[role]
        files = TableFiles(
            _table(artifact, "rollouts"), _table(artifact, "invocations"), role != OWN or artifact.manifest.stage != OWN
        )
        found.append(files)
    return found


def _table(artifact: Artifact, name: str) -> tuple[Path, ...]:
    """`name.parquet`, or else every Parquet file below the folder `name`."""
    if f"{name}.parquet" in artifact.manifest.files:
        return (artifact.file(f"{name}.parquet"),)
    files = tuple(path for path in artifact.files(f"{name}/") if path.suffix == ".parquet")
    if not files:
        raise DataError(f"{artifact.path} has neither {name}.parquet nor {name}/*.parquet: not a rollout artifact")
    return files
