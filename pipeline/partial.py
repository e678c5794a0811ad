"""An artifact in the making.

Its committed shards lie in a folder of its own; the manifest is written last, then the folder is renamed. A process
killed at any point leaves a finished artifact, or one in the making that the next run takes up.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Strict, TypeAdapter, ValidationError

from pipeline.journal import Journal
from pipeline.manifests import MANIFEST, SCRATCH, files_of, read_manifest
from pipeline.metering import Meter
from pipeline.remote.attached import mirror_of
from schemas.canonical import canonical_json, digest_file
from schemas.errors import DataError, LockedError, StageError
from schemas.foreign import lies_within, read_json
from schemas.manifest import TELEMETRY, FileEntry, Manifest, artifact_digest
from schemas.shapes import Number
from schemas.table import NAME_KEY, VERSION_KEY
from schemas.telemetry import ATTEMPTS, next_attempt, read_attempts, sum_attempts, write_attempt
from stages.contract import Artifact

JOURNAL = ".committed"
"""In the scratch folder: which shards were committed."""
TELEMETRY_FILE = f"{TELEMETRY}telemetry.json"
_SUMS = TypeAdapter(Annotated[dict[str, Number], Strict()])
BEAT_S = 5.0
"""How often a process notes what it has spent on an artifact: what a kill can hide."""


class Reporter(Protocol):
    """Where progress goes."""

    def update(self, done: int, total: int, unit: str, figures: dict[str, float | str]) -> None:
        """Show how far the current stage is."""


class PartialArtifact:
    """An artifact in the making: the `Out` of a stage."""

    def __init__(
        self,
        partial: Path,
        final: Path,
        reporter: Reporter,
        meter: Meter | None = None,
        taken: Collection[str] = (),
    ) -> None:
        """`taken` are the shards that were brought here from another machine's work, checked as they came."""
        self._partial, self._final, self._reporter, self._meter = partial, final, reporter, meter
        self._mirror = mirror_of(final)
        self._attempt, self._noted = next_attempt(partial), time.monotonic()
        self._excluded: dict[str, int] = {}
        self._dropped: set[str] = set()
        self.scratch.mkdir(exist_ok=True)
        self._journal = Journal(self.scratch / JOURNAL)
        there = files_of(partial)
        if self._journal.path.exists():
            fixed = {name: path for name, path in there.items() if not name.startswith(TELEMETRY) and name not in taken}
            self._journal.check(fixed)
            self._journal.enter({name: there[name] for name in taken})
        else:  # nothing yet, or begun by a release that kept no journal
            self._journal.enter(there)

    @property
    def scratch(self) -> Path:
        """Folder for work in progress; it survives a kill and is gone once the artifact is complete."""
        return self._partial / SCRATCH

    def commit_shard(self, name: str, file: Path) -> None:
        """Move a finished file into the artifact: synced to disk, then renamed."""
        target = self._partial / _safe(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sync(file)
        self._journal.enter({name: file})
        file.replace(target)
        _sync(target.parent)
        if self._mirror is not None:
            self._mirror.artifacts.send_shard(self._final, name, target)
        self.beat()

    def committed(self, prefix: str = "") -> dict[str, Path]:
        """Committed shards by name."""
        return {name: path for name, path in files_of(self._partial).items() if name.startswith(prefix)}

    def drop(self, prefix: str) -> None:
        """Leave the shards below `prefix` out of the finished artifact."""
        self._dropped.add(prefix)

    def exclude(self, reason: str, count: int = 1) -> None:
        """Count rows left out, by reason."""
        if count:
            self._excluded[reason] = self._excluded.get(reason, 0) + count

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """Pass progress on."""
        self._reporter.update(done, total, unit, figures)
        self.beat()

    def telemetry(self, **figures: float) -> None:
        """Add to the telemetry, which lives on through kills."""
        sums = read_sums(self._partial / TELEMETRY_FILE)
        self._set(**{name: sums.get(name, 0.0) + value for name, value in figures.items()})

    def _set(self, **figures: float) -> None:
        path = self._partial / TELEMETRY_FILE
        path.parent.mkdir(exist_ok=True)
        temporary = self.scratch / "telemetry.tmp"
        temporary.write_text(canonical_json(read_sums(path) | figures) + "\n", encoding="utf-8")
        _sync(temporary)
        temporary.replace(path)

    def beat(self) -> None:
        """Note what was spent, if some seconds have passed since the last note."""
        if time.monotonic() - self._noted > BEAT_S:
            if self._mirror is not None:
                self._mirror.guard(self._final)
            self._note()

    def _note(self, *, finished: bool = False) -> None:
        """Write what this attempt has taken so far, in place of what was written of it before."""
        if self._meter is not None:
            file = write_attempt(self._partial, self._attempt, self._meter.read(finished=finished), self.scratch)
            if self._mirror is not None and not finished:
                self._mirror.artifacts.send_note(self._final, file)
            self._noted = time.monotonic()

    def leave(self) -> None:
        """Note what an attempt has taken that did not finish the artifact. Where there is a manifest, it has that."""
        with suppress(OSError, StageError, LockedError):  # where it cannot be kept, an error is on its way already
            if self.scratch.is_dir() and not (self._partial / MANIFEST).exists():
                self._note()

    def finish(
        self,
        *,
        stage: str,
        version: int,
        key: str,
        payload: dict[str, Any],
        metrics: dict[str, Any],
        provenance: dict[str, Any],
    ) -> Artifact:
        """Write the manifest, make everything durable, and rename the folder to its final name."""
        self._note(finished=True)
        if attempts := read_attempts(self._partial):
            self._set(**sum_attempts(attempts))
        kept = {
            name: path for name, path in files_of(self._partial).items() if not name.startswith(tuple(self._dropped))
        }
        self._refuse_strays(kept)
        entries = {name: _entry(path) for name, path in kept.items()}
        manifest = Manifest(
            stage=stage,
            stage_version=version,
            key=key,
            payload=payload,
            digest=artifact_digest(entries),
            files=entries,
            metrics=metrics,
            excluded=dict(sorted(self._excluded.items())),
            provenance=provenance,
        ).sealed()
        draft = self.scratch / MANIFEST
        draft.write_text(canonical_json(manifest.model_dump(mode="json")) + "\n", encoding="utf-8")
        _sync(draft)
        draft.replace(self._partial / MANIFEST)
        return self._complete(manifest)

    def _refuse_strays(self, kept: dict[str, Path]) -> None:
        """What no stage committed is no part of an artifact."""
        known = {*self._journal.digests(), TELEMETRY_FILE}
        if strays := [path for name, path in kept.items() if name not in known and not name.startswith(ATTEMPTS)]:
            more = f" (and {len(strays) - 1} more)" if len(strays) > 1 else ""
            raise DataError(
                f"{strays[0]}{more}: a stray file in an artifact that was being made: no stage committed it. Take it "
                "away, or delete the whole .partial folder that it is in, and run again."
            )

    def discard(self) -> None:
        """Give the artifact up: nothing of it stays."""
        shutil.rmtree(self._partial)
        if self._mirror is not None:
            self._mirror.artifacts.drop(self._final)

    def taken_up(self) -> Artifact | None:
        """The artifact, when an earlier process was killed after it wrote the manifest and before the last rename."""
        path = self._partial / MANIFEST
        return self._complete(read_manifest(path)) if path.exists() else None

    def _complete(self, manifest: Manifest) -> Artifact:
        """From a partial folder with a manifest to the artifact: may be killed and repeated at any point."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for name, path in files_of(self._partial).items():
            if name not in manifest.files:
                path.unlink()
        folders = sorted((path for path in self._partial.rglob("*") if path.is_dir()), reverse=True)
        for folder in folders:
            if any(folder.iterdir()):
                _sync(folder)
            else:
                folder.rmdir()
        _sync(self._partial)
        if self._mirror is not None:
            if (first := self._mirror.artifacts.publish(self._partial, self._final, manifest)) is not None:
                shutil.rmtree(self._partial)
                return first
            shutil.rmtree(self._final, ignore_errors=True)  # of an artifact that was deleted at the address
        self._partial.replace(self._final)
        _sync(self._final.parent)
        return Artifact(self._final, manifest)


def _entry(path: Path) -> FileEntry:
    size, sha = path.stat().st_size, digest_file(path)
    if path.suffix != ".parquet":
        return FileEntry(sha256=sha, bytes=size)
    try:
        footer = pq.read_metadata(path)
        table, version = footer.metadata[NAME_KEY].decode(), int(footer.metadata[VERSION_KEY])
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        reason = "no table of ours" if isinstance(error, (KeyError, TypeError)) else str(error).splitlines()[0]
        raise DataError(
            f"{path}: a stray or damaged file in an artifact that was being made ({reason}). Take it away, or delete "
            "the whole .partial folder that it is in, and run again."
        ) from None
    return FileEntry(sha256=sha, bytes=size, rows=footer.num_rows, table=table, schema_version=version)


def _safe(name: str) -> str:
    """A shard name: relative, without dots that climb, so that nothing is ever written outside the artifact."""
    assert lies_within(name), name
    assert name != MANIFEST, name
    return name


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_sums(path: Path) -> dict[str, float]:
    """Telemetry so far; empty where there is none.

    Raises:
        DataError: naming the file, when it is damaged.
    """
    if not path.exists():
        return {}
    try:
        sums: dict[str, float] = read_json(path)
        _SUMS.validate_python(sums)
    except (OSError, ValueError) as error:
        known = error.errors(include_url=False) if isinstance(error, ValidationError) else []
        said = ", ".join([*map(str, known[0]["loc"]), known[0]["msg"]]) if known else error
        raise DataError(
            f"{path}: expected a JSON object of numbers ({said}). Restore it. In a .partial folder, delete this "
            "file instead and run again: it holds timings only"
        ) from None
    return sums
