"""The program as an optimizer has it: each of its runs, and of its copies' runs, is served and recorded."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import dspy
from dspy import lm15

from stages.engines.signals import ContextOverflowError
from stages.programs.dspy_calls import RUN, OurEngine
from stages.programs.dspy_engine import overrides_of, request_messages, response_of
from stages.programs.dspy_program import disguised
from stages.programs.load import Program
from stages.prompting.checks import check_program
from stages.prompting.service import Service

SERVICE = "mmgrpo_prompts"
"""Name in DSPy's context: the `Service` of the optimizer at work."""


class ServedProgram(dspy.Module):
    """A program whose runs go through the service. The program's class becomes a subclass of it and of itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The program's output."""
        service: Service | None = dspy.settings.get(SERVICE)
        call = super().__call__
        if service is None or dspy.settings.get(RUN) is not None:
            return call(*args, **kwargs)
        return service.run(kwargs, lambda: call(*args, **kwargs))


class ServedAsyncProgram(ServedProgram):
    """The same for a program that has only `aforward`: DSPy's optimizers run programs synchronously."""

    def forward(self, **kwargs: Any) -> Any:
        """The program's output."""
        return asyncio.run(self.aforward(**kwargs))


class ProposerEngine(OurEngine):
    """A DSPy engine whose calls are the proposer's."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion."""
        try:
            reply = self._service.propose(request_messages(request), overrides_of(request))
        except ContextOverflowError as error:
            raise lm15.ContextLengthError(str(error)) from error
        return response_of(request, reply)


def optimizable(program: Program, factory: str) -> dspy.Module:
    """The program's module, ready to be handed to an optimizer.

    Raises:
        RecipeError: when it is no DSPy module, or has no predictor.
    """
    check_program(program, factory)
    module = program.module
    kind = type(module)
    alone = inspect.iscoroutinefunction(getattr(kind, "aforward", None)) and not hasattr(kind, "forward")
    module.__class__ = disguised(kind, (ServedAsyncProgram if alone else ServedProgram, kind))
    return module
