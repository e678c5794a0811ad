"""The manifest: an artifact exists if and only if its manifest does."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from schemas.canonical import digest, digest_files
from schemas.foreign import lies_within

TELEMETRY = "telemetry/"
"""Files below this folder (timings, cost) are listed and verified, but are no part of an artifact's digest."""


class FileEntry(BaseModel):
    """One file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sha256: str
    bytes: int
    rows: int | None = None
    table: str | None = None
    schema_version: int | None = None


class Manifest(BaseModel):
    """What an artifact is, what it was made from, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    stage: str
    stage_version: int
    key: str
    """sha256 of `payload`: {stage, stage version, recipe slice, params, input digests}."""
    payload: dict[str, Any]
    digest: str
    """sha256 over the sorted (path, sha256) of all files outside telemetry/."""
    files: dict[str, FileEntry]
    metrics: dict[str, Any]
    excluded: dict[str, int]
    """Rows left out, by reason."""
    provenance: dict[str, Any]
    """git commit and dirty hash, package versions, command line, UTC times, cost. Not part of any digest but this
    manifest's own."""
    manifest_digest: str = ""

    @field_validator("files")
    @classmethod
    def _lie_within(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        if leading_out := [name for name in files if not lies_within(name)]:
            raise ValueError(f"the file name {leading_out[0]!r} is not one of a file within the artifact")
        return files

    def sealed(self) -> Manifest:
        """This manifest with its own digest filled in."""
        return self.model_copy(update={"manifest_digest": self.own_digest()})

    def own_digest(self) -> str:
        """Digest of everything in the manifest but this digest itself."""
        return digest(self.model_dump(exclude={"manifest_digest"}))


def artifact_digest(files: dict[str, FileEntry]) -> str:
    """The digest of an artifact from its file entries; telemetry is left out."""
    return digest_files({path: entry.sha256 for path, entry in files.items() if not path.startswith(TELEMETRY)})
