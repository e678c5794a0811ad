"""Tombstones: what is left of an artifact whose bytes were deleted by request.

They say who asked, when and why, and never what it was.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.files import replace_file
from pipeline.manifests import MANIFEST, read_manifest
from pipeline.remote.attached import mirror_of
from schemas.canonical import canonical_json, digest
from schemas.errors import DataError
from schemas.foreign import read_json
from schemas.manifest import Manifest
from stages.contract import Artifact

NAME = "tombstone.json"


class Tombstone(BaseModel):
    """Lies beside the manifest of an artifact whose tables are gone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    artifact: str
    """Digest of the artifact that was."""
    traces: tuple[str, ...]
    """Digests of the ids of the traces that were to be forgotten."""
    by: str
    """Who asked: the account that ran the command."""
    at: str
    """When, UTC."""
    why: str
    successor: str | None
    """Folder of the snapshot without them; null where nothing was left."""
    digest: str = ""

    def own_digest(self) -> str:
        """Digest of everything but this digest itself."""
        return digest(self.model_dump(exclude={"digest"}, mode="json"))

    def __str__(self) -> str:
        after = f"; {self.successor} is its successor" if self.successor else ""
        traces = f"{len(self.traces)} trace{'' if len(self.traces) == 1 else 's'}"
        return f"deleted by request of {self.by} on {self.at} to forget {traces} ({self.why}){after}"


def bury(folder: Path, tombstone: Tombstone) -> None:
    """Put a tombstone into an artifact's folder, then delete everything else but its manifest."""
    sealed = tombstone.model_copy(update={"digest": tombstone.own_digest()})
    replace_file(folder / NAME, canonical_json(sealed.model_dump(mode="json")) + "\n")
    if (mirror := mirror_of(folder)) is not None:
        mirror.artifacts.bury(folder)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif path.name not in (NAME, MANIFEST) or path.parent != folder:
            path.unlink()


def tombstone_of(folder: Path) -> Tombstone | None:
    """The tombstone in an artifact's folder, if there is one.

    Raises:
        DataError: when it is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        found = Tombstone.model_validate(read_json(path))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a tombstone of this release ({str(error).splitlines()[0]})") from None
    if found.digest != found.own_digest():
        raise DataError(f"{path}: its content does not give its own digest: it was changed after it was written")
    return found


def refuse_deleted(artifact: Artifact) -> None:
    """Stop where an artifact's bytes are needed that were deleted.

    Raises:
        DataError: saying who deleted them, why, and what takes their place.
    """
    if (found := tombstone_of(artifact.folder)) is not None:
        raise DataError(f"{artifact.folder}: {found}. Name that one in the recipe, and run again")


def problems_of(folder: Path, manifest: Manifest) -> list[str]:
    """What does not match in the folder of a deleted artifact: everything but the manifest must be gone."""
    found = tombstone_of(folder)
    assert found is not None
    left = [path for path in folder.rglob("*") if path.is_file() and path.name not in (NAME, MANIFEST)]
    problems = [f"{path}: still there, although its artifact was deleted by request" for path in left]
    if found.artifact != manifest.digest:
        problems.append(f"{folder / NAME}: it is of the artifact {found.artifact[:12]}, this one is another")
    return problems


def forgotten_in(snapshots: Path) -> frozenset[str]:
    """Digests of the ids of all traces that were to be forgotten, by the tombstones in a folder of snapshots.

    And by the successors there: only those say so of snapshots that lay elsewhere, such as in a run.
    """
    found: set[str] = set()
    for path in snapshots.glob(f"*/*/{NAME}"):
        tombstone = tombstone_of(path.parent)
        found.update(tombstone.traces if tombstone else ())
    for path in snapshots.glob(f"*/*/{MANIFEST}"):
        found.update(read_manifest(path).payload["params"].get("forgotten", ()))
    return frozenset(found)


def trace_digest(trace: str) -> str:
    """What a tombstone knows a trace by."""
    return digest(["trace", trace])
