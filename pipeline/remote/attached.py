"""Which folders of this process are mirrors of addresses. Everything else is as it always was.

A command's folder argument becomes a path of the mirror here (`attach`), which is brought up to date (`refresh`).
Stores, locks and files that are written find the mirror of their path (`mirror_of`), and work with the address too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from schemas.addresses import is_address, split_address
from schemas.errors import RecipeError
from stages.places import mirror_of_root

if TYPE_CHECKING:
    from pipeline.remote.mirror import Mirror

_MIRRORS: dict[Path, Mirror] = {}
_FOLDERS: list[Path] = []


def attach(address: str) -> Path:
    """The path of an address's mirror. What is there is asked for when the command begins (`opened`).

    Raises:
        RecipeError: when the address holds a secret or is none, or its kind is not known here.
    """
    from pipeline.remote.mirror import Mirror
    from pipeline.remote.storage import open_storage

    try:
        scheme, host, path = split_address(address)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    root = mirror_of_root(scheme, host)
    if root not in _MIRRORS:
        _MIRRORS[root] = Mirror(root, open_storage(scheme, host))
    folder = root / path
    if folder not in _FOLDERS:
        _FOLDERS.append(folder)
    return folder


def mirror_of(path: Path) -> Mirror | None:
    """The mirror that a path lies in; None for every path of this machine's own."""
    if not _MIRRORS:
        return None
    found = path.resolve() if ".." in path.parts else path.absolute()
    return next((mirror for root, mirror in _MIRRORS.items() if found.is_relative_to(root)), None)


def fetch(named: str) -> None:
    """Bring a snapshot that a recipe names by its address; nothing for a path of this machine."""
    if is_address(named):
        folder = attach(named)
        if (mirror := mirror_of(folder)) is not None:
            mirror.refresh(folder)


def swap(path: Path, data: bytes) -> None:
    """Write a file's new bytes at its address, if it is there as it is here; nothing for a path of this machine.

    Raises:
        LockedError: when another process wrote it.
    """
    if (mirror := mirror_of(path)) is not None:
        mirror.swap(path, data)


def pulled(path: Path, *, anew: bool) -> None:
    """Make a file what it is at its address now; nothing for a path of this machine. `anew`: see `Mirror.pull`."""
    if (mirror := mirror_of(path)) is not None:
        mirror.pull(path, anew=anew)


def written(path: Path) -> None:
    """Put a file that was written to its address too, over whatever is there; nothing for a path of this machine."""
    if (mirror := mirror_of(path)) is not None:
        mirror.push(path)


def removed(path: Path) -> None:
    """Delete a file at its address too; nothing for a path of this machine."""
    if (mirror := mirror_of(path)) is not None:
        mirror.remove(path)


def shown(text: str) -> str:
    """A text with addresses in the place of their mirrors."""
    for root, mirror in _MIRRORS.items():
        text = text.replace(str(root), str(mirror))
    return text


def refresh() -> None:
    """Bring every folder that was attached up to date."""
    for folder in _FOLDERS:
        if (mirror := mirror_of(folder)) is not None:
            mirror.refresh(folder)


def detach() -> None:
    """Forget all mirrors."""
    _MIRRORS.clear()
    _FOLDERS.clear()
