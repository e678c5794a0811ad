"""The store: the only place that knows how an artifact comes to be.

An artifact is the folder `<root>/<stage>/<key[:16]>`. It exists if and only if its manifest does. While a stage runs,
its committed shards lie in `.<key[:16]>.partial` beside it; the manifest is written last, then the folder is renamed.
A process killed at any point leaves a finished artifact or a partial one that the next run takes up.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from pipeline.journal import Journal
from pipeline.locks import hold
from pipeline.metering import Meter
from pipeline.remote.attached import mirror_of
from schemas.canonical import canonical_json, digest, digest_file
from schemas.errors import DataError, LockedError, StageError
from schemas.figures import figures_problem
from schemas.foreign import lies_within, read_json
from schemas.manifest import TELEMETRY, FileEntry, Manifest, artifact_digest
from schemas.table import NAME_KEY, VERSION_KEY
from schemas.telemetry import ATTEMPTS, next_attempt, read_attempts, sum_attempts, write_attempt
from stages.contract import Artifact

MANIFEST = "manifest.json"
SCRATCH = ".scratch"
JOURNAL = ".committed"
"""In the scratch folder: which shards were committed."""
TELEMETRY_FILE = f"{TELEMETRY}telemetry.json"
BEAT_S = 5.0
"""How often a process notes what it has spent on an artifact: what a kill can hide."""


class Reporter(Protocol):
    """Where progress goes."""

    def update(self, done: int, total: int, unit: str, figures: dict[str, float | str]) -> None:
        """Show how far the current stage is."""


class Store:
    """Artifacts below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, stage: str, key: str) -> Path:
        """Where the artifact of a key is, or would be."""
        return self.root / stage / key[:16]

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact of a key, or None.

        Raises:
            DataError: when its manifest is damaged or belongs to another key.
        """
        folder = self.folder(stage, key)
        if (mirror := mirror_of(folder)) is not None:
            artifact = mirror.artifacts.find(folder)
        else:
            there = (folder / MANIFEST).exists()
            artifact = Artifact(folder, read_manifest(folder / MANIFEST)) if there else None
        if artifact is None:
            return None
        if artifact.manifest.key != key:
            raise DataError(f"{folder / MANIFEST}: its key is {artifact.manifest.key[:16]}…, expected {key[:16]}…")
        return artifact

    def open(self, stage: str, key: str) -> Artifact:
        """The finished artifact of a key.

        Raises:
            DataError: when it is not there.
        """
        artifact = self.find(stage, key)
        if artifact is None:
            raise DataError(f"{self.folder(stage, key)}: the {stage} artifact is missing. `mmgrpo run` makes it again.")
        return artifact

    def place(self, run: Path) -> str:
        """Where a run's folder is, seen from that of the store: "." where the store is the run's own."""
        return Path(os.path.relpath(run.resolve(), self.root.resolve().parent)).as_posix()

    def all(self) -> list[tuple[str, Path]]:
        """Every finished artifact: (stage, folder), sorted. Where they lie at an address, all are brought here."""
        if (mirror := mirror_of(self.root)) is not None:
            return [(folder.parent.name, folder) for folder in mirror.artifacts.bring_all(self.root)]
        return [(path.parent.parent.name, path.parent) for path in sorted(self.root.glob(f"*/*/{MANIFEST}"))]

    def unfinished(self, stage: str = "*") -> list[Path]:
        """Folders of artifacts that were begun and are not finished, sorted. `stage`: only of this one."""
        return sorted(path for path in self.root.glob(f"{stage}/.*.partial") if path.is_dir())

    @contextmanager
    def idle(self, partial: Path) -> Iterator[None]:
        """Hold the lock of an unfinished artifact that nobody works on.

        Raises:
            LockedError: when another process does.
        """
        with hold(partial.with_suffix(".lock"), f"artifact {partial.parent.name}/{partial.stem[1:]}"):
            yield

    def give_up(self, partial: Path) -> None:
        """Delete an unfinished artifact whose lock this process holds."""
        final = partial.with_name(partial.stem[1:])
        shutil.rmtree(partial)
        if (mirror := mirror_of(final)) is not None:
            mirror.artifacts.drop(final)

    @contextmanager
    def begin(self, stage: str, key: str, reporter: Reporter, meter: Meter | None = None) -> Iterator[PartialArtifact]:
        """Start or take up the artifact of a key, holding its lock. What the meter counts becomes an attempt of it.

        Raises:
            LockedError: when another process is making it.
            DataError: when its folder is there without a manifest: an artifact that somebody has harmed.
        """
        (self.root / stage).mkdir(parents=True, exist_ok=True)
        partial = self.root / stage / f".{key[:16]}.partial"
        final = self.folder(stage, key)
        if mirror_of(final) is None:
            _refuse_bare(final)
        with hold(self.root / stage / f".{key[:16]}.lock", f"artifact {stage}/{key[:16]}"):
            partial.mkdir(exist_ok=True)
            mirror = mirror_of(final)
            taken = mirror.artifacts.take_up(final, partial) if mirror is not None else []
            out = PartialArtifact(partial, final, reporter, meter, taken)
            try:
                yield out
            finally:
                out.leave()


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
        there = _files(partial)
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
        return {name: path for name, path in _files(self._partial).items() if name.startswith(prefix)}

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
        kept = {name: path for name, path in _files(self._partial).items() if not name.startswith(tuple(self._dropped))}
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
        for name, path in _files(self._partial).items():
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


def _refuse_bare(folder: Path) -> None:
    """What has lost its manifest is no artifact, and nothing may be put in its place without a word."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise DataError(
            f"{folder}: its {MANIFEST} is missing, so it is no artifact. Restore that, or delete the folder and run "
            "again: it will be made anew."
        )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check its own digest and key.

    Raises:
        DataError: naming the file, when it cannot be read or does not match its digests, and the figure that is of
            another kind than it must be.
    """
    try:
        manifest = Manifest.model_validate(read_json(path))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a manifest of this release ({str(error).splitlines()[0]})") from None
    if manifest.manifest_digest != manifest.own_digest():
        raise DataError(f"{path}: its content does not give its own digest: it was changed after it was written")
    if manifest.key != digest(manifest.payload):
        raise DataError(f"{path}: its payload does not give its key {manifest.key[:16]}…")
    if problem := figures_problem(manifest.stage, manifest.metrics, manifest.provenance):
        raise DataError(
            f"{path}: {problem}. No stage writes that: somebody made it up. Restore the file, or delete {path.parent} "
            "and run again: it will be made anew"
        )
    return manifest


def check_files(folder: Path, manifest: Manifest) -> list[str]:
    """Everything in an artifact folder that does not match its manifest, as messages that name the file."""
    found = _files(folder)
    problems = [f"{folder / name}: not listed in the manifest" for name in found if name not in manifest.files]

    def problem(name: str) -> str | None:
        entry = manifest.files[name]
        if name not in found:
            return f"{folder / name}: listed in the manifest but missing"
        if not _is_plain(folder, found[name]):
            return f"{folder / name}: a link, a pipe or a device, where the manifest lists a file"
        if (size := found[name].stat().st_size) != entry.bytes:
            return f"{folder / name}: {size} bytes, expected {entry.bytes}"
        if digest_file(found[name]) != entry.sha256:
            return f"{folder / name}: its bytes changed (sha256 differs from the manifest)"
        return None

    with ThreadPoolExecutor(2, thread_name_prefix="digest") as pool:  # hashing leaves the interpreter free
        problems += filter(None, pool.map(problem, manifest.files))
    if manifest.digest != artifact_digest(manifest.files):
        problems.append(f"{folder / MANIFEST}: the artifact digest does not follow from its files")
    return problems


def _files(folder: Path) -> dict[str, Path]:
    """All files of an artifact by relative POSIX name, without scratch and manifest."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    return {name: paths[name] for name in sorted(paths) if name != MANIFEST and not name.startswith(f"{SCRATCH}/")}


def _is_plain(folder: Path, path: Path) -> bool:
    """Whether a file lies in a folder itself: what a link leads to is nobody's to vouch for, and a pipe has no end."""
    within = [path, *path.parents][: len(path.relative_to(folder).parts)]
    return stat.S_ISREG(path.lstat().st_mode) and not any(part.is_symlink() for part in within)


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
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}). Delete this file and run again; it holds timings only.") from None
    return sums
