"""Files of traces at any address that fsspec knows: which there are, how large, and why one cannot be read."""

from __future__ import annotations

import fsspec

from schemas.addresses import without_secrets
from schemas.errors import DataError
from stages.ingest.normal import Refused


def find_files(address: str) -> list[str]:
    """The files that an address names: itself, all below a folder, or what a pattern matches; sorted.

    Args:
        address: a path, a pattern with `*`, or any address that fsspec knows (`s3://…`, `gs://…`, …).

    Raises:
        DataError: when there is none.
    """
    try:
        system, path = fsspec.core.url_to_fs(address)
        if any(mark in path for mark in "*?["):
            found = [name for name in system.glob(path) if system.isfile(name)]
        elif system.isdir(path):
            found = [name for name in system.find(path) if not name.rsplit("/", 1)[-1].startswith(".")]
        else:
            found = [path] if system.exists(path) else []
    except Exception as error:  # noqa: BLE001 - what systems of files raise is of no one family
        raise DataError(without_secrets(f"{address}: {str(error) or type(error).__name__}")) from None
    if not found:
        raise DataError(f"{without_secrets(address)}: no file there. Name a file, a folder, or a pattern in quotes")
    return sorted(system.unstrip_protocol(name) if "://" in address else name for name in found)


def size_of(address: str) -> int:
    """Bytes of a file; 0 where its system does not tell."""
    try:
        system, path = fsspec.core.url_to_fs(address)
        return int(system.size(path) or 0)
    except Exception:  # noqa: BLE001 - reading it will say what is wrong
        return 0


def unreadable(address: str, error: Exception) -> Refused:
    """That a file cannot be read. What is no error of a system of files is raised again."""
    if not isinstance(error, OSError) and "://" not in address:
        raise error  # systems of files that are far away raise errors of their own
    return Refused("not_readable", without_secrets(str(error) or type(error).__name__), without_secrets(address))
