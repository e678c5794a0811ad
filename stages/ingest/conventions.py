"""What a convention of span attributes finds in a span, and how the findings of several are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    error: str | None = None
    offers: bool = False

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
            other.error if self.error is None else self.error,
            self.offers or other.offers,
        )

    def without_call(self) -> Findings:
        """As of an agent's span, which repeats the messages of the calls below it."""
        return replace(self, call=None)

    def ending(self) -> Findings:
        """As of a record of the end of a stream."""
        return self if self.call is None else replace(self, call=replace(self.call, streamed=True))


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


_BUILT = ("model", "model_request", "agent")
"""Nodes of the agents that LangChain builds: those of every agent have the same names."""


def node_of(metadata: Mapping[str, Any]) -> str | None:
    """The node of LangGraph's that a step is of; of an agent that LangChain built, the agent's name."""
    node, agent = text(metadata.get("langgraph_node")), text(metadata.get("lc_agent_name"))
    return agent if agent and (node is None or node in _BUILT) else node


def _several(value: Any) -> int | None:
    """How many answers were asked for, where they were more than one."""
    found = integer(value)
    return found if found is not None and 1 < found < 2**31 else None


def _named(value: Any) -> bool | None:
    return True if text(value) else None


Setting = tuple[str, Callable[[Any], Any], tuple[str, ...]]
"""A field of `Call`, what reads it, and the names that APIs give it."""
SETTINGS: tuple[Setting, ...] = (
    ("temperature", number, ("temperature",)),
    ("top_p", number, ("top_p", "topP")),
    ("top_k", integer, ("top_k", "topK")),
    ("max_new_tokens", integer, _LIMITS),
    ("seed", integer, ("seed",)),
    ("choices", _several, ("n", "num_choices", "choice.count")),
    ("unseen", _named, ("previous_response_id",)),
)


def sampling(settings: Mapping[str, Any], fields: tuple[Setting, ...] = SETTINGS) -> dict[str, Any]:
    """Sampling settings by the names that APIs give them, as fields of `Call`; those that are known.

    Args:
        settings: as logged.
        fields: which are looked for, and by which names.
    """
    found: dict[str, Any] = {}
    for field, reader, names in fields:
        for name in names:
            if (said := settings.get(name)) is not None:
                if (value := reader(said)) is not None:
                    found[field] = value
                break
    return found
