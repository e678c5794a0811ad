"""Importing what a recipe names: `package.module:function`, from the recipe's folder or installed."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import schemas
from schemas.canonical import storable
from schemas.discretion import discreet
from schemas.errors import RecipeError
from stages.programs.sources import OWN, is_installed

_ENTERED: dict[str, frozenset[str]] = {}
"""Recipe folders put on the import path by this process, with the modules that were loaded before: at most one at a
time, so that two recipes with a `program.py` each do not get each other's."""
LONGEST_MESSAGE = 4000
"""Characters of an exception's message that are kept."""


def enter(root: Path) -> None:
    """Put the recipe's folder last on the import path.

    Raises:
        RecipeError: when a module or package in it has the name of one of ours.
    """
    folder = str(root.resolve())
    _refuse_shadows(root.resolve())
    for earlier in [path for path in _ENTERED if path != folder]:
        _leave(earlier)
    if folder not in sys.path:
        sys.path.append(folder)
        _ENTERED[folder] = frozenset(sys.modules)
    importlib.invalidate_caches()


def _leave(folder: str) -> None:
    before = _ENTERED.pop(folder)
    sys.path.remove(folder)
    for name, module in list(sys.modules.items()):
        if name in before or name.partition(".")[0] in OWN:
            continue
        expected = Path(folder, *name.split("."))
        if getattr(module, "__file__", None) in (f"{expected}.py", str(expected / "__init__.py")):
            del sys.modules[name]


def _refuse_shadows(root: Path) -> None:
    if root == Path(schemas.__file__).resolve().parents[1]:
        return
    for name in OWN:
        module, package = root / f"{name}.py", root / name
        found = module if module.is_file() else package if any(package.glob("*.py")) else None
        if found is not None:
            raise RecipeError(
                f"{found} has the name of a package of mmgrpo ('{name}'), so importing '{name}' would mix the two up. "
                f"Rename it, and use the new name in the recipe."
            )


def import_named(path: str, field: str, root: Path) -> Callable[..., Any]:
    """The callable that a recipe field names.

    Args:
        path: `package.module:attribute`; dots in the attribute are followed.
        field: the recipe's field, for messages.
        root: the recipe's folder, already entered.

    Raises:
        RecipeError: saying what is missing, where it was looked for, and what to write.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise RecipeError(f"{field}: '{path}' is no import path; expected 'package.module:function'")
    found: Any = _module(module_name, f"{field} '{path}'", root)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RecipeError(_no_attribute(found, part, f"{field} '{path}'"))
        found = getattr(found, part)
    if not callable(found):
        raise RecipeError(f"{field} '{path}' is a {type(found).__name__}, expected a function or another callable")
    result: Callable[..., Any] = found
    return result


def _module(name: str, what: str, root: Path) -> Any:
    _refuse_hidden(name.partition(".")[0], what, root.resolve())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            expected = root / Path(*name.split("."))
            raise RecipeError(
                f"{what}: there is no module '{error.name}', neither in the recipe's folder {root} nor installed. "
                f"Expected {expected}.py, or install the package that has it."
            ) from None
        raise RecipeError(
            f"{what}: importing '{name}' needs the module '{error.name}', which is not installed."
        ) from error
    except SystemExit as error:
        raise RecipeError(
            f"{what}: importing '{name}' ends the process ({describe(error)}). A script's own work belongs below "
            "`if __name__ == '__main__':`."
        ) from error
    except Exception as error:
        raise RecipeError(f"{what}: importing '{name}' failed with {describe(error)}") from error


def _refuse_hidden(top: str, what: str, root: Path) -> None:
    """Refuse a module of the recipe's folder that another module of its name hides: the folder is last on the path."""
    here = root / f"{top}.py" if (root / f"{top}.py").is_file() else root / top / "__init__.py"
    if not here.is_file() or top in OWN:
        return
    try:
        loaded = sys.modules.get(top)
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
    except ValueError:
        spec = None
    origin = spec.origin if spec is not None else None
    if origin and (not Path(origin).exists() or not Path(origin).samefile(here)):
        raise RecipeError(f"{what}: {here} is hidden by another module of that name ({origin}). Rename it.")


def _no_attribute(found: Any, part: str, what: str) -> str:
    functions = [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]
    known = f" It has {', '.join(sorted(functions)[:12])}." if functions else ""
    return f"{what}: {getattr(found, '__name__', found)} has no '{part}'.{known}"


def describe(error: BaseException) -> str:
    """An exception in one line: type, message, and the last place in the user's own code."""
    message, place = _message(error), location(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} (at {place})" if place else text


def _message(error: BaseException) -> str:
    """The message of any exception, fit to be stored with every run: one that can be had, encoded, and not endless."""
    try:
        message = storable(discreet(str(error)))
    except Exception as second:  # noqa: BLE001 - a program's own exception class may fail at this too
        return f"its message cannot be had: {type(second).__name__} in __str__"
    cut = len(message) - LONGEST_MESSAGE
    return f"{message[:LONGEST_MESSAGE]}… ({cut:,} more characters)" if cut > 0 else message


def location(error: BaseException) -> str | None:
    """The innermost frame of a traceback that is the program's own code: `module:line in function`.

    Names the module rather than the file, so that stored errors do not depend on where the code lies.
    """
    place: str | None = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "?")
        ours = module.partition(".")[0] in OWN and not module.startswith("pipeline.tasks")
        file = frame.f_code.co_filename
        if not ours and not file.startswith("<") and not is_installed(Path(file)):
            place = f"{module}:{line} in {frame.f_code.co_name}"
    return place
