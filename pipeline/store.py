"""The store: finished artifacts, and where new ones are begun.

An artifact is the folder `<root>/<stage>/<key[:16]>`. It exists if and only if its manifest does. While a stage runs,
its committed shards lie in `.<key[:16]>.partial` beside it; `pipeline.partial` knows how that becomes an artifact.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.locks import hold
from pipeline.manifests import MANIFEST, read_manifest
from pipeline.metering import Meter
from pipeline.partial import PartialArtifact, Reporter
from pipeline.remote.attached import mirror_of
from schemas.errors import DataError
from stages.contract import Artifact


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
        found = artifact.manifest
        if (found.stage, found.key) != (stage, key):
            where = f"{folder / MANIFEST}: its key is"
            raise DataError(f"{where} {found.stage}/{found.key[:16]}…, expected {stage}/{key[:16]}…")
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


def _refuse_bare(folder: Path) -> None:
    """What has lost its manifest is no artifact, and nothing may be put in its place without a word."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise DataError(
            f"{folder}: its {MANIFEST} is missing, so it is no artifact. Restore that, or delete the folder and run "
            "again: it will be made anew."
        )
