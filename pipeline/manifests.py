"""Manifests, and the files that they vouch for."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from schemas.canonical import digest_file
from schemas.errors import DataError
from schemas.foreign import read_json
from schemas.made_up import manifest_problem
from schemas.manifest import Manifest, artifact_digest

MANIFEST = "manifest.json"
SCRATCH = ".scratch"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest, its digests and the kinds of all that others read of it checked.

    Raises:
        DataError: naming the file, when it cannot be read or does not match its digests, and the part of it that is of
            another kind than it must be.
    """
    try:
        manifest = Manifest.model_validate(read_json(path))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a manifest of this release ({str(error).splitlines()[0]})") from None
    if problem := manifest_problem(manifest):
        raise DataError(
            f"{path}: {problem} Restore the file, or delete {path.parent} and run again: it will be made anew"
        )
    return manifest


def read_stored(folder: Path) -> Manifest:
    """The manifest in the folder of an artifact in a store, which is `STAGE/KEY`.

    Raises:
        DataError: as `read_manifest`, and where another artifact's should lie.
    """
    manifest = read_manifest(folder / MANIFEST)
    if (manifest.stage, manifest.key[:16]) != (folder.parent.name, folder.name):
        raise DataError(f"{folder / MANIFEST}: it is {manifest.stage}/{manifest.key[:16]}, but lies elsewhere")
    return manifest


def check_files(folder: Path, manifest: Manifest) -> list[str]:
    """Everything in an artifact folder that does not match its manifest, as messages that name the file."""
    found = files_of(folder)
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


def files_of(folder: Path) -> dict[str, Path]:
    """All files of an artifact by relative POSIX name, without scratch and manifest."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    return {name: paths[name] for name in sorted(paths) if name != MANIFEST and not name.startswith(f"{SCRATCH}/")}


def _is_plain(folder: Path, path: Path) -> bool:
    """Whether a file lies in a folder itself: what a link leads to is nobody's to vouch for, and a pipe has no end."""
    within = [path, *path.parents][: len(path.relative_to(folder).parts)]
    return stat.S_ISREG(path.lstat().st_mode) and not any(part.is_symlink() for part in within)
