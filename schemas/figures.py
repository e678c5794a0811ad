"""Of what kind the figures of a manifest are, as far as others read them.

Digests say that a manifest was not changed since it was sealed. Who seals it anew can put in what he likes, and a text
in the place of a number must be told by its name, not by whatever stumbles over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Count = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Counts = dict[str, Count]


class _Figures(BaseModel):
    """Strict: a text is no number, and neither is a truth value. What is not named here may be anything."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Examples(_Figures):
    examples: Count
    splits: Counts


class _Base(_Figures):
    policy: str


class _Sampled(_Figures):
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


class _Group(_Figures):
    rollouts: Count | None = None
    groups: Count | None = None
    members: Count | None = None
    reward: dict[str, Number] | None = None


class _Adapter(_Figures):
    steps: Count
    modules: list[str]
    reason: str | None = None


class _Source(_Figures):
    members: Count
    share: Number | None
    pull_share: Number | None


class _Train(_Figures):
    trained: bool
    policy: str | None = None
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
        return self


class _Prompts(_Figures):
    optimizer: str
    trials: Count
    score_before: Number | None
    score: Number | None
    validation_examples: Count
    calls: Count
    new_calls: Count
    statuses: Counts = {}
    first_error: str | None = None


class _Moved(_Figures):
    """Drift over some calls."""

    calls: Count
    kl_to_base: Number | None = None
    entropy: Number | None = None
    completion_tokens: Number | None = None
    length_cut_share: Number | None = None
    parse_failure_share: Number | None = None
    top_completion_share: Number | None = None
    top_completion_share_gain: Number | None = None


class _Canaries(_Figures):
    n: Count
    same_share: Number | None
    mean_kl: Number | None
    changed: list[str]


class _Drift(_Moved):
    by_module: dict[str, _Moved] = {}
    canaries: _Canaries | None = None
    alarms: list[str] = []


class _Ingest(_Figures):
    rollouts: Count
    invocations: Count
    fidelity: Counts
    fidelity_reasons: Counts


OF_STAGE: Mapping[str, type[_Figures]] = {
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


class _Provenance(_Figures):
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


def figures_problem(stage: str, metrics: Mapping[str, Any], provenance: Mapping[str, Any]) -> str | None:
    """The first figure that is of another kind than its name says; None where all are.

    Args:
        stage: of the artifact.
        metrics: of its manifest.
        provenance: of its manifest.
    """
    for name, kind, found in (
        ("metrics", OF_STAGE.get(stage, _Figures), metrics),
        ("provenance", _Provenance, provenance),
    ):
        try:
            kind.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join([name, *(str(part) for part in first["loc"])])
            got = "" if first["type"] in ("missing", "value_error") else f" (got {str(first['input'])[:60]!r})"
            return f"{where}: {first['msg'].removeprefix('Value error, ')}{got}"
    return None
