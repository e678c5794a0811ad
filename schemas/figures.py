"""Of what kind the figures of a manifest are, as far as others read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import model_validator

from schemas.shapes import Count, Counts, Digest, Number, Shape


class _Examples(Shape):
    examples: Count
    splits: Counts


class _Base(Shape):
    policy: Digest


class _Sampled(Shape):
    """Of rollouts, teachers and evaluations."""

    examples: Count | None = None
    rollouts: Count | None = None
    statuses: Counts
    first_error: str | None = None
    mean_reward: Number | None = None
    parse_first_attempt_valid: Number | None = None
    engines: Counts | None = None
    modules_never_called: list[str] | None = None


class _Evaluate(_Sampled):
    split: str
    mean: Number
    n: Count
    failures: Counts
    parts: dict[str, Number | None] | None = None


class _Group(Shape):
    rollouts: Count | None = None
    groups: Count | None = None
    members: Count | None = None
    reward: dict[str, Number] | None = None


class _Adapter(Shape):
    steps: Count
    modules: list[str]
    members: Count = 0
    reason: str | None = None


class _Source(Shape):
    members: Count
    share: Number | None
    pull_share: Number | None


class _Train(Shape):
    trained: bool
    policy: Digest | None = None
    reason: str | None = None
    ended_early: str | None = None
    objective: str | None = None
    path: str | None = None
    steps: Count | None = None
    groups: Count | None = None
    members: Count | None = None
    rows: Count = 0
    narrowed_rows: Count = 0
    likelihood_members: Count = 0
    loss: Number | None = None
    reward: Number | None = None
    kl_ref: Number | None = None
    ess: Number | None = None
    adapters: dict[str, _Adapter] = {}
    sources: dict[str, _Source] = {}

    @model_validator(mode="after")
    def _made_something(self) -> Self:
        if self.trained and self.policy is None:
            raise ValueError("trained is true, and no policy is named")
        if not self.trained and self.reason is None:
            raise ValueError("trained is false, and no reason is given")
        return self


class _Prompts(Shape):
    optimizer: str
    trials: Count
    score_before: Number | None
    score: Number | None
    validation_examples: Count
    calls: Count
    new_calls: Count
    statuses: Counts = {}
    first_error: str | None = None


class _Moved(Shape):
    """Drift over some calls."""

    calls: Count
    kl_to_base: Number | None = None
    entropy: Number | None = None
    completion_tokens: Number | None = None
    length_cut_share: Number | None = None
    parse_failure_share: Number | None = None
    top_completion_share: Number | None = None
    top_completion_share_gain: Number | None = None


class _Canaries(Shape):
    n: Count
    same_share: Number | None
    mean_kl: Number | None
    changed: list[str]


class _Drift(_Moved):
    by_module: dict[str, _Moved] = {}
    canaries: _Canaries | None = None
    alarms: list[str] = []


class _Ingest(Shape):
    traces: Count
    rollouts: Count
    invocations: Count
    examples: Count
    examples_with_siblings: Count
    fidelity: Counts
    fidelity_reasons: Counts
    left_out_traces: Counts
    left_out_calls: Counts
    no_reward: Counts
    modules: Counts = {}
    redacted: Counts = {}
    onto: Counts | None = None


OF_STAGE: Mapping[str, type[Shape]] = {
    "examples": _Examples,
    "base": _Base,
    "rollout": _Sampled,
    "teacher": _Sampled,
    "evaluate": _Evaluate,
    "group": _Group,
    "train": _Train,
    "prompts": _Prompts,
    "drift": _Drift,
    "ingest": _Ingest,
}


class Provenance(Shape):
    """Of any artifact: where and with what it was made."""

    code: dict[str, str | None] = {}
    packages: dict[str, str] = {}
    python: str | None = None
    platform: str | None = None
    cores: Count | None = None
    cpu: str | None = None
    threads: Count | None = None
    device: str | None = None
    root: str | None = None
    run: str | None = None
