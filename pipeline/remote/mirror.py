"""The mirror of an address: its files here as they are there, its artifacts brought when they are needed.

Layout there, the run's own but for the files of artifacts, which lie below a folder named by their digest, so that two
writers of one artifact never write the same object, and the manifest, which one of them creates, says whose count:

    run.json, decisions/…                       replaced or created only where they are as they were when read
    artifacts/STAGE/KEY/manifest.json           created once, last
    artifacts/STAGE/KEY/SHA256[:16]/NAME        shards as they are committed, then the other files
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.remote.artifacts import Artifacts, artifact_of, is_artifact
from pipeline.remote.lease import Lease
from pipeline.remote.storage import Stat, Storage
from pipeline.terminal import say
from schemas.canonical import digest_file
from schemas.errors import LockedError, StageError

INDEX = ".mirror.json"
"""In each mirrored folder: the tag and digest of every file of it that was as it is there."""
LOCAL = ("artifacts", "trackers")
"""Folders of a run that are not kept equal file by file."""


class Mirror:
    """All mirrored folders of one bucket or host."""

    def __init__(self, root: Path, storage: Storage) -> None:
        self.root, self.storage = root, storage
        self.artifacts = Artifacts(root, storage, self.guard, self._known)
        self._tags: dict[str, str] = {}
        self._fresh: set[Path] = set()
        self._leases: dict[Path, Lease] = {}
        self._probed = False

    def __str__(self) -> str:
        return str(self.storage)

    def key(self, path: Path) -> str:
        """The key of a path's object."""
        return os.path.relpath(_plain(path), self.root)

    def refresh(self, folder: Path) -> None:
        """Make the files of a folder what they are at the address, and learn which artifacts are there.

        Where another process of this machine writes the folder, its files here are as new as they get, and stay.
        """
        artifact = next((path for path in (folder, folder.parent) if is_artifact(path)), None)
        found = self.storage.list(self.key(artifact or folder))
        self.artifacts.learn(artifact or folder, found)
        if artifact is not None:
            self.artifacts.bring_whole(artifact)
            return
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".refresh.lock"):
            if folder not in self._leases and _busy(folder / ".lock"):
                self.artifacts.trust(folder)
                self._fresh.add(folder)
                return
            self._fresh.add(folder)
            own = {key: stat for key, stat in found.items() if artifact_of(folder, self.root / key) is None}
            self._replace_files(folder, own)

    def _replace_files(self, folder: Path, found: dict[str, Stat]) -> None:
        known: dict[str, list[str]] = _read_index(folder / INDEX)
        index: dict[str, list[str]] = {}
        for key, stat in sorted(found.items()):
            path, name = self.root / key, key.removeprefix(f"{self.key(folder)}/")
            if any(part.startswith(".") for part in name.split("/")):
                continue
            here = digest_file(path) if path.is_file() else None
            if known.get(name) != [stat.tag, here]:
                self._fetch(key, path)
                here = digest_file(path)
            else:
                self._tags[key] = stat.tag
            index[name] = [self._tags[key], str(here)]
        for path in _own_files(folder):
            if path.relative_to(folder).as_posix() not in index:
                path.unlink()
                self._tags.pop(self.key(path), None)
        _write(folder / INDEX, json.dumps(index, sort_keys=True, indent=0).encode())

    def _fetch(self, key: str, path: Path) -> None:
        """Bring one file, or take it away here where it is gone there."""
        answer = self.storage.read(key)
        if answer is None:
            path.unlink(missing_ok=True)
            self._tags.pop(key, None)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, answer[0])
        self._tags[key] = answer[1]

    def pull(self, path: Path, *, anew: bool) -> None:
        """Bring one file as it is now, unless it lies in a run whose lease is held: nobody else writes there.

        Args:
            path: the file.
            anew: also where its folder was brought up to date before.
        """
        path = _plain(path)
        if not self._known(path) and (anew or not any(path.is_relative_to(folder) for folder in self._fresh)):
            self._fetch(self.key(path), path)

    def push(self, path: Path) -> None:
        """Write one file, whatever is there."""
        self.guard(path)
        key = self.key(path)
        self._tags[key] = self.storage.put(key, path.read_bytes())

    def remove(self, path: Path) -> None:
        """Delete one file there."""
        self.guard(path)
        self.storage.delete([self.key(path)])
        self._tags.pop(self.key(path), None)

    def swap(self, path: Path, data: bytes) -> None:
        """Write one file's new bytes, which are not here yet, if it is there as this process read it.

        Raises:
            LockedError: when it is not.
        """
        self.guard(path)
        key = self.key(path)
        tag = self.storage.swap(key, data, self._tags.get(key))
        if tag is None:
            raise LockedError(
                f"{self}/{key}: another process wrote it since this one read it. Nothing of it was overwritten: run "
                "the same command again, it goes on from there"
            )
        self._tags[key] = tag

    @contextmanager
    def leased(self, lock: Path, what: str) -> Iterator[None]:
        """Hold the lease that belongs to a lock file. Below a folder whose lease is held, none is needed.

        Raises:
            LockedError: when another process, here or elsewhere, holds it.
        """
        if self._lease_over(lock) is not None:
            yield
            return
        lock = _plain(lock)
        whole = lock.name == ".lock"
        covers = lock.parent if whole else lock.with_name(lock.name.removesuffix(".lock").removeprefix("."))
        lease = Lease(self.storage, self.key(lock).removesuffix("lock") + "lease", what)
        lease.take()
        self._leases[covers] = lease
        try:
            self._probe(lease)
            if whole:
                self.refresh(covers)
            yield
        finally:
            del self._leases[covers]
            with suppress(StageError):  # it runs out by itself
                lease.release()

    def _probe(self, lease: Lease) -> None:
        """Once a process: say so where conditions on writes are not kept, since only the lease is left then."""
        if not self._probed and not lease.enforced():
            say(
                f"mmgrpo: {self} writes over what is there although asked not to: the lease alone keeps two writers "
                "apart there. See that clocks agree, and start no run twice.",
                file=sys.stderr,
            )
        self._probed = True

    def guard(self, path: Path) -> None:
        """Go on only if the lease over a path, if one was taken, is still held.

        Raises:
            LockedError: when it was lost.
        """
        if (lease := self._lease_over(path)) is not None:
            lease.guard()

    def _known(self, folder: Path) -> bool:
        """Whether nobody else writes there since it was listed: it lies in a run whose lease is held."""
        return folder not in self._leases and self._lease_over(folder) is not None

    def _lease_over(self, path: Path) -> Lease | None:
        path = _plain(path)
        return next((lease for folder, lease in self._leases.items() if path.is_relative_to(folder)), None)


def _plain(path: Path) -> Path:
    """A path without `..`, with which a ledger is named that several runs share."""
    return Path(os.path.normpath(path.absolute()))


def _own_files(folder: Path) -> list[Path]:
    """The files of a mirrored folder, its artifacts, what is local, and what begins with a dot left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = parts[0] in LOCAL or any(part.startswith(".") for part in parts)
        if not hidden and artifact_of(folder, path) is None and path.is_file():
            found.append(path)
    return found


def _read_index(path: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_bytes(data)
    draft.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _busy(path: Path) -> bool:
    """Whether a process of this machine holds a lock file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
