"""DSPy's LM calls, led to our engine by the extension point that DSPy keeps: `dspy.LM(engine=…)`.

`complete(request)` is called with exactly what is sent, demos included. Who calls stands in DSPy's own context: the
predictor (stamped with its path when the program was loaded), the program run, and the predictor's open invocation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import dspy
from dspy import lm15

from schemas.errors import RecipeError
from stages.engines.signals import ContextOverflowError
from stages.programs.dspy_calls import INVOCATIONS, RUN, STAMP, Invocations, OurEngine
from stages.programs.judge import JudgeCaller
from stages.programs.recorder import Messages
from stages.programs.session import STUDENT, Caller, Reply

_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_new_tokens"}
_ROLES = {"user": "user", "assistant": "assistant", "developer": "system"}


class RunEngine(OurEngine):
    """A DSPy engine that hands each request to the program run it belongs to."""

    def __init__(self, lm: str) -> None:
        self.lm = lm

    def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion, recorded as it is made."""
        future = _submit(request, self.lm)
        try:
            return response_of(request, future.result())
        except ContextOverflowError as error:
            raise lm15.ContextLengthError(str(error)) from error

    def dump_state(self) -> dict[str, Any]:
        """What DSPy saves of it."""
        return {"lm": self.lm}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> RunEngine:
        """From what DSPy saved."""
        return cls(state["lm"])


class AsyncRunEngine(RunEngine):
    """`RunEngine` for `acall`."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion, recorded as it is made."""
        future = _submit(request, self.lm)
        try:
            return response_of(request, await asyncio.wrap_future(future))
        except ContextOverflowError as error:
            raise lm15.ContextLengthError(str(error)) from error


def program_lm(name: str = STUDENT) -> dspy.LM:
    """An LM that the recipe names, for use in a DSPy program.

    For example `self.judge.lm = program_lm("judge")`. Predictors without an LM of their own get the student.
    """
    return dspy.LM(
        f"mmgrpo/{name}", engine=RunEngine(name), async_engine=AsyncRunEngine(name), cache=False, num_retries=0
    )


def is_program_lm(lm: Any) -> bool:
    """Whether calls of this LM are recorded."""
    return isinstance(getattr(lm, "engine", None), OurEngine)


def _submit(request: lm15.Request, lm: str) -> Future[Reply]:
    settings = dspy.settings
    caller: Caller | None = settings.get(RUN)
    invocations: Invocations | None = settings.get(INVOCATIONS)
    if caller is None:
        raise RecipeError(f"the LM 'mmgrpo/{lm}' can only be called inside a program run")
    overrides = overrides_of(request)
    module = (settings.caller_modules or [None])[-1]
    path = getattr(module, STAMP, None)
    if path is not None and invocations is not None and invocations.path == path:
        return invocations.submit(caller, request_messages(request), lm, overrides)
    if isinstance(caller, JudgeCaller):
        return _submit_alone(caller, _judge_name(module), request_messages(request), lm, overrides)
    what = "no module" if module is None else type(module).__name__
    raise RecipeError(
        f"an LM call came from {what}, which is no predictor of the program (predictors are those that are "
        "attributes of its modules when it is made): create it in __init__, not while running"
    )


def _submit_alone(
    caller: Caller, name: str, messages: Messages, lm: str, overrides: Mapping[str, Any]
) -> Future[Reply]:
    """A call of a metric: an invocation of its own, parsed by whoever made it."""
    invocation = caller.recorder.open(name, None)
    try:
        _, reply = caller.submit(invocation, 0, messages, lm, overrides)
    except BaseException:
        caller.recorder.close(invocation)
        raise
    reply.add_done_callback(lambda _: caller.recorder.close(invocation))
    return reply


def _judge_name(module: Any) -> str:
    """What a metric's call is called: the name of its predictor's signature, or the fields of one without a name."""
    signature = getattr(module, "signature", None)
    if signature is None:
        return "lm" if module is None else type(module).__name__
    name: str = signature.__name__
    return str(signature.signature) if name == "StringSignature" else name


def overrides_of(request: lm15.Request) -> dict[str, Any]:
    """The sampling options that a request sets, by our names."""
    return {ours: value for theirs, ours in _SAMPLING.items() if (value := getattr(request.config, theirs)) is not None}


def request_messages(request: lm15.Request) -> Messages:
    """The chat messages of a request.

    Raises:
        TypeError: when it holds more than text turns.
    """
    messages: Messages = []
    if request.system is not None:
        system = request.system
        texts = [system] if isinstance(system, str) else [_text(part) for part in system]
        messages.append({"role": "system", "content": "\n\n".join(texts)})
    for message in request.messages:
        if message.role not in _ROLES:
            raise TypeError(f"a message has the role '{message.role}'; the student's prompts are text turns only")
        messages.append({"role": _ROLES[message.role], "content": "\n".join(_text(part) for part in message.parts)})
    return messages


def _text(part: Any) -> str:
    if not isinstance(part, lm15.TextPart):
        raise TypeError(f"a prompt has a {type(part).__name__}, but this LM reads text only")
    text: str = part.text
    return text


def response_of(request: lm15.Request, reply: Reply) -> lm15.Response:
    """A reply as DSPy's response."""
    # DSPy would warn at each completion cut by the length limit; the record has the finish reason.
    message = lm15.Message.assistant(reply.text)
    return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=lm15.Usage())
