"""What a convention of span attributes finds in a span, and how the findings of several are put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stages.ingest.normal import Call, Kind
from stages.ingest.values import floats, ids, integer, number, text

_LIMITS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "maxOutputTokens",
    "maxTokens",
    "num_predict",
)


@dataclass(slots=True)
class Findings:
    """What is known of a span by its attributes; None where they do not say."""

    kind: Kind | None = None
    agent: str | None = None
    inputs: Any = None
    outputs: Any = None
    call: Call | None = None

    def filled(self, other: Findings) -> Findings:
        """These findings, and the other's where these have none."""
        if self is NOTHING or other is NOTHING:
            return other if self is NOTHING else self
        return Findings(
            other.kind if self.kind is None else self.kind,
            other.agent if self.agent is None else self.agent,
            other.inputs if self.inputs is None else self.inputs,
            other.outputs if self.outputs is None else self.outputs,
            other.call if self.call is None else self.call,
        )

    def without_call(self) -> Findings:
        """As of an agent's span, which repeats the messages of the calls below it."""
        return replace(self, call=None)


NOTHING = Findings()
_TOKENS = frozenset(f"mmgrpo.{name}" for name in ("logprob_kind", "prompt_ids", "completion_ids", "sampling_logprobs"))


def logged_tokens(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Ids and log-probabilities of a call by `mmgrpo.*` attributes, as fields of `Call`; none where there are none."""
    if _TOKENS.isdisjoint(attributes):
        return {}
    kind = text(attributes.get("mmgrpo.logprob_kind"))
    return {
        "prompt_ids": ids(attributes.get("mmgrpo.prompt_ids")),
        "completion_ids": ids(attributes.get("mmgrpo.completion_ids")),
        "logprobs": floats(attributes.get("mmgrpo.sampling_logprobs")),
        "logprob_kind": kind if kind in ("processed", "raw") else None,
    }


def mmgrpo_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What the `mmgrpo.*` attributes of a step say, as fields of `Span`."""
    return {
        "module": text(attributes.get("mmgrpo.module")),
        "invocation_index": integer(attributes.get("mmgrpo.invocation_index")),
        "attempt": integer(attributes.get("mmgrpo.attempt")),
        "policy": text(attributes.get("mmgrpo.policy")),
    }


SETTINGS = frozenset({"temperature", "top_p", "topP", "top_k", "topK", "seed", *_LIMITS})
"""All names that `sampling` knows."""


def sampling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling settings by the names that APIs give them, as fields of `Call`."""

    def first(*names: str) -> Any:
        for name in names:
            if (found := settings.get(name)) is not None:
                return found
        return None

    return {
        "temperature": number(first("temperature")),
        "top_p": number(first("top_p", "topP")),
        "top_k": integer(first("top_k", "topK")),
        "max_new_tokens": integer(first(*_LIMITS)),
        "seed": integer(first("seed")),
    }
