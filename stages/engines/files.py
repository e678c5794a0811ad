"""Files of base models: atomic folders in the cache, memoised digests, JSON."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas import foreign
from schemas.canonical import digest, digest_file
from schemas.errors import RecipeError


def cache_folder(cache: Path | None) -> Path:
    """The folder for made and converted models: the argument, else $MMGRPO_CACHE, else the user's cache folder."""
    if cache is not None:
        return cache
    if named := os.environ.get("MMGRPO_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mmgrpo"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make(empty folder)` if it is not there. It is there whole or not at all, whoever else asks.

    Raises:
        RecipeError: when the cache cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _make(folder, make)
    except OSError as error:
        raise RecipeError(
            f"the model cache {folder.parent} cannot be written ({error.strerror or error}): free some space or name "
            "another folder in the environment variable MMGRPO_CACHE"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        make(partial)
        partial.chmod(0o755)
        for path in partial.iterdir():
            path.chmod(0o644)  # readable by all who share the cache
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel frees it if the process dies."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remembered_digest(path: Path, cache: Path) -> str:
    """sha256 of a big file, remembered in the cache by path, size and time of change."""
    stat = path.stat()
    entry = cache / "digests" / digest([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    if entry.is_file():
        return entry.read_text()
    value = digest_file(path)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=entry.parent, delete=False) as file:
            file.write(value)
        Path(file.name).chmod(0o644)
        Path(file.name).rename(entry)
    except OSError:
        return value  # a cache that cannot be written costs time, nothing else
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no such file.

    Raises:
        RecipeError: when the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = foreign.read_json(path)
    except ValueError as error:
        raise RecipeError(f"{path} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise RecipeError(f"{path} holds {type(value).__name__}, expected a JSON object")
    return value
