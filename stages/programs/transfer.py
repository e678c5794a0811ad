"""From a teacher's calls to what the student is trained on: the same inputs in the student's prompt.

Added to every trained call: the student's messages and their ids, the temperature that it would have been sampled
with, the completion's ids where only its text is known, and whether the call can be trained there (`transfer`). A call
that cannot is kept, and the group stage counts it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.recipe_data import SamplingSection
from stages.engines.texts import encode_chat, encode_completion
from stages.programs.load import Program
from stages.programs.rendering import render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]


@dataclass(frozen=True)
class Transfer:
    """The two programs, and the student's side of a call."""

    teacher: Program
    student: Program
    own_program: bool
    """Whether the teacher's prompts may differ from the student's."""
    tokenizer: PreTrainedTokenizerBase
    origin: Mapping[str, str]
    """Digests of `tokenizer` and `template`."""
    taught: SamplingSection
    """How the teacher samples where the program says nothing."""
    learned: SamplingSection
    """How the student does."""

    def __call__(self, call: Row) -> Row:
        """The call with the student's side of it; calls of other LMs, and unanswered ones, as they are."""
        if not call["trainable"] or call["completion"] is None:
            return call
        call = self._with_ids(call)
        messages, transfer = self._rendered(call)
        if transfer == "ok" and call["completion_ids"] is None:
            transfer = "not_encoded"
        prompt = None if messages is None else self._prompt(call, messages)
        return call | {
            "student_messages": messages,
            "student_prompt_ids": prompt,
            "student_temperature": self._temperature(call),
            "transfer": transfer,
        }

    def _rendered(self, call: Row) -> tuple[str | None, str]:
        """The student's messages, and whether the completion can be trained behind them.

        The teacher's own prompt is rendered as well: where the recorded inputs do not give what it was really sent (a
        signature changed at run time, inputs without a JSON form), they would not give the student's prompt either.
        """
        if not self.own_program:
            return call["messages"], "ok"
        own = render(self.teacher, call)
        if own is None or own.messages != call["messages"]:
            return None, "not_rendered"
        there = render(self.student, call)
        if there is None:
            return None, "not_rendered"
        return there.messages, "ok" if there.reads_like(call) else "not_parsed"

    def _with_ids(self, call: Row) -> Row:
        """A completion that is known as text alone, in the student's tokens."""
        if call["completion_ids"] is not None:
            return call
        ended = call["finish_reason"] == "stop"
        ids = encode_completion(self.tokenizer, call["completion"], ended=ended)
        return call | dict(self.origin) | {"completion_ids": None if ids is None else list(ids)}

    def _prompt(self, call: Row, messages: str) -> list[int]:
        if messages == call["messages"] and call["prompt_ids"] is not None:
            return list(call["prompt_ids"])
        return list(encode_chat(self.tokenizer, json.loads(messages)))

    def _temperature(self, call: Row) -> float:
        """A temperature that the program asked for holds for both."""
        own: float = call["temperature"]
        return self.learned.temperature if own == self.taught.temperature else own
