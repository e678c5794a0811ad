"""The predictor that `dspy.Refine` makes while running: it asks for advice, as a module of the program."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from stages.programs.dspy_calls import STAMP, RecordedPredict


class AdviceIsAModule(BaseCallback):
    """Stamps it with the path of its Refine and makes it record. Others made while running could be made before."""

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Before a module runs."""
        del call_id, inputs
        callers = dspy.settings.caller_modules or []
        if type(instance) is dspy.Predict and callers and isinstance(callers[-1], dspy.Refine):
            setattr(instance, STAMP, f"{getattr(callers[-1], STAMP)}.advice")
            instance.__class__ = RecordedPredict


def stamp_refiners(module: dspy.Module) -> list[BaseCallback]:
    """Give every Refine its path; returns the callbacks that its runs need, of which DSPy calls each at every step."""
    refiners = list(module.named_sub_modules(type_=dspy.Refine))
    for path, refine in refiners:
        setattr(refine, STAMP, path.removeprefix("self").removeprefix(".") or "refine")
    return [AdviceIsAModule()] if refiners else []
