"""`call`: what a plain program makes its LM calls with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from schemas.errors import ParseError
from stages.programs.jsonable import json_text
from stages.programs.recorder import checked_messages, encodable, not_parsed, parsed
from stages.programs.session import STUDENT, Caller, Reply

Parse = Callable[[str], Any]
Steps = Generator[Future[Reply], Reply, "Completion"]


@dataclass(frozen=True)
class Completion:
    """The answer to a call: its text, what `parse` made of it (None without `parse`), and why it ended."""

    text: str
    value: Any
    finish_reason: str


def sync_call(caller: Caller) -> Callable[..., Completion]:
    """The `call` of a sync program.

    `call(module, messages, *, lm="student", parse=None, retries=None, inputs=None, **sampling)` makes one LM call.
    `parse(text)` raises `ParseError` on a bad completion, which is then asked for again up to `retries` times
    (default: the recipe's `parse_retries`; never where decoding is greedy, since the answer would be the same);
    the last `ParseError` goes to the program. `inputs` are the structured inputs, to be recorded. Sampling options:
    temperature, top_p, top_k, max_new_tokens.
    """

    def call(module: str, messages: Sequence[Mapping[str, str]], **options: Any) -> Completion:
        with closing(_steps(caller, module, messages, **options)) as steps:
            try:
                future = next(steps)
                while True:
                    future = steps.send(future.result())
            except StopIteration as end:
                completion: Completion = end.value
                return completion

    return call


def async_call(caller: Caller) -> Callable[..., Any]:
    """The `call` of an async program: as `sync_call`, to be awaited."""

    async def call(module: str, messages: Sequence[Mapping[str, str]], **options: Any) -> Completion:
        with closing(_steps(caller, module, messages, **options)) as steps:
            future = next(steps)
            while True:
                reply = await asyncio.wrap_future(future)
                try:
                    future = steps.send(reply)
                except StopIteration as end:
                    completion: Completion = end.value
                    return completion

    return call


def _steps(
    caller: Caller,
    module: str,
    messages: Sequence[Mapping[str, str]],
    *,
    lm: str = STUDENT,
    parse: Parse | None = None,
    retries: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> Steps:
    """One invocation, attempt by attempt: yields the future of each reply and is sent the reply."""
    if not isinstance(module, str) or not module or not encodable(module):
        raise TypeError(f"call(): the module's name is {module!r}, expected text")
    checked = checked_messages(messages)
    last = caller.session.parse_retries if retries is None else retries
    invocation = caller.recorder.open(module, None if inputs is None else json_text(inputs))
    try:
        for attempt in range(last + 1):
            record, future = caller.submit(invocation, attempt, checked, lm, sampling)
            reply = yield future
            if parse is None:
                return Completion(reply.text, None, reply.finish_reason)
            try:
                value = parse(reply.text)
            except ParseError as error:
                not_parsed(record, error)
                if attempt == last or caller.repeats(record):
                    caller.parse_errors.append(error)
                    raise
            except Exception:
                not_parsed(record, None)
                raise
            else:
                parsed(record, value)
                return Completion(reply.text, value, reply.finish_reason)
        raise ValueError(f"call(): retries is {last}, expected 0 or more")
    finally:
        caller.recorder.close(invocation)
