"""A store of objects, as the mirror needs it: any file system of fsspec, and what only some of them can do.

Keys are paths below the bucket or host. Every failure becomes a `StageError` that names the object.
"""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.remote.failing import advice
from schemas.addresses import without_secrets
from schemas.errors import RecipeError, StageError
from schemas.installing import install

AT_ONCE = 1000
"""Objects that are deleted by one request, where a store can."""


@dataclass(frozen=True)
class Stat:
    """What a listing tells of an object. `tag` changes when its bytes do."""

    tag: str
    size: int


class Storage:
    """The objects of one bucket or host. `swap` of this class looks before it writes, which is not one step."""

    atomic_swap = False

    def __init__(self, address: str, system: Any, base: str) -> None:
        self.address, self.system, self._base = address.rstrip("/"), system, base.rstrip("/")
        self._answered = False
        """Whether this process had an answer of it: before that nothing can have been committed."""

    def __str__(self) -> str:
        return self.address

    def path(self, key: str) -> str:
        """What the file system calls an object."""
        return f"{self._base}/{key}"

    def list(self, folder: str) -> dict[str, Stat]:
        """All objects below a folder, by key, as they are now."""
        with self.told(folder, "cannot be listed"):
            self.system.invalidate_cache()
            try:
                found = self.system.find(self.path(folder), detail=True)
            except FileNotFoundError:
                return {}
        begin = len(self._base.lstrip("/")) + 1 if self._base.strip("/") else 0
        return {name.lstrip("/")[begin:]: _stat(info) for name, info in found.items() if info["type"] == "file"}

    def read(self, key: str) -> tuple[bytes, str] | None:
        """An object's bytes and tag; None where there is none."""
        with self.told(key, "cannot be read"):
            try:
                return self._read(key)
            except FileNotFoundError:
                return None

    def _read(self, key: str) -> tuple[bytes, str]:
        self.system.invalidate_cache()
        tag = _stat(self.system.info(self.path(key))).tag
        return self.system.cat_file(self.path(key)), tag

    def put(self, key: str, data: bytes) -> str:
        """Write an object, whatever is there; returns its tag."""
        with self.told(key, "cannot be written"):
            return self._put(key, data)

    def _put(self, key: str, data: bytes) -> str:
        self.system.pipe_file(self.path(key), data)
        return self._tag(key)

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object where there is none; None where there is one with other bytes."""
        with self.told(key, "cannot be written"):
            if (tag := self._create(key, data)) is not None:
                return tag
        return self._ours(key, data)

    def _create(self, key: str, data: bytes) -> str | None:
        taken = inspect.signature(getattr(self.system, "_pipe_file", self.system.pipe_file)).parameters
        how: dict[str, Any] = {"mode": "create"} if "mode" in taken else {"overwrite": False}
        try:
            self.system.pipe_file(self.path(key), data, **how)
        except FileExistsError:
            return None
        return self._tag(key)

    def swap(self, key: str, data: bytes, tag: str | None) -> str | None:
        """Write an object over the one with this tag, or where there is none for None; None where it is another."""
        if tag is None:
            return self.create(key, data)
        with self.told(key, "cannot be written"):
            if (new := self._swap(key, data, tag)) is not None:
                return new
        return self._ours(key, data)

    def _swap(self, key: str, data: bytes, tag: str) -> str | None:
        self.system.invalidate_cache()
        try:
            return self._put(key, data) if self._tag(key) == tag else None
        except FileNotFoundError:
            return None

    def _ours(self, key: str, data: bytes) -> str | None:
        """The tag, where a refused write had been done after all, and only its answer was lost."""
        found = self.read(key)
        return found[1] if found is not None and found[0] == data else None

    def upload(self, key: str, path: Path) -> None:
        """Write an object from a file."""
        with self.told(key, "cannot be written"):
            self.system.put_file(str(path), self.path(key))

    def download(self, key: str, path: Path) -> bool:
        """Write a file from an object; False where there is none."""
        with self.told(key, "cannot be read"):
            try:
                self.system.get_file(self.path(key), str(path))
            except FileNotFoundError:
                return False
            return True

    def delete(self, keys: Iterable[str]) -> None:
        """Take objects away; ones that are gone do not matter."""
        for some in batched(keys, AT_ONCE):
            with self.told(some[0], "cannot be deleted"):
                self._delete(some)

    def _delete(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                self.system.rm_file(self.path(key))

    def _tag(self, key: str) -> str:
        self.system.invalidate_cache()
        return _stat(self.system.info(self.path(key))).tag

    @contextmanager
    def told(self, key: str, what: str) -> Iterator[None]:
        """Turn what a file system raises, which is of no one family, into an error that names the object."""
        try:
            yield
        except StageError:
            raise
        except Exception as error:
            kept = ". What was committed is kept" if self._answered else ""
            raise _told(f"{self.address}/{key} {what}", error, self.address, kept) from error
        self._answered = True


class Disk(Storage):
    """`file://…`: files appear whole, by a rename or a link."""

    def _put(self, key: str, data: bytes) -> str:
        draft = self._draft(key, data)
        draft.replace(self.path(key))
        return self._tag(key)

    def _create(self, key: str, data: bytes) -> str | None:
        draft = self._draft(key, data)
        try:
            os.link(draft, self.path(key))
        except FileExistsError:
            return None
        finally:
            draft.unlink()
        return self._tag(key)

    def _draft(self, key: str, data: bytes) -> Path:
        target = Path(self.path(key))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        draft.write_bytes(data)
        return draft


def batched(keys: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    """Keys, some at a time."""
    rest = iter(keys)
    while some := tuple(islice(rest, size)):
        yield some


def open_storage(scheme: str, host: str) -> Storage:
    """The storage of a bucket or host.

    Raises:
        RecipeError: when fsspec does not know the scheme, or its package is not installed.
    """
    import fsspec

    address = f"{scheme}://{host}"
    options = {"auto_mkdir": True} if scheme in ("file", "local") else {"use_listings_cache": False}
    try:
        system, base = fsspec.core.url_to_fs(f"{address}/", **options)
    except (ImportError, ValueError) as error:
        extra = f"; {install(EXTRAS[scheme])}" if scheme in EXTRAS else ""
        raise RecipeError(f"{address}: {error}{extra}") from None
    except Exception as error:
        raise _told(address, error, address) from error
    if scheme in ("s3", "s3a"):
        from pipeline.remote.s3 import S3

        return S3(address, system, base)
    return (Disk if scheme in ("file", "local") else Storage)(address, system, base)


def _told(what: str, error: Exception, address: str, more: str = "") -> StageError:
    said = " ".join((str(error) or type(error).__name__).split()).rstrip(".")
    todo = advice(error, address, EXTRAS.get(address.partition(":")[0]))
    return StageError(without_secrets(f"{what}: {said}. {todo}{more}"))


EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Which extra brings the package of a scheme."""


def _stat(info: dict[str, Any]) -> Stat:
    marks = ("ETag", "etag", "generation", "md5Hash", "content_md5")
    tag = next((str(info[name]) for name in marks if info.get(name)), None)
    if tag is None:
        times = ("mtime", "LastModified", "last_modified", "modificationTime", "created", "ino")
        tag = "-".join(str(info.get(name)) for name in (*times, "size"))
    return Stat(tag.strip('"'), int(info.get("size") or 0))
