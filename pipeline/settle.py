"""What a recipe leaves to the machine (`auto`) is settled before anything runs, and is from then on part of the run.

Keys are made of the settled recipe, so that two machines never share a key with different results. A run keeps what
it began with: run.json holds the settled recipe, and a machine that would choose otherwise goes by it, and says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import runfile
from pipeline.recipes import LoadedRecipe
from schemas.errors import DataError
from schemas.execution import Execution
from schemas.shapes import Shape, first_problem

FIELDS = (("model", "dtype"), ("train", "precision"))
AUTO = "auto"


def settle(loaded: LoadedRecipe, execution: Execution, folder: Path) -> tuple[LoadedRecipe, list[str]]:
    """The recipe with every `auto` replaced, and a line for each that a person should know about.

    Args:
        loaded: the recipe as it was read.
        execution: says which device is used.
        folder: the run folder; what its run.json has settled stays.

    Raises:
        DataError: when run.json is there and damaged.
    """
    document = loaded.recipe.model_dump()
    open_fields = [(section, name) for section, name in FIELDS if document[section][name] == AUTO]
    if not open_fields:
        return loaded, []
    from stages.engines.precision import fast_dtype

    here = fast_dtype(execution.device)
    before = _settled(folder) if (folder / runfile.NAME).exists() else {}
    notes = []
    for section, name in open_fields:
        kept = _kept(before, section, name)
        document[section][name] = kept or here
        if kept and kept != here:
            notes.append(
                f"{section}.{name} = {kept}, as this run began with, although this machine is faster in {here}: "
                f"another one would make other results. To change it, set {section}.{name} in the recipe."
            )
    return replace(loaded, recipe=type(loaded.recipe).model_validate(document)), notes


class _Settled(Shape):
    """What is read of the recipe in a run.json, which may be of an earlier release."""

    model: dict[str, Any] | None = None
    train: dict[str, Any] | None = None


def _settled(folder: Path) -> dict[str, Any]:
    found = runfile.read_run(folder).recipe
    if problem := first_problem("recipe", _Settled, found):
        raise DataError(f"{folder / runfile.NAME}: {problem}. Restore it.")
    return found


def _kept(before: dict[str, Any], section: str, name: str) -> str | None:
    value = (before.get(section) or {}).get(name)
    return None if value in (None, AUTO) else str(value)
