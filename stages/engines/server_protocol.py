"""What is sent to a server for a request, and what its answer must be before it is taken for data."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from schemas.canonical import storable
from stages.engines.interface import EngineUsage, Request, Result
from stages.engines.server_http import Unanswered
from stages.engines.texts import encode_completion

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Mode = Literal["exact", "ids", "text"]
"""What a server gives of a completion: ids and log-probabilities, ids alone, or text alone."""
_IMPOSSIBLE = -9998.0
"""Servers write -9999 for minus infinity, which no sampled token has."""


def completion_body(request: Request, model: str, limit: int, eos: Collection[int]) -> dict[str, Any]:
    """The body for /completions: prompt ids in, ids out. Nothing is left to defaults of the server's or the model's."""
    sampling = request.sampling
    return {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.seed,
        "stop_token_ids": sorted(eos),
        "ignore_eos": True,  # those given here are all
        "logprobs": 0,
        "return_token_ids": True,
        "add_special_tokens": False,
        "skip_special_tokens": True,
    }


def chat_body(request: Request, model: str, limit: int) -> dict[str, Any]:
    """The body for /chat/completions, with what the protocol itself knows and no more."""
    sampling = request.sampling
    body = {
        "model": model,
        "messages": [dict(message) for message in request.messages],
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "seed": request.seed,
    }
    return body if sampling.top_p is None else body | {"top_p": sampling.top_p}


@dataclass(frozen=True)
class Reader:
    """Reads answers by the base model's own tokens."""

    tokenizer: PreTrainedTokenizerBase
    eos: frozenset[int]
    vocabulary: int

    def completion(self, answer: Any, request: Request, limit: int, mode: Mode) -> Result:
        """The completion in an answer of /completions.

        Raises:
            Unanswered: for whatever cannot be what was sampled for this request.
        """
        choice = _choice(answer)
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and echoed != list(request.prompt_ids):
            raise Unanswered("the server sampled after another prompt than the one that it was sent")
        ids = self._ids(choice.get("token_ids"), limit)
        finish = self._finish(choice.get("finish_reason"), ids, limit)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        told = choice.get("text")
        if not isinstance(told, str) or _letters(told) != _letters(text):
            raise Unanswered(f"the ids decode to {text[:60]!r}, but the server's text is {str(told)[:60]!r}")
        logprobs = _logprobs(choice.get("logprobs"), len(ids)) if mode == "exact" else None
        return Result(ids, logprobs, finish, text, "exact" if mode == "exact" else "ids")

    def chat(self, answer: Any) -> Result:
        """The completion in an answer of /chat/completions: text, and its ids where it has any.

        Raises:
            Unanswered: where it has no text, or ended in another way than by itself or at its limit.
        """
        choice = _choice(answer)
        message, finish = choice.get("message"), choice.get("finish_reason")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, str | None):
            raise Unanswered("the answer has no message with a text")
        if finish not in ("stop", "length"):
            raise Unanswered(f"the completion ended with finish_reason {finish!r}, expected 'stop' or 'length'")
        text = storable(content or "")
        ids = encode_completion(self.tokenizer, text, ended=finish == "stop")
        return Result(ids, None, finish, text, "text")

    def _ids(self, ids: Any, limit: int) -> tuple[int, ...]:
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise Unanswered(f"token_ids is no list of whole numbers: {str(ids)[:80]}")
        wrong = [token for token in ids if not 0 <= token < self.vocabulary]
        if wrong:
            raise Unanswered(f"token id {wrong[0]} is outside of the vocabulary of {self.vocabulary}")
        if not 0 < len(ids) <= limit:
            raise Unanswered(f"{len(ids)} token ids, expected 1 to {limit}")
        return tuple(ids)

    def _finish(self, finish: Any, ids: tuple[int, ...], limit: int) -> Literal["stop", "length"]:
        ended = ids[-1] in self.eos
        if finish == "stop" and ended:
            return "stop"
        if finish == "length" and len(ids) == limit:
            # Of a completion that ends by itself at its limit, servers that look at the limit first say "length".
            return "stop" if ended else "length"
        if finish == "stop":
            raise Unanswered(f"the server stopped after token {ids[-1]}, which ends no completion of this base")
        raise Unanswered(f"finish_reason {finish!r} after {len(ids)} of {limit} tokens")


def _choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Unanswered(f"the answer has not one choice: {str(answer)[:80]}")
    return choices[0]


def _letters(text: str) -> str:
    """A text without white space, which servers tidy, and without characters of which only some bytes were sampled."""
    return "".join(text.replace("\ufffd", "").split())


def _logprobs(told: Any, count: int) -> tuple[float, ...]:
    values = told.get("token_logprobs") if isinstance(told, dict) else None
    if not isinstance(values, list) or len(values) != count:
        found = len(values) if isinstance(values, list) else "no"
        raise Unanswered(f"{found} log-probabilities for {count} tokens")
    for value in values:
        if not isinstance(value, (int, float)) or not math.isfinite(value) or not _IMPOSSIBLE < value < 1e-3:
            raise Unanswered(f"{value!r} is no log-probability of a sampled token")
    return tuple(float(value) for value in values)


def count(usage: EngineUsage, answer: Any, request: Request, result: Result) -> None:
    """Add an answer to what the engine has done; a server that says nothing of its cache computed all of the prompt."""
    told = answer.get("usage") if isinstance(answer, dict) else None
    told = told if isinstance(told, dict) else {}
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    usage.prompt_tokens += len(request.prompt_ids)
    usage.prefilled_tokens += len(request.prompt_ids) - (cached if isinstance(cached, int) else 0)
    made = len(result.completion_ids) if result.completion_ids is not None else told.get("completion_tokens")
    usage.completion_tokens += made if isinstance(made, int) else 0
    usage.untold += not isinstance(made, int)
    usage.batches += 1
