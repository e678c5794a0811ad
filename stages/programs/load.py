"""Loading a program and its metric by import path, and what identifies them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.canonical import canonical_json
from schemas.errors import RecipeError
from schemas.foreign import read_json
from schemas.recipe import Recipe
from schemas.recipe_data import ProgramSection
from stages.programs.calls import async_call, sync_call
from stages.programs.configured import loading
from stages.programs.imports import describe, enter, import_named
from stages.programs.jsonable import jsonable
from stages.programs.metric import Metric, prepare_metric
from stages.programs.session import Caller
from stages.programs.sources import code_digests, file_digests

LIVE = "stages.programs.live:program"
"""The factory of programs that are objects of this process: their adapter is the one that the process has set."""
VERSION_KEYS = ("metadata",)
"""What `program.save` adds to a state about library versions."""


@dataclass(frozen=True)
class Program:
    """A loaded program and its metric."""

    invoke: Callable[[dict[str, Any], Caller], Any]
    """Runs the program on an example's inputs; returns its output, or an awaitable of it if `is_async`."""
    is_async: bool
    metric: Metric
    modules: tuple[str, ...] | None
    """Names of its modules in the order declared, where it declares them."""
    state: Any
    """Canonical JSON value of its prompts and demos; None where it has no such thing."""
    module: Any = None
    """The DSPy module itself; None for other programs."""
    adapter: Any = None
    """The DSPy adapter that it runs in; None for DSPy's own choice, and for other programs."""
    predict: Callable[[str, dict[str, Any], Caller], Any] | None = None
    """Calls one predictor of a DSPy program, by its path, on structured inputs; None for other programs."""


def load_program(recipe: Recipe, root: Path, prompts: Path | None = None) -> Program:
    """Import the recipe's factory and metric, make the program and load its saved state.

    Args:
        recipe: names both in `program`.
        root: the recipe's folder; it is put last on the import path.
        prompts: a saved state to load in place of the one that the recipe names.

    Raises:
        RecipeError: when something is missing or cannot be used, with what, where, and what to write instead.
    """
    section = recipe.program
    _check_arguments(section)
    enter(root)
    with loading() as configured:
        factory = import_named(section.factory, "program.factory", root)
        metric = import_named(section.metric, "program.metric", root)
        if section.factory != LIVE:
            configured.imported([path.partition(":")[0] for path in (section.factory, section.metric)])
        made = _make(factory, section, root)
        adapter = configured.adapter
    saved = _saved_state(section, root) if prompts is None else _read_state(prompts)
    prepared = _metric(metric, section, adapter)
    if _is_dspy(made):
        from stages.programs.dspy_program import dspy_program

        return dspy_program(made, saved, prepared, adapter)
    return _plain_program(made, saved, prepared, section.factory)


def _metric(function: Callable[..., Any], section: ProgramSection, adapter: Any) -> Metric:
    prepared = prepare_metric(function, section.metric_args)
    if "dspy" not in sys.modules:
        return prepared
    from stages.programs.dspy_metric import in_dspy

    return in_dspy(prepared, adapter)


def program_identity(recipe: Recipe, root: Path) -> dict[str, Any]:
    """What a program is, as canonical JSON: names, arguments, state, modules, and the digest of all its code.

    Equal programs have equal identities on every machine: paths are relative, library versions are left out.

    Raises:
        RecipeError: as `load_program`.
    """
    return identity_of(recipe, root, load_program(recipe, root))


def identity_of(recipe: Recipe, root: Path, program: Program) -> dict[str, Any]:
    """`program_identity` of a program that is loaded already."""
    section = recipe.program
    modules = [path.partition(":")[0] for path in (section.factory, section.metric)]
    return {
        "factory": section.factory,
        "metric": section.metric,
        "args": section.args,
        "metric_args": section.metric_args,
        "state": program.state,
        "modules": None if program.modules is None else list(program.modules),
        "code": code_digests(modules),
        "files": file_digests(root, section.code),
    }


def difference(left: Iterable[str], right: Iterable[str], left_name: str, right_name: str) -> str:
    """What two sets of modules do not have in common, in words."""
    parts = ((left_name, set(right) - set(left)), (right_name, set(left) - set(right)))
    return "; ".join(f"{name} lacks {', '.join(sorted(missing))}" for name, missing in parts if missing)


def _check_arguments(section: ProgramSection) -> None:
    """Refuse arguments that the program's identity cannot hold: TOML has dates and nan, JSON does not."""
    for field in ("args", "metric_args"):
        try:
            canonical_json(getattr(section, field))
        except TypeError as error:
            raise RecipeError(f"program.{field}: {error}. Give dates as text, and numbers that are finite.") from None


def _make(factory: Callable[..., Any], section: ProgramSection, root: Path) -> Any:
    """The program. A factory with a parameter `root` is given the recipe's folder, for files that lie there."""
    given = {"root": root.resolve()} if _has_parameter(factory, "root") else {}
    try:
        made = factory(**{**given, **section.args})
    except RecipeError:
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(f"program.factory '{section.factory}' with program.args failed: {describe(error)}") from error
    if inspect.isawaitable(made) or not callable(made):
        raise RecipeError(
            f"program.factory '{section.factory}' returned a {type(made).__name__}, expected a DSPy module or a "
            "callable program(inputs, call). A factory makes the program, it is not the program itself."
        )
    return made


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except ValueError:  # some built-in types have no signature
        return False


def _is_dspy(made: Any) -> bool:
    dspy = sys.modules.get("dspy")  # a DSPy module cannot exist without it
    return dspy is not None and isinstance(made, dspy.Module)


def _saved_state(section: ProgramSection, root: Path) -> dict[str, Any] | None:
    """The saved state that the recipe names, without its version metadata."""
    if section.state is None:
        return None
    path = root / section.state
    if not path.is_file():
        found = f"{path} is a folder, expected a file" if path.is_dir() else f"no file at {path}"
        name = Path(section.state).with_suffix(".json")
        raise RecipeError(f"program.state: {found}. Save one with program.save('{name}').")
    return _read_state(path)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = read_json(path)
    except ValueError as error:
        raise RecipeError(f"program.state: {path} is no JSON ({error}); save it with program.save('….json')") from None
    if not isinstance(state, dict):
        raise RecipeError(f"program.state: {path} holds a {type(state).__name__}, expected an object")
    return {name: value for name, value in state.items() if name not in VERSION_KEYS}


def _plain_program(made: Callable[..., Any], saved: dict[str, Any] | None, metric: Metric, name: str) -> Program:
    try:
        inspect.signature(made).bind({}, None)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"program.factory '{name}' returned {getattr(made, '__name__', type(made).__name__)}, which cannot be "
            f"called as program(inputs, call): {error}"
        ) from None
    if saved is not None:
        load = getattr(made, "load_state", None)
        if not callable(load):
            raise RecipeError(f"program.state: the program of '{name}' has no method load_state(state) to load it with")
        load(saved)
    is_async = _is_async(made)
    make_call: Callable[[Caller], Any] = async_call if is_async else sync_call
    dump = getattr(made, "dump_state", None)
    return Program(
        invoke=lambda inputs, caller: made(inputs, make_call(caller)),
        is_async=is_async,
        metric=metric,
        modules=_declared(made, name),
        state=jsonable(dump()) if callable(dump) else saved,
    )


def _is_async(made: Callable[..., Any]) -> bool:
    target = made
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004 - the method itself is wanted


def _declared(made: Any, name: str) -> tuple[str, ...] | None:
    modules = getattr(made, "modules", None)
    if modules is None or callable(modules):
        return None
    if isinstance(modules, (str, Mapping)) or not all(isinstance(module, str) for module in modules):
        raise RecipeError(f"program.factory '{name}': the program's `modules` is {modules!r}, expected a list of names")
    return tuple(modules)
