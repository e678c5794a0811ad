"""Where a folder that is named by an address lies on this machine: its mirror, below the cache folder."""

from __future__ import annotations

from pathlib import Path

from schemas.addresses import is_address, split_address
from stages.engines.files import cache_folder


def mirror_of_root(scheme: str, host: str) -> Path:
    """The mirror of everything at one bucket or host."""
    return cache_folder(None).absolute() / "mirrors" / scheme / (host or "_")


def place_of(root: Path, named: str) -> Path:
    """The folder or file that a recipe names: a path from the recipe's folder, or the mirror of an address."""
    if not is_address(named):
        return root / named
    scheme, host, path = split_address(named)
    return mirror_of_root(scheme, host) / path
