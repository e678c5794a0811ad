"""What is kept of an LM call: of the request and of the answer, by the names of the chat completions API.

Only what is named here is kept: no header, no key, no other option of a request. Nothing is invented: what a server
does not say is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.capture.values import finite, ids, stored_messages, text, whole
from stages.programs.jsonable import jsonable

KINDS = ("processed", "raw")
_NARROWING = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "logit_bias", "response_format")
"""Options that change what is sampled from, beside temperature, top_p and top_k: raw log-probabilities miss them."""
_AS_ID = "token_id:"


@dataclass(frozen=True)
class Settings:
    """What the program says of its calls."""

    logprob_kind: str | None = None
    """What the server's log-probabilities are, where a call does not say."""
    known: Mapping[str, Any] = field(default_factory=dict)
    """What is known of this call; goes before what its answer says."""


def asked(messages: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the request."""
    said = {**settings, **(settings.get("extra_body") or {})}
    longest = next((said[name] for name in ("max_completion_tokens", "max_tokens") if said.get(name) is not None), None)
    return {
        "messages": stored_messages(messages),
        "tools": bool(said.get("tools") or said.get("functions")),
        "model": text(said.get("model")),
        "temperature": finite(said.get("temperature")),
        "top_p": finite(said.get("top_p")),
        "top_k": whole(said.get("top_k")),
        "max_new_tokens": whole(longest),
        "seed": whole(said.get("seed")),
        "narrowed": any(said.get(name) for name in _NARROWING),
    }


def answered(response: Any, row: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Columns of the answer, of the first of several.

    Args:
        response: of the chat completions API, as an object or a mapping; None where there is none.
        row: the request's columns.
        settings: what else is known.
    """
    choices = _part(response, "choices")
    choices = list(choices) if isinstance(choices, (list, tuple)) else []
    found = _of_choice(choices[0], response) if choices else {}
    known = settings.known
    found |= {name: said for name in _TEXTS if (said := text(known.get(name))) is not None}
    found |= {name: tokens for name in _IDS if (tokens := ids(known.get(name))) is not None}
    if (logprobs := floats(known.get("logprobs"))) is not None:
        found["logprobs"] = logprobs
    if known.get("tool_calls"):
        found["tool_calls"] = _json(known["tool_calls"])
    if isinstance(cached := known.get("cached", _part(response, "cache_hit")), bool):
        found["cached"] = cached
    found["choices"] = len(choices) or 1
    if found.get("logprobs"):
        kind = known.get("logprob_kind", settings.logprob_kind)
        found["logprob_kind"] = kind if kind in KINDS and not (kind == "raw" and row.get("narrowed")) else None
    return found


_TEXTS = ("completion", "finish_reason", "reasoning")
_IDS = ("prompt_ids", "completion_ids")


def _of_choice(choice: Any, response: Any) -> dict[str, Any]:
    said = _part(choice, "message")
    tokens = _part(_part(choice, "logprobs"), "content")
    tokens = list(tokens) if isinstance(tokens, (list, tuple)) else []
    calls = _part(said, "tool_calls")
    completion_ids = ids(_part(choice, "token_ids")) or _of_names(tokens)
    found = {
        "completion": _content(_part(said, "content")) if said is not None else None,
        "tool_calls": _json(calls) if calls else None,
        "reasoning": text(_part(said, "reasoning_content")) or text(_part(said, "reasoning")) or None,
        "finish_reason": text(_part(choice, "finish_reason")),
        "model": text(_part(response, "model")),
        "prompt_ids": ids(_part(response, "prompt_token_ids")) or ids(_part(choice, "prompt_token_ids")),
        "completion_ids": completion_ids,
        "logprobs": floats([_part(token, "logprob") for token in tokens]),
    }
    return {name: value for name, value in found.items() if value is not None}


def _content(value: Any) -> str:
    """The text of a message; "" where it has none, as one that only calls tools."""
    if isinstance(value, (list, tuple)):
        return "".join(text(_part(part, "text")) or "" for part in value)
    return text(value) or ""


def _of_names(tokens: list[Any]) -> list[int] | None:
    """Ids from tokens that are named `token_id:N`, as vLLM does when asked to."""
    names = [_part(token, "token") for token in tokens]
    if not all(isinstance(name, str) and name.startswith(_AS_ID) and name[len(_AS_ID) :].isdecimal() for name in names):
        return None
    return ids([int(name[len(_AS_ID) :]) for name in names])


def floats(value: Any) -> list[float] | None:
    """Log-probabilities: a list, not empty, of finite numbers; None for anything else."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    found = [finite(item) for item in value]
    return None if any(item is None for item in found) else [item for item in found if item is not None]


def _part(value: Any, name: str) -> Any:
    """A field of an object or a mapping, None where it has none. Fields that a client does not know are read too."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _json(value: Any) -> str | None:
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False).encode(errors="replace").decode()
