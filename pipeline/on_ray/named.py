"""Functions on their way to another process: each goes by its name, and is looked up there among our own packages.

What they are given goes as Ray itself carries it between the processes of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any

from schemas.errors import StageError

OURS = ("pipeline", "schemas", "stages")
"""Packages whose functions a worker calls."""


@dataclass(frozen=True)
class Named:
    """A function, a class or a method of a module, and what it is called with before all else."""

    module: str
    name: str
    """Within the module, with the class of a method: `Class.method`."""
    given: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def named(function: Callable[..., Any]) -> Named:
    """A function by its name; those among what it is bound to likewise.

    Args:
        function: one of a module, a class, a bound method, an object that can be called, or a `partial` of such.
    """
    if isinstance(function, partial):
        inner = named(function.func)
        options = {name: sent(value) for name, value in function.keywords.items()}
        return replace(inner, given=(*inner.given, *map(sent, function.args)), options={**inner.options, **options})
    if isinstance(function, MethodType):
        return _of(function.__func__, sent(function.__self__))
    if isinstance(function, (FunctionType, type)):
        return _of(function)
    return _of(type(function).__call__, sent(function))


def _of(held: Any, *given: Any) -> Named:
    assert "<" not in held.__qualname__, f"{held.__qualname__} of {held.__module__} cannot be found by its name"
    return Named(held.__module__, held.__qualname__, given)


def sent(value: Any) -> Any:
    """A value as it is sent: it, and the fields of dataclasses, named where they are functions."""
    return _changed(value, (FunctionType, MethodType, partial), named)


def found(called: Named, packages: tuple[str, ...] = OURS) -> Callable[..., Any]:
    """The function of a name, in the process that is to call it.

    Raises:
        StageError: for one that is not defined in a module of these packages.
    """
    held: Any = None
    if called.module.partition(".")[0] in packages:
        held = import_module(called.module)
        for part in called.name.split("."):
            held = getattr(held, part, None)
    if (getattr(held, "__module__", None), getattr(held, "__qualname__", None)) != (called.module, called.name):
        raise StageError(
            f"a worker was asked to call {called.name} of {called.module}; expected what a module of "
            f"{', '.join(packages)} defines"
        )

    def back(value: Any) -> Any:
        return _changed(value, (Named,), lambda inner: found(inner, packages))

    function: Callable[..., Any] = held
    return partial(function, *map(back, called.given), **{name: back(value) for name, value in called.options.items()})


def _changed(value: Any, kinds: tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """A value with all of some kinds in it changed.

    Dataclasses are looked into, but for one that says itself how it is sent.
    """
    if isinstance(value, kinds):
        return change(value)
    if not is_dataclass(type(value)) or "__getstate__" in vars(type(value)):
        return value
    there = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    changed = {name: _changed(inner, kinds, change) for name, inner in there.items()}
    return replace(value, **changed) if any(changed[name] is not there[name] for name in there) else value
