"""A DSPy callback that captures: modules as steps, predictors by their paths, LM calls as they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback

from pipeline.capture.place import HERE, Place, Within
from pipeline.capture.values import text
from stages.programs.dspy_calls import STAMP

if TYPE_CHECKING:
    from pipeline.capture.recorder import Capture
    from pipeline.capture.runs import Row, Run

_PLACE = "mmgrpo_capture_place"
"""In DSPy's settings, which it hands on to the threads that it starts."""
_SEARCHED = 256
"""Most entries of an LM's history that are looked through for a call's response."""


@dataclass
class _Step:
    """A module that is running."""

    run: Run
    row: Row | None
    """None where the run itself is this module's."""
    within: list[AbstractContextManager[Any]]


class CaptureCallback(BaseCallback):
    """See `Capture.dspy`."""

    def __init__(self, capture: Capture, program: Any = None) -> None:
        self._capture = capture
        self._steps: dict[str, _Step] = {}
        self._calls: dict[str, tuple[Run, Row, Any]] = {}
        self._tries: dict[tuple[str, str | None], int] = {}
        if program is not None:
            _stamp(program)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A module begins: the outermost one as a run, if there is none."""
        with self._capture.guarded("beginning a module"):
            given = inputs.get("kwargs") if not inputs.get("args") else inputs
            here = _here()
            if here is None:
                _stamp(instance)
                run = self._capture.run(given, name=type(instance).__name__)
                row, place = None, Place(run)
            else:
                if not dspy.settings.caller_modules:
                    _stamp(instance)
                run = here.run
                row = run.begin(here, self._about(instance, given))
                place = replace(here, parent=row["span"])
            if isinstance(instance, dspy.Predict):
                place = replace(place, module=getattr(instance, STAMP, None) or place.module)
            within: list[AbstractContextManager[Any]] = [Within(place), dspy.context(**{_PLACE: place})]
            for manager in within:
                manager.__enter__()
            self._steps[call_id] = _Step(run, row, within)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """A module ends."""
        with self._capture.guarded("ending a module"):
            step = self._steps.pop(call_id, None)
            if step is None:
                return
            for manager in reversed(step.within):
                with self._capture.guarded("leaving a module"):
                    manager.__exit__(None, None, None)
            if step.row is not None:
                self._tries.pop((step.run.trace_id, step.row["span"]), None)
                step.run.end_step(step.row, {"outputs": self._capture.json(outputs)}, exception)
                return
            self._tries.pop((step.run.trace_id, None), None)
            step.run.output(outputs)
            step.run.end(exception)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """An LM call begins. A further one of a predictor, within one call of it, is its next attempt."""
        with self._capture.guarded("beginning a call"):
            here = _here()
            if here is None:
                self._capture.tally.trouble("outside_runs", "an LM call was made outside of any module: it is not kept")
                return
            if here.attempt is None and here.module is not None:
                key = (here.run.trace_id, here.parent)
                self._tries[key] = self._tries.get(key, -1) + 1
                here = replace(here, attempt=self._tries[key])
            prompt, messages = inputs.get("prompt"), inputs.get("messages")
            if messages is None and isinstance(prompt, str):
                messages = [{"role": "user", "content": prompt}]
            settings = {**getattr(instance, "kwargs", {}), **(inputs.get("kwargs") or {}), "model": instance.model}
            self._calls[call_id] = (here.run, here.run.begin_call(here, messages, settings), instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """An LM call ends."""
        with self._capture.guarded("ending a call"):
            run, row, instance = self._calls.pop(call_id, (None, None, None))
            if run is None or row is None:
                return
            response, known = _response(instance, outputs)
            run.end_call(row, response, exception, known, _secrets(instance))

    def _about(self, instance: Any, given: Any) -> Row:
        signature = getattr(instance, "signature", None)
        return {
            "kind": "chain",
            "name": type(instance).__name__,
            "inputs": self._capture.json(given),
            "signature": text(getattr(signature, "signature", None)),
        }


def _here() -> Place | None:
    """The place of this thread or task; in a thread that DSPy started, that of whoever started it."""
    here: Place | None = HERE.get() or dspy.settings.get(_PLACE)
    return here


def _stamp(program: Any) -> None:
    """Give a program's predictors their paths as names, which copies of them keep."""
    for path, predictor in program.named_predictors():
        setattr(predictor, STAMP, path)


def _response(lm: Any, outputs: Any) -> tuple[Any, dict[str, Any]]:
    """What the LM's server answered, and what else is known of it, from the LM's history.

    Where that is off, or holds no answer of the chat completions API, what DSPy made of it.
    """
    recent = reversed(lm.history[-_SEARCHED:])
    entry: Mapping[str, Any] = next((item for item in recent if item.get("outputs") is outputs), {})
    response = entry.get("response")
    if isinstance(response, (list, tuple)) and len(response) == 1:
        response = response[0]
    known = {"cached": True} if _was_cached(entry, response) else {}
    if isinstance(raw := getattr(response, "provider_data", None), Mapping) and "choices" in raw:
        response = raw  # DSPy's own client keeps the server's JSON
    if _has_choices(response):
        return response, known
    plain = [item if isinstance(item, Mapping) else {"text": item} for item in outputs or ()]
    finish = {"finish_reason": text(getattr(response, "finish_reason", None))}
    choices = [{"message": {**item, "content": item.get("text")}, "logprobs": item.get("logprobs")} for item in plain]
    return {"choices": [{**choice, **finish} for choice in choices]}, known


def _has_choices(response: Any) -> bool:
    held = response.get("choices") if isinstance(response, Mapping) else getattr(response, "choices", None)
    return isinstance(held, (list, tuple))


def _was_cached(entry: Mapping[str, Any], response: Any) -> bool:
    """Whether DSPy's cache answered: it says so, or counts none of the tokens that the answer once cost."""
    cost = getattr(getattr(response, "usage", None), "output_tokens", None)
    return bool(getattr(response, "cache_hit", False) or (cost and "usage" in entry and not entry["usage"]))


def _secrets(lm: Any) -> tuple[str, ...]:
    key = getattr(lm, "kwargs", {}).get("api_key")
    return (key,) if isinstance(key, str) else ()
