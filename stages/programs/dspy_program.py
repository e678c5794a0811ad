"""DSPy programs: predictors stamped with their paths, saved prompts loaded, calls led to our engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import dspy
from dspy.utils.exceptions import ContextWindowExceededError
from pydantic import TypeAdapter, ValidationError

from schemas.errors import RecipeError
from stages.engines.signals import ContextOverflowError
from stages.programs.dspy_calls import RUN, STAMP, RecordedPredict, without_fallback
from stages.programs.dspy_engine import is_program_lm, program_lm
from stages.programs.dspy_parallel import install
from stages.programs.dspy_refine import stamp_refiners
from stages.programs.imports import describe
from stages.programs.jsonable import jsonable
from stages.programs.load import Program, difference
from stages.programs.metric import Metric
from stages.programs.session import Caller


def dspy_program(module: dspy.Module, saved: dict[str, Any] | None, metric: Metric, configured: Any = None) -> Program:
    """Make a DSPy module ready for recorded runs.

    The adapter is the program's attribute `adapter`, else the one that `dspy.configure` set while it was made
    (`configured`), else DSPy's ChatAdapter; its fallback to a second call in JSON is off. Runs are sync unless the
    module has only `aforward`.

    Raises:
        RecipeError: for a saved state of another program, or a predictor with an LM whose calls would go unrecorded.
    """
    if saved is not None:
        load_prompts(module, saved)
    named = _stamp(module)
    callbacks = stamp_refiners(module)
    install()
    chosen = adapter_of(module, configured)
    adapter = without_fallback(chosen)
    _refuse_other_lms(module, adapter)
    student, is_async = program_lm(), _is_async(module)

    def context(caller: Caller) -> Any:
        # A trace of its own: BestOfN and Refine read it, and the process-wide one would grow with every run.
        own = {"trace": [], "disable_history": True, "callbacks": [*dspy.settings.callbacks, *callbacks]}
        return dspy.context(**{RUN: caller, "lm": student, "adapter": adapter, **own})

    def run(inputs: dict[str, Any], caller: Caller) -> Any:
        with context(caller):
            return _translated(lambda: module(**inputs))

    async def arun(inputs: dict[str, Any], caller: Caller) -> Any:
        with context(caller):
            try:
                return await module.acall(**inputs)
            except ContextWindowExceededError as error:
                raise ContextOverflowError(error.message) from error

    def predict(path: str, inputs: dict[str, Any], caller: Caller) -> Any:
        with context(caller):
            return named[path](**_typed(named[path].signature, inputs))

    state = jsonable(module.dump_state())
    return Program(arun if is_async else run, is_async, metric, tuple(named), state, module, chosen, predict)


def adapter_of(module: dspy.Module, configured: Any) -> Any:
    """The adapter that a program is run with; None for DSPy's own choice."""
    return getattr(module, "adapter", None) or configured


def _typed(signature: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Values that were stored as JSON, as the signature's types where they fit."""
    typed = dict(inputs)
    for name, value in inputs.items():
        kind = getattr(signature.input_fields.get(name), "annotation", None)
        if kind not in (None, str):
            with suppress(ValidationError):
                typed[name] = TypeAdapter(kind).validate_python(value)
    return typed


def _translated(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except ContextWindowExceededError as error:
        raise ContextOverflowError(error.message) from error


def _is_async(module: dspy.Module) -> bool:
    """Whether only an async way to run it is written."""
    return inspect.iscoroutinefunction(getattr(type(module), "aforward", None)) and not hasattr(type(module), "forward")


ALONE = "self"
"""What DSPy calls the predictor of a program that is one itself, whose state has no names."""


def state_of(module: dspy.Module) -> dict[str, Any]:
    """Instructions and demonstrations by predictor, as canonical JSON, without the LMs that they were made with."""
    state = module.dump_state()
    named = {ALONE: state} if isinstance(module, dspy.Predict) else state
    return {name: {**jsonable(part), "lm": None} for name, part in named.items()}


def by_predictor(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved state by predictor, its versions left out."""
    named = {ALONE: saved} if "signature" in saved else saved
    return {name: part for name, part in named.items() if name != "metadata"}


def load_prompts(module: dspy.Module, saved: dict[str, Any]) -> None:
    """Load prompts and demos. The LM in a saved state is the one that the prompts were optimised with, not ours.

    Raises:
        RecipeError: for the state of another program.
    """
    saved = by_predictor(saved)
    known = dict(module.named_predictors())
    if set(saved) != set(known):
        raise RecipeError(
            f"program.state is the state of another program: it has the predictors "
            f"{', '.join(sorted(saved)) or 'none'}, this program has {', '.join(sorted(known)) or 'none'} "
            f"({difference(saved, known, 'the state', 'the program')})"
        )
    lms = {name: predictor.lm for name, predictor in known.items()}
    try:
        state = {name: {**part, "lm": None} for name, part in saved.items()}
        module.load_state(state[ALONE] if isinstance(module, dspy.Predict) else state)
    except Exception as error:
        raise RecipeError(f"program.state does not load into this program: {describe(error)}") from error
    for name, predictor in known.items():
        predictor.lm = lms[name]


def _stamp(module: dspy.Module) -> dict[str, Any]:
    """Give every predictor its path and make it record; returns them by path. Frozen sub-modules take part too."""
    named = dict(module.named_predictors())
    seen = {id(predictor) for predictor in named.values()}
    for path, predictor in module.named_sub_modules(type_=dspy.Predict):
        if id(predictor) not in seen:
            named[path.removeprefix("self.")] = predictor
    for path, predictor in named.items():
        setattr(predictor, STAMP, path)
        if not isinstance(predictor, RecordedPredict):
            predictor.__class__ = _recorded(type(predictor))
    return named


def _recorded(kind: Any) -> Any:
    bases = (RecordedPredict,) if kind is dspy.Predict else (RecordedPredict, kind)
    return disguised(kind, bases)


def disguised(kind: Any, bases: tuple[Any, ...]) -> Any:
    """A subclass of `bases` under the name of `kind`: DSPy shows a program's source to LMs that write prompts."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, bases, names)


def _refuse_other_lms(module: dspy.Module, adapter: Any) -> None:
    if isinstance(adapter, dspy.TwoStepAdapter):
        raise RecipeError(
            "TwoStepAdapter asks a second LM within a predictor's call, which belongs to no module. Use ChatAdapter, "
            "JSONAdapter or XMLAdapter, or make the second step a predictor of its own."
        )
    for path, predictor in module.named_predictors():
        lm = predictor.lm
        if lm is not None and not is_program_lm(lm):
            raise RecipeError(
                f"'{path}' has an LM of its own ({getattr(lm, 'model', lm)}), whose calls could not be recorded. Put "
                "it in the recipe as [lms.NAME] and use stages.programs.dspy_engine.program_lm('NAME') in the program."
            )
