"""What a program's predictor would send for recorded inputs, and what it would make of a given completion.

The predictor itself is called, with an LM that notes the prompt and answers with the completion: instructions, demos
and adapter are those of the program as it is loaded, and so is the parser. Nothing is sampled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from stages.engines.batcher import Batcher
from stages.engines.endpoint import Answer
from stages.engines.interface import Engine, Sampling
from stages.engines.pending import Clock
from stages.programs.load import Program
from stages.programs.recorder import Recorder
from stages.programs.rows import invocation_rows
from stages.programs.session import STUDENT, Caller, Session


@dataclass(frozen=True)
class Rendered:
    """A prompt, and a completion read under it."""

    messages: str
    """Canonical JSON, as sent."""
    parse_status: str
    outputs: str | None
    """Canonical JSON of the values; None where it did not parse, or they have no JSON form."""

    def reads_like(self, call: Mapping[str, Any]) -> bool:
        """Whether the completion gives what a recorded call made of it."""
        return (self.parse_status, self.outputs) == (call["parse_status"], call["outputs"])


def render(program: Program, call: Mapping[str, Any]) -> Rendered | None:
    """Render a recorded call with a DSPy program's predictor of the same path.

    Args:
        program: a DSPy program.
        call: a row of the invocations table with `inputs` and `completion`.

    Returns:
        None where the predictor does not take these inputs, so that no prompt came about.
    """
    assert program.predict is not None, "rendering needs a DSPy program"
    recorder = Recorder(call["rollout_id"])
    caller = _answers(str(call["completion"]), recorder)
    with suppress(Exception):  # of a completion that does not parse; what was sent is recorded by then
        program.predict(call["module"], json.loads(call["inputs"] or "{}"), caller)
    rows = invocation_rows(recorder)
    if not rows:
        return None
    return Rendered(rows[0]["messages"], rows[0]["parse_status"], rows[0]["outputs"])


class _Script:
    """Stands in for an endpoint: one answer to everything."""

    model = "recorded"

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> Answer:  # noqa: ARG002
        """The answer."""
        return Answer(self.answer, "stop")


def _answers(completion: str, recorder: Recorder) -> Caller:
    """A caller whose every call is answered with this completion, at once and without an engine."""
    session = Session(
        engine=cast("Engine", None),
        origin={},
        adapters={},
        sampling=Sampling(),
        lms={},
        endpoints={STUDENT: _Script(completion)},
        parse_retries=0,
        timeout_s=1.0,
    )
    return Caller(session, cast("Batcher", None), recorder, Clock(), 0)
