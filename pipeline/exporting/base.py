"""The base model of what is exported, where it is on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import DataError, RecipeError

if TYPE_CHECKING:
    from stages.engines.models import BaseModel

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[\w./-]+)?")
_TERMS = re.compile(r"(?i)(licen[cs]e|notice|use_policy)([._-].*)?")
_NAMED = re.compile(r"^license(?:_name)?:\s*[\"']?([A-Za-z0-9._-]+)[\"']?\s*$", re.MULTILINE)


def find_base(name: str, digest: str) -> BaseModel:
    """The base model of a run.

    Raises:
        RecipeError: when it is not to be had.
        DataError: when what is there is another one.
    """
    from stages.engines.models import resolve_base

    try:
        found = resolve_base(name, Path.cwd())
    except RecipeError as error:
        raise RecipeError(f"{error}. Name the folder of the base with --base") from error
    if found.digest != digest:
        raise DataError(
            f"the base '{name}' is {found.digest[:12]} here, the adapter was trained on {digest[:12]}: name the folder "
            "of that one with --base"
        )
    return found


def look_for_base(name: str, digest: str) -> BaseModel | None:
    """The base model where it is on this machine already; None where it is not, or is another one."""
    try:
        return None if _is_elsewhere(name) else find_base(name, digest)
    except (RecipeError, DataError):
        return None


def _is_elsewhere(name: str) -> bool:
    """Whether a name is that of a model of the hub which is not in this machine's cache: nothing is fetched for it."""
    from huggingface_hub import try_to_load_from_cache

    if not _HUB_ID.fullmatch(name) or Path(name).is_dir():
        return False
    hub, _, revision = name.partition("@")
    return not isinstance(try_to_load_from_cache(hub, "config.json", revision=revision or None), str)


def terms_of(base: Path) -> list[Path]:
    """Files with the terms of a base model."""
    return sorted(path for path in base.iterdir() if path.is_file() and _TERMS.fullmatch(path.name))


def licence_of(base: Path) -> str | None:
    """The licence that a base's own card names, if it has one."""
    card = base / "README.md"
    if not card.is_file():
        return None
    front = card.read_text(encoding="utf-8", errors="replace").removeprefix("\ufeff").split("---", 2)
    found = _NAMED.search(front[1]) if len(front) == 3 and not front[0].strip() else None
    return found[1] if found else None
