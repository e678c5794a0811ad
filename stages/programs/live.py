"""Programs that are objects of this process rather than import paths: what `MMGRPO.compile` is given.

A recipe names one by the digest of what it is: its state, its plain attributes and the source of its classes. Two
processes that build the same program from the same code give it the same name, so that a run goes on in the next one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import digest, digest_bytes
from schemas.errors import RecipeError
from stages.programs.configured import adapter_now
from stages.programs.held import Held
from stages.programs.metric import Example
from stages.programs.sources import code_digests, script_digests

if TYPE_CHECKING:
    import dspy

FACTORY, METRIC = "stages.programs.live:program", "stages.programs.live:metric"
IN_STATE = ("signature", "demos", "lm", "traces", "train", "history", "callbacks", "stage")
"""Attributes of modules that the state holds, or that are no part of what a module is."""


@dataclass(frozen=True)
class Live:
    """A program with its metric and the examples as DSPy has them, by example_id."""

    module: dspy.Module
    metric: Callable[..., Any]
    examples: Mapping[str, dspy.Example]


_KNOWN: dict[str, Live] = {}


def register(live: Live, identity: Mapping[str, Any]) -> str:
    """Make a program known to this process; returns the name by which a recipe has it."""
    name = digest(dict(identity))
    _KNOWN[name] = live
    return name


def program(*, name: str) -> dspy.Module:
    """The factory: a copy of a registered program."""
    return _known(name).module.deepcopy()


def metric(example: Example, prediction: Any, trace: Any = None, *, name: str) -> Any:
    """The metric of a registered program, called with the example that it was given."""
    live = _known(name)
    gold = live.examples[example.example_id]
    takes_trace = len(inspect.signature(live.metric).parameters) > 2
    return live.metric(gold, prediction, trace) if takes_trace else live.metric(gold, prediction)


def _known(name: str) -> Live:
    if name not in _KNOWN:
        raise RecipeError(
            f"the program {name[:12]} is an object of the Python program that called MMGRPO.compile: run that again. "
            "For `mmgrpo run`, give the program and its metric an import path: program.factory, program.metric."
        )
    return _KNOWN[name]


def identity_of(module: dspy.Module, function: Callable[..., Any]) -> dict[str, Any]:
    """What a program and its metric are, as canonical JSON.

    Raises:
        RecipeError: when the source of a class is nowhere to be found.
    """
    from stages.programs.dspy_program import adapter_of, state_of

    held, kinds = Held(), [type(part) for _, part in module.named_sub_modules()]
    found = {
        "classes": [f"{kind.__module__}:{kind.__qualname__}" for kind in kinds],
        "metric": held.function(function),
        "state": state_of(module),
        "fields": {name: _fields(predictor) for name, predictor in module.named_predictors()},
        "attributes": {path: _attributes(part, held) for path, part in module.named_sub_modules()},
    }
    if lms := {name: predictor.lm.model for name, predictor in module.named_predictors() if predictor.lm is not None}:
        found["lms"] = lms
    if (adapter := adapter_of(module, adapter_now())) is not None:
        found["adapter"] = held.plain(adapter)
    return {**found, "code": _code([*kinds, *([function] if hasattr(function, "__module__") else []), *held.code])}


def _fields(predictor: Any) -> dict[str, str]:
    return {name: str(field.annotation) for name, field in predictor.signature.fields.items()}


def _attributes(part: Any, held: Held) -> dict[str, Any]:
    return {name: held.plain(value) for name, value in vars(part).items() if name[0] != "_" and name not in IN_STATE}


def _code(objects: list[Any]) -> dict[str, str]:
    """sha256 of every source file that the objects' modules are made of, by module."""
    modules = sorted({found.__module__ for found in objects})
    code = code_digests(name for name in modules if name != "__main__")
    if "__main__" in modules:
        file = getattr(sys.modules["__main__"], "__file__", None)
        code |= script_digests(Path(file)) if file else _typed_in(objects)
    return code


def _typed_in(objects: list[Any]) -> dict[str, str]:
    """Sources of what was typed into an interactive session, where it keeps them."""
    own = [found for found in objects if found.__module__ == "__main__"]
    try:
        return {f"__main__:{found.__qualname__}": digest_bytes(inspect.getsource(found).encode()) for found in own}
    except (OSError, TypeError) as error:
        raise RecipeError(
            f"the source of the program or the metric cannot be found ({error}), so it could not be told from another "
            "one: write them into a module and import it"
        ) from None
