"""Which adapter a module of the program belongs to, and what that adapter's folder is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from schemas.errors import DataError, RecipeError
from schemas.policies import SHARED
from stages.engines.adapters import SHARED_NAME

_LONGEST = 128


def adapter_names(wanted: str | dict[str, str], modules: Iterable[str]) -> dict[str, str]:
    """Adapter name by module, under "*" where all share one.

    Args:
        wanted: `adapter.modules` of the recipe.
        modules: the modules that there is something of: members, or an adapter of an earlier iteration.

    Raises:
        RecipeError: for a module that the recipe's table does not name, or whose name cannot be a folder's.
    """
    if wanted == "shared":
        return {SHARED: SHARED_NAME}
    if isinstance(wanted, dict):
        missing = sorted(set(modules) - set(wanted))
        if missing:
            raise RecipeError(
                f"adapter.modules names no adapter for the module {', '.join(map(repr, missing))}, which has members "
                f"to train on; it names {sorted(wanted)}. Add {missing[0]!r} = 'NAME' to it"
            )
        return dict(sorted(wanted.items()))
    return {module: _folder_name(module) for module in sorted(modules)}


def check_declared(wanted: str | dict[str, str], declared: Sequence[str] | None) -> None:
    """Refuse a table that names a module which the program does not declare; None where it declares none.

    Raises:
        RecipeError: naming it.
    """
    unknown = sorted(set(wanted) - set(declared)) if isinstance(wanted, dict) and declared is not None else []
    if unknown:
        raise RecipeError(
            f"adapter.modules names {', '.join(map(repr, unknown))}, which is no module of the program; it has "
            f"{', '.join(declared or ())}"
        )


def _folder_name(module: str) -> str:
    """A module's name as it is, where it can name a folder; else with %XX for what cannot. Distinct ones stay so."""
    name = quote(module, safe="")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    if module == SHARED or len(name) > _LONGEST:
        raise RecipeError(
            f"the module {module[:40]!r} cannot name an adapter ('*' stands for every module, and a name has at most "
            f"{_LONGEST} bytes): give it one in the recipe, adapter.modules = {{ … = 'NAME' }}"
        )
    return name


def check_unchanged(before: dict[str, str], now: dict[str, str], where: str) -> None:
    """Refuse to continue adapters for other modules than they were trained for.

    Args:
        before: adapter name by module of the previous train artifact.
        now: what the recipe gives the modules of both.
        where: the previous artifact.

    Raises:
        DataError: naming what changed.
    """
    kept = {module: name for module, name in now.items() if name in before.values()}
    if kept != before:
        raise DataError(
            f"{where} has the adapters {before} by module, the recipe's adapter.modules gives {now}: an adapter keeps "
            "its modules over a run. Start a new run (--run-dir) for other ones"
        )
