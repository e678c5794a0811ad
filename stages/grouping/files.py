"""Which files of which artifacts are read, and whether they are still what their manifest says."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from schemas.canonical import digest_file
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
    """The files of every artifact whose role is `rollout` or `rollout.NAME`, in order of role, bytes checked.

    Raises:
        DataError: naming the file that is missing or differs from its manifest.
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
        check_bytes(artifact, [*files.rollouts, *files.calls])
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


def check_bytes(artifact: Artifact, files: Iterable[Path]) -> None:
    """Compare size and sha256 of files with the artifact's manifest.

    Raises:
        DataError: naming the first file that is not what the manifest says.
    """

    def problem(path: Path) -> str | None:
        entry = artifact.manifest.files[path.relative_to(artifact.path).as_posix()]
        if not path.exists():
            return f"{path} is gone, but its manifest lists it"
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{path} has {size} bytes, its manifest says {entry.bytes}"
        return None if digest_file(path) == entry.sha256 else f"{path} has other bytes than its manifest says"

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(problem, files):
            if found:
                raise DataError(f"{found}: it was changed after it was written. Restore it, or delete the artifact.")
