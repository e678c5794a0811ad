"""Attributes for who exports OpenTelemetry spans already: on the span of an LM call, they say what ingest must know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.capture.calls import KINDS, Settings, answered, floats
from pipeline.capture.values import ids
from schemas.errors import RecipeError


def otel_attributes(
    module: str,
    *,
    invocation_index: int | None = None,
    attempt: int | None = None,
    policy: str | None = None,
    response: Any = None,
    prompt_ids: Sequence[int] | None = None,
    completion_ids: Sequence[int] | None = None,
    sampling_logprobs: Sequence[float] | None = None,
    logprob_kind: str | None = None,
) -> dict[str, str | int | list[int] | list[float]]:
    """Attributes for `span.set_attributes`; what is None has none.

    Args:
        module: the module of the program whose call it is.
        invocation_index: which of the module's calls in its run it is, from 0.
        attempt: 0 for a first try, 1 for the first retry, …
        policy: digest of the policy that was sampled from.
        response: the answer of the chat completions API, from which ids and log-probabilities are taken.
        prompt_ids: token ids of the prompt.
        completion_ids: those of the completion.
        sampling_logprobs: one per completion id.
        logprob_kind: `processed` (of the distribution that was sampled from) or `raw`.

    Raises:
        RecipeError: for another `logprob_kind`.
    """
    if logprob_kind not in (None, *KINDS):
        raise RecipeError(f"logprob_kind is 'processed' or 'raw', not {logprob_kind!r}")
    found = answered(response, {}, Settings(logprob_kind))
    given = {
        "module": module,
        "invocation_index": invocation_index,
        "attempt": attempt,
        "policy": policy,
        "prompt_ids": ids(prompt_ids) or found.get("prompt_ids"),
        "completion_ids": ids(completion_ids) or found.get("completion_ids"),
        "sampling_logprobs": floats(sampling_logprobs) or found.get("logprobs"),
    }
    held = {f"mmgrpo.{name}": value for name, value in given.items() if value is not None}
    if "mmgrpo.sampling_logprobs" in held and logprob_kind:
        held["mmgrpo.logprob_kind"] = logprob_kind
    return held
