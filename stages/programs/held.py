"""What objects of a process hold, as far as it tells two of them apart: for programs and metrics that no file names.

Followed are containers, what functions were bound to, and the attributes of objects of the user's own classes and of
DSPy's. Of an object of another installed package its type is known alone: what lies in such a one may differ from
process to process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.canonical import digest
from stages.programs.jsonable import jsonable
from stages.programs.sources import is_installed

OF_A_RUN = ("signature", "traces", "train", "history", "callbacks", "stage")
"""Attributes of DSPy's modules that say nothing of what they do, or not in a form to compare."""


@dataclass
class Held:
    """What was found so far."""

    code: list[Any] = field(default_factory=list)
    """Functions and classes that were met, whose sources count too."""

    _told: dict[int, Any] = field(default_factory=dict)
    """By object, kept alive in `_met`: what is reached twice, or holds itself, is followed once."""
    _met: list[Any] = field(default_factory=list)

    def plain(self, value: Any) -> Any:
        """A value's JSON form; of one that has none, what it is called and a digest of what it holds.

        DSPy writes a tool as its description: its function counts too.
        """
        try:
            found = jsonable(value)
        except (TypeError, RecursionError):
            return self._once(value)
        return found if isinstance(value, (str, int, float, type(None))) else self._beside(value, found)

    def function(self, value: Callable[..., Any]) -> list[Any]:
        """A function or another callable: module and name, and a digest of what it holds where it holds anything."""
        kind, told = _kind(value), self._once(value)
        return [kind.__module__, kind.__qualname__, *([] if told == f"<{_name(kind)}>" else [told])]

    def _beside(self, value: Any, found: Any) -> Any:
        """The form of a value that has one, its tools exchanged for what they are."""
        return self._once(value) if isinstance(value, (Mapping, list, tuple)) or _is_dspy(value, "Tool") else found

    def _once(self, value: Any) -> Any:
        if id(value) not in self._told:
            self._met.append(value)
            self._told[id(value)] = f"<{_name(_kind(value))}>"
            self._told[id(value)] = self._followed(value)
        return self._told[id(value)]

    def _followed(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(getattr(key, "value", key)): self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(item) for item in value]
        holds = {part: self.plain(item) for part, item in sorted(self._holds(value).items())}
        return f"<{_name(_kind(value))}{f' {digest(holds)[:16]}' if holds else ''}>"

    def _holds(self, value: Any) -> dict[str, Any]:
        """What is in an object, by name."""
        if isinstance(value, functools.partial):
            return {
                "func": value.func,
                "args": list(value.args),
                **{f"={name}": x for name, x in value.keywords.items()},
            }
        if inspect.ismethod(value):
            return {"func": value.__func__, "of": value.__self__}
        if inspect.isfunction(value):
            self.code.append(value)
            return _bound(value)
        if inspect.isclass(value):
            self.code.append(value)
            return {}
        if _is_ours(type(value)):
            self.code.append(type(value))
            return _attributes(value)
        return {}


def _bound(function: types.FunctionType) -> dict[str, Any]:
    """Values that a function was given when it was made; and where it stands, if others may have its name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    filled = {name: cell.cell_contents for name, cell in cells if not _empty(cell)}
    defaults = [value for value in function.__defaults__ or () if value is not None]
    wrapped = {"wraps": function.__wrapped__} if hasattr(function, "__wrapped__") else {}
    if "<" in function.__qualname__:  # a lambda, or of another function's locals
        wrapped["line"] = function.__code__.co_firstlineno
    return {**filled, **({"defaults": defaults} if defaults else {}), **(function.__kwdefaults__ or {}), **wrapped}


def _empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def _attributes(value: Any) -> dict[str, Any]:
    """An object's own attributes; of an LM what it is asked with, without its key and its history."""
    if _is_dspy(value, "BaseLM"):
        return {"model": value.model, "kwargs": {k: v for k, v in value.kwargs.items() if k != "api_key"}}
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)}
    found = {name: getattr(value, name) for name in slots - {"__dict__", "__weakref__"}} | getattr(
        value, "__dict__", {}
    )
    if not _is_dspy(value, "Module"):
        return found
    own = {name: part for name, part in found.items() if name[0] != "_" and name not in OF_A_RUN}
    return own | ({"signature": value.dump_state()["signature"]} if _is_dspy(value, "Predict") else {})


def _is_dspy(value: Any, kind: str) -> bool:
    dspy = sys.modules.get("dspy")
    return dspy is not None and isinstance(value, getattr(dspy, kind))


def _kind(value: Any) -> Any:
    return value if hasattr(value, "__qualname__") else type(value)


def _is_ours(kind: type) -> bool:
    top = kind.__module__.partition(".")[0]
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return top in {"dspy", "__main__"} or (file is not None and not is_installed(Path(file)))


def _name(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
