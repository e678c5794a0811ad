"""The trials of an optimizer: each scoring of candidate prompts becomes a row as it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy
from dspy.evaluate import Evaluate
from dspy.utils.callback import BaseCallback

from schemas.canonical import canonical_json, digest
from stages.programs.dspy_program import state_of
from stages.programs.jsonable import json_text
from stages.prompting.caller import Tally
from stages.prompting.service import Service


class Trials(BaseCallback):
    """A DSPy callback that hears of every evaluation. `rows` are those of the trials table."""

    def __init__(self, service: Service, optimizer: str, validation: Sequence[dspy.Example]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.error: Exception | None = None
        """What went wrong in here first: DSPy would only log it. `check` raises it."""
        self._service, self._optimizer, self._whole = service, optimizer, _inputs(validation)

    def on_evaluate_start(self, call_id: str, instance: Evaluate, inputs: dict[str, Any]) -> None:
        """A trial begins."""
        del call_id
        try:
            examples = inputs.get("devset") or instance.devset
            kind = "full" if _inputs(examples) == self._whole else "minibatch"
            self.rows.append(self._row(kind, len(examples), state_of(inputs["program"])))
            self._service.trial = Tally()
        except Exception as error:  # noqa: BLE001 - kept for `check`
            self.error = self.error or error

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """A trial ends."""
        del call_id
        tally, self._service.trial = self._service.trial, None
        try:
            assert tally is not None, "a trial ends that never began"
            score = None if exception is not None or outputs is None else _mean(outputs)
            self.rows[-1].update(score=score, failed=tally.failed, **call_counts(self._service, tally))
        except Exception as error:  # noqa: BLE001 - as above
            self.error = self.error or error

    def check(self) -> None:
        """Raise what went wrong in a callback, from the thread that drives the optimizer."""
        if self.error is not None:
            raise self.error

    def best(self, state: dict[str, Any]) -> float | None:
        """The last score of a state on all validation examples; None if it has none."""
        wanted = digest(state)
        scores = [row["score"] for row in self.rows if row["state"] == wanted and row["kind"] == "full"]
        return scores[-1] if scores else None

    def _row(self, kind: str, examples: int, state: dict[str, Any]) -> dict[str, Any]:
        instructions = {name: part["signature"]["instructions"] for name, part in state.items()}
        demos = {name: part["demos"] for name, part in state.items()}
        return {
            "trial": len(self.rows),
            "optimizer": self._optimizer,
            "kind": kind,
            "examples": examples,
            "state": digest(state),
            "instructions": canonical_json(instructions),
            "instructions_digest": digest(instructions),
            "demos": canonical_json({name: len(found) for name, found in demos.items()}),
            "demos_digest": digest(demos),
        }


def call_counts(service: Service, tally: Tally) -> dict[str, Any]:
    """Calls of a tally, and tokens of those that were new. A new call without an answer has no tokens."""
    answers = [found for key in tally.new if (found := service.memory.get(key)) is not None]
    counts: dict[str, Any] = {"calls": tally.calls, "new_calls": len(tally.new)}
    for name in ("prompt_tokens", "completion_tokens"):
        tokens = [getattr(answer, name) for answer in answers]
        counts[name] = None if any(count is None for count in tokens) else sum(tokens)
    return counts


def _inputs(examples: Sequence[dspy.Example]) -> list[str]:
    return sorted(json_text(example.inputs().toDict()) for example in examples)


def _mean(outputs: dspy.Prediction) -> float:
    scores = [float(score) for _, _, score in outputs.results]
    return sum(scores) / len(scores)
