"""An engine with fixed answers, for tests and fault runs: real token ids, made-up log-probabilities, no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from schemas.errors import StageError
from stages.engines.interface import EngineUsage, Request, Result
from stages.engines.models import BaseModel, load_tokenizer
from stages.engines.texts import encode_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Answer = Callable[[Request, str], str] | Mapping[str, str]


class ScriptedEngine:
    """See `interface.Engine`. An answer depends on the request and its prompt's text alone, never on the batch.

    Args:
        tokenizer: a tokenizer, or the base model to take it from.
        answer: called with the request and its prompt as text; or texts to look for in the prompt with the answer to
            each: the first text found decides.
        context: longest prompt plus completion, in tokens.
        latency_s: seconds that each call of `generate` takes.
        fail_at: the call of `generate` that raises StageError, counted from 1.
    """

    logprob_kind: Literal["processed", "raw"] = "processed"
    logprob = -1.0
    """The log-probability of every token."""

    def __init__(
        self,
        tokenizer: BaseModel | PreTrainedTokenizerBase,
        answer: Answer,
        *,
        context: int = 8192,
        latency_s: float = 0.0,
        fail_at: int | None = None,
    ) -> None:
        self.name = "scripted"
        self.usage = EngineUsage()
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, BaseModel) else tokenizer
        self._answer, self._context, self._latency_s, self._fail_at = answer, context, latency_s, fail_at

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """See `interface.Engine`."""
        return encode_chat(self._tokenizer, messages)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `interface.Engine`."""
        self.usage.batches += 1
        if self.usage.batches == self._fail_at:
            raise StageError(f"the scripted engine fails at call {self._fail_at}, as it was told to")
        time.sleep(self._latency_s)
        self.usage.seconds += self._latency_s
        return [self._serve(request) for request in requests]

    def _serve(self, request: Request) -> Result:
        room = self._context - len(request.prompt_ids)
        if room < 1:
            return Result((), (), "context_overflow", "")
        text = self._text(request)
        whole = [*self._tokenizer(text, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]
        ids = tuple(whole[: min(room, request.sampling.max_new_tokens)])
        self.usage.prompt_tokens += len(request.prompt_ids)
        self.usage.completion_tokens += len(ids)
        finish: Literal["stop", "length"] = "stop" if len(ids) == len(whole) else "length"
        shown = self._tokenizer.decode(ids, skip_special_tokens=True)
        return Result(ids, (self.logprob,) * len(ids), finish, shown)

    def _text(self, request: Request) -> str:
        prompt = self._tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        if not isinstance(self._answer, Mapping):
            return self._answer(request, prompt)
        for key, answer in self._answer.items():
            if key in prompt:
                return answer
        raise StageError(f"the script has no answer to this prompt: {prompt[-200:]!r}")
