"""Token ids and log-probabilities, where a log has them. Nothing is made up: an empty list is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.ingest.values import floats, ids, integer

_PROMPT = ("prompt_token_ids", "prompt_ids", "input_token_ids")
_COMPLETION = ("completion_token_ids", "generation_token_ids", "completion_ids", "output_token_ids", "token_ids")
_LOGPROBS = ("sampling_logprobs", "completion_logprobs", "generation_log_probs", "output_logprobs", "logprobs")
_MARK = "token_id:"
"""How vLLM spells a token when it is asked for ids in the place of texts."""


def tokens_of(*held: Any) -> dict[str, Any]:
    """Ids and log-probabilities as fields of `Call`, by the usual names, from the first object that has them."""
    found: dict[str, Any] = {}
    for item in held:
        if isinstance(item, Mapping):
            for field, value in _tokens(item).items():
                if value is not None:
                    found.setdefault(field, value)
    return found


def _tokens(held: Mapping[str, Any]) -> dict[str, Any]:
    spelt, logprobs = _listed(held.get("logprobs"))
    return {
        "prompt_ids": _first(held, _PROMPT, ids),
        "completion_ids": _first(held, _COMPLETION, ids) or spelt,
        "logprobs": _first(held, _LOGPROBS, floats) or logprobs,
    }


def _first(held: Mapping[str, Any], names: tuple[str, ...], reader: Any) -> Any:
    return next((found for name in names if (found := reader(held.get(name))) is not None), None)


def _listed(value: Any) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Ids and log-probabilities out of `logprobs` of a chat completion, or of a text completion."""
    if isinstance(value, Mapping):
        tokens = value.get("content") if isinstance(value.get("content"), list) else None
        if tokens is None:
            return ids(_marked(value.get("tokens"))), floats(value.get("token_logprobs"))
        value = tokens
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return None, None
    numbers = [item.get("token_id") for item in value]
    spelt = _marked([item.get("token") for item in value])
    return ids(numbers if None not in numbers else spelt), floats([item.get("logprob") for item in value])


def _marked(tokens: Any) -> list[int | None] | None:
    if not isinstance(tokens, list) or not all(isinstance(item, str) and item.startswith(_MARK) for item in tokens):
        return None
    return [integer(item.removeprefix(_MARK)) for item in tokens]
