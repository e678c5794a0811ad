"""Where a folder that is named by an address lies on this machine: its mirror, below the cache folder."""

from __future__ import annotations

import re
from pathlib import Path

from stages.engines.files import cache_folder

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def is_address(text: str) -> bool:
    """Whether a text names a folder by an address, such as `s3://bucket/runs/a`, and not by a path."""
    return _ADDRESS.fullmatch(text) is not None


def mirror_of_root(scheme: str, host: str) -> Path:
    """The mirror of everything at one bucket or host."""
    return cache_folder(None).absolute() / "mirrors" / scheme / (host or "_")


def split_address(address: str) -> tuple[str, str, str]:
    """(scheme, bucket or host, path without slashes at its ends) of an address.

    Raises:
        ValueError: saying what is wrong with it: a user or a password in it, a query, or parts that climb.
    """
    found = _ADDRESS.fullmatch(address)
    assert found is not None, address
    scheme, rest = found[1], found[2]
    host, _, path = rest.partition("/")
    if "@" in rest or "?" in rest or "#" in rest:
        raise ValueError(
            "an address holds a user, a password or a query, which would be kept: leave them out, and put credentials "
            "into the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, …)"
        )
    parts = [part for part in path.split("/") if part]
    if not parts or any(part in {".", ".."} for part in parts):
        raise ValueError("expected an address like s3://bucket/folder, without . and ..")
    return scheme, host, "/".join(parts)


def place_of(root: Path, named: str) -> Path:
    """The folder or file that a recipe names: a path from the recipe's folder, or the mirror of an address."""
    if not is_address(named):
        return root / named
    scheme, host, path = split_address(named)
    return mirror_of_root(scheme, host) / path
