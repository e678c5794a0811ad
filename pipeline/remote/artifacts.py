"""Artifacts at an address: found by their manifests, brought whole when their bytes are needed, published once."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline.manifests import MANIFEST, read_manifest
from pipeline.remote.storage import Stat, Storage
from pipeline.stages_in_order import STAGES
from pipeline.tombstones import NAME as TOMBSTONE
from schemas.canonical import digest_file
from schemas.errors import DataError, StageError
from schemas.foreign import lies_within
from schemas.manifest import Manifest
from schemas.telemetry import ATTEMPTS
from stages.contract import Artifact

BRINGING = ".bringing"
MANIFESTS = ".manifests"
NOTES = "notes"
"""Beside the files of an artifact in the making: what each attempt at it took so far."""
_KEY = re.compile(r"[0-9a-f]{16}")
AT_ONCE = 8
"""Files on their way at once."""


class Artifacts:
    """The artifacts of one bucket or host, by their folders in the mirror."""

    def __init__(
        self, root: Path, storage: Storage, guard: Callable[[Path], None], known: Callable[[Path], bool]
    ) -> None:
        self._root, self._storage, self._guard, self._known = root, storage, guard, known
        self._finished: dict[Path, str] = {}
        """Tag of the manifest, by folder."""
        self._files: dict[Path, set[str]] = {}
        """Keys of everything else."""
        self._trusted: set[Path] = set()
        self._whole: set[Path] = set()

    def learn(self, base: Path, found: dict[str, Stat]) -> None:
        """Take note of all that a listing of a folder found, in the place of what was known of it."""
        for known in (self._finished, self._files):
            for folder in [folder for folder in known if folder.is_relative_to(base)]:
                del known[folder]
        buried = []
        for key, stat in found.items():
            artifact = artifact_of(base, self._root / key)
            if artifact is None:
                continue
            if key == self._key(artifact, MANIFEST):
                self._finished[artifact] = stat.tag
            elif key == self._key(artifact, TOMBSTONE):
                buried.append(artifact)
            else:
                self._files.setdefault(artifact, set()).add(key)

        for artifact in buried:
            self._bury_here(artifact)

    def _bury_here(self, folder: Path) -> None:
        """Of an artifact whose bytes were deleted by request nothing stays here either but its manifest and why."""
        stone = self._storage.read(self._key(folder, TOMBSTONE))
        manifest = self._storage.read(self._key(folder, MANIFEST))
        if stone is None or manifest is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / TOMBSTONE).write_bytes(stone[0])
        (folder / MANIFEST).write_bytes(manifest[0])

    def bury(self, folder: Path) -> None:
        """Delete all files of an artifact there; its manifest and its tombstone stay."""
        self._guard(folder)
        self.look(folder)
        self._storage.delete(sorted(self._files.pop(folder, ())))

    def trust(self, folder: Path) -> None:
        """Take what is finished below a folder here as it is: a process of this machine publishes there now."""
        self._trusted.add(folder)

    def bring_all(self, store: Path) -> list[Path]:
        """Bring all finished artifacts of a store; returns their folders, sorted."""
        folders = {folder for folder in self._finished if folder.is_relative_to(store)}
        for folder in sorted(folders):
            self.bring_whole(folder)
        if any(store.is_relative_to(trusted) for trusted in self._trusted):
            folders |= {path.parent for path in store.glob(f"*/*/{MANIFEST}")}
        return sorted(folders)

    def find(self, folder: Path) -> Artifact | None:
        """The finished artifact of a folder, its bytes not brought yet.

        Raises:
            DataError: when its manifest is damaged.
        """
        if folder in self._finished:
            manifest = self._manifest(folder)
            return None if manifest is None else Artifact(folder, manifest, self.bring)
        if any(folder.is_relative_to(trusted) for trusted in self._trusted) and (folder / MANIFEST).exists():
            return Artifact(folder, read_manifest(folder / MANIFEST))
        return None

    def look(self, folder: Path) -> None:
        """Learn anew what is there of one artifact."""
        self.learn(folder, self._storage.list(self._key(folder)))

    def _manifest(self, folder: Path) -> Manifest | None:
        if not self._kept(folder).exists():
            found = self._storage.read(self._key(folder, MANIFEST))
            if found is None:
                del self._finished[folder]
                return None
            self._keep(folder, found[0])
        return read_manifest(self._kept(folder))

    def _kept(self, folder: Path) -> Path:
        """Where a manifest lies that is known here: apart from the artifact, which is not here by that."""
        return self._root / MANIFESTS / self._key(folder) / self._finished[folder]

    def _keep(self, folder: Path, data: bytes) -> None:
        kept = self._kept(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_name(f".{kept.name}.{os.getpid()}")
        draft.write_bytes(data)
        draft.replace(kept)

    def bring_whole(self, folder: Path) -> None:
        """Bring an artifact, if it is there."""
        if (artifact := self.find(folder)) is not None:
            self.bring(folder, artifact.manifest)

    def bring(self, folder: Path, manifest: Manifest) -> None:
        """Make an artifact's folder here, whole, every byte compared with its digest.

        Raises:
            DataError: when an object is gone or is not what the manifest says.
        """
        if folder in self._whole:
            return
        if not _is_here(folder, manifest):
            draft = self._root / BRINGING / uuid.uuid4().hex
            try:
                draft.mkdir(parents=True)
                self._each(lambda name: self._bring_file(folder, manifest, name, draft / name), manifest.files)
                (draft / MANIFEST).write_bytes((self._kept(folder)).read_bytes())
                folder.parent.mkdir(parents=True, exist_ok=True)
                if folder.exists() and not _is_here(folder, manifest):
                    shutil.rmtree(folder)
                if not folder.exists():
                    draft.replace(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        self._whole.add(folder)

    def _bring_file(self, folder: Path, manifest: Manifest, name: str, target: Path) -> None:
        sha = manifest.files[name].sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        # A run folder that was copied there has its files under their plain names.
        for key in (self._key(folder, sha[:16], name), self._key(folder, name)):
            if self._storage.download(key, target):
                break
        else:
            raise DataError(f"{self._storage}/{self._key(folder)}: {name} is gone, but its manifest lists it")
        if digest_file(target) != sha:
            raise DataError(
                f"{self._storage}/{key}: its bytes are not those that the manifest lists. Restore it, or delete "
                f"{self._storage}/{self._key(folder)} and run again: it will be made anew"
            )

    def publish(self, partial: Path, folder: Path, manifest: Manifest) -> Artifact | None:
        """Put an artifact there: its files, then its manifest, if there is none yet.

        Returns:
            The artifact of another process, which was first; None where it is this one's.
        """
        self._guard(folder)
        if not self._known(folder):
            self.look(folder)

        def send(name: str) -> None:
            key = self._key(folder, manifest.files[name].sha256[:16], name)
            if key not in self._files.get(folder, set()):
                self._storage.upload(key, partial / name)
            wanted.add(key)

        wanted: set[str] = set()
        if folder not in self._finished:
            self._each(send, manifest.files)
            self._guard(folder)
            data = (partial / MANIFEST).read_bytes()
            tag = self._storage.create(self._key(folder, MANIFEST), data)
            if tag is None:
                self.look(folder)
            else:
                self._finished[folder] = tag
                self._keep(folder, data)
        artifact = self.find(folder)
        if artifact is None:
            raise StageError(f"{self._storage}/{self._key(folder)}: somebody deletes what is written there. Run again")
        winner = artifact.manifest
        needed = {self._key(folder, entry.sha256[:16], name) for name, entry in winner.files.items()}
        self._storage.delete(sorted((self._files.get(folder, set()) | wanted) - needed))
        return artifact if winner.manifest_digest != manifest.manifest_digest else None

    def send_shard(self, folder: Path, name: str, path: Path) -> None:
        """Put a committed shard there, so that another machine can go on with the artifact."""
        self._guard(folder)
        key = self._key(folder, digest_file(path)[:16], name)
        if key not in self._files.setdefault(folder, set()):
            self._storage.upload(key, path)
            self._files[folder].add(key)

    def send_note(self, folder: Path, path: Path) -> None:
        """Put there what an attempt took so far, over what was said of it before."""
        key = self._key(folder, NOTES, path.name)
        self._storage.put(key, path.read_bytes())
        self._files.setdefault(folder, set()).add(key)

    def take_up(self, folder: Path, partial: Path) -> list[str]:
        """Bring the shards of an artifact that another machine began; returns the names of those that are new here.

        Args:
            folder: of the artifact once it is finished.
            partial: the folder it is made in.
        """
        if not self._known(folder):
            self.look(folder)
        if folder in self._finished:
            return []
        begin, taken = self._key(folder) + "/", []
        for key in sorted(self._files.get(folder, ())):
            sha, _, name = key.removeprefix(begin).partition("/")
            name = f"{ATTEMPTS}{name}" if sha == NOTES else name
            if not lies_within(name) or (partial / name).exists():
                continue  # a name that climbs was put there by somebody else
            draft = self._root / BRINGING / uuid.uuid4().hex
            draft.parent.mkdir(parents=True, exist_ok=True)
            if self._storage.download(key, draft) and (sha == NOTES or digest_file(draft).startswith(sha)):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                draft.replace(partial / name)
                taken.append(name)
            draft.unlink(missing_ok=True)
        return taken

    def _each(self, do: Callable[[str], None], names: Iterable[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="storage") as pool:
            list(pool.map(do, names))

    def _key(self, folder: Path, *names: str) -> str:
        return "/".join((os.path.relpath(folder, self._root), *names))

    def drop(self, folder: Path) -> None:
        """Take away what was put there of an artifact that is given up."""
        self._guard(folder)
        self._storage.delete(sorted(self._files.pop(folder, ())))


def artifact_of(base: Path, path: Path) -> Path | None:
    """The artifact's folder that a path lies in, at or below `base`: the first that is named by a key."""
    if is_artifact(base):
        return base
    parts = path.relative_to(base).parts[:-1]
    place = next((place for place, part in enumerate(parts) if _KEY.fullmatch(part)), None)
    return None if place is None else base.joinpath(*parts[: place + 1])


def is_artifact(folder: Path) -> bool:
    """Whether a folder's name is that of an artifact below the name of its stage."""
    return bool(_KEY.fullmatch(folder.name)) and folder.parent.name in ("ingest", *STAGES, "examples", "program")


def _is_here(folder: Path, manifest: Manifest) -> bool:
    try:
        return read_manifest(folder / MANIFEST).manifest_digest == manifest.manifest_digest
    except (OSError, DataError):
        return False
