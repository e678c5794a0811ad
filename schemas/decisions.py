"""What a run records of releases: looks at the dev split, and decisions. Both are chains: each names the one before."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from schemas.canonical import digest


class Record(BaseModel):
    """One link of a chain."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    parent: str = ""
    """Digest of the record before it; empty for the first."""
    at: str
    """When, UTC."""
    digest: str = ""
    """Of everything else in it."""

    def own_digest(self) -> str:
        """Digest of everything but this digest itself."""
        return digest(self.model_dump(exclude={"digest"}, mode="json"))


class Look(Record):
    """A line of the ledger: one comparison of a candidate with what was released, and the level that it was given."""

    format: Literal[1] = 1
    k: int
    """Its number in the ledger, from 1."""
    alpha: float
    """What the recipe of then allowed all looks together."""
    alpha_k: float
    """What this one spent."""
    run: str
    """Name of the recipe."""
    split: str
    examples: str
    """Digest of the ids that were scored. Examples drawn anew do not start the count anew."""
    n: int
    """Examples."""
    candidate: str
    """Policy."""
    candidate_scores: str
    """Digest of its evaluate artifact."""
    released: str
    released_scores: str

    def identity(self) -> str:
        """Digest of what was compared: the same comparison is one look, however often it is asked."""
        names = ("split", "candidate", "candidate_scores", "released", "released_scores")
        return digest({name: getattr(self, name) for name in names})


class Opening(Record):
    """A line of `openings.jsonl`: the test split was scored."""

    format: Literal[1] = 1
    split: str
    scores: tuple[str, ...]
    """Keys of the evaluate artifacts that were news."""


class Guarded(BaseModel):
    """What became of a part of the metric that may not get worse."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    part: str
    margin: float
    """How much may be lost."""
    estimate: float | None
    """Mean difference; None where no run has the part."""
    lower: float | None
    """Its lower bound at 1 - alpha_k."""
    missing: int
    """Runs of either policy without the part; each counts as the lowest value seen."""
    held: bool
    """Whether `lower` is above -margin."""


class Evidence(BaseModel):
    """What a decision was made on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ledger: str
    look: str
    """Digest of the line of the ledger."""
    k: int
    alpha: float
    alpha_k: float
    split: str
    against: str
    """The policy that was released then."""
    scores: str
    """Key of the candidate's evaluate artifact."""
    against_scores: str
    """Key of the released policy's."""
    n: int
    score: float
    against_score: float
    estimate: float
    """Mean paired difference."""
    lower: float
    """Its lower bound at level 1 - alpha_k: what the rule asks about."""
    p: float
    """One-sided p-value of "no improvement": at most alpha_k where `lower` is above 0."""
    low: float | None
    """Ends of the 95 % bootstrap interval."""
    high: float | None
    sign_flip_p: float | None
    mcnemar_p: float | None
    improved: bool
    guards: tuple[Guarded, ...] = ()
    alarms: tuple[str, ...] = ()
    """Drift checks that the candidate did not pass."""

    @property
    def passed(self) -> bool:
        """Whether the rule `improves` lets the candidate through."""
        return self.improved and all(guard.held for guard in self.guards) and not self.alarms


class Decision(Record):
    """`decisions/NNNN.json`: whether `released` moved, to what, and why."""

    format: Literal[1] = 1
    number: int
    """From 1."""
    kind: Literal["gate", "release", "rollback"]
    verdict: Literal["released", "kept"]
    policy: str
    """The policy that it is about."""
    position: int | None
    """Its place in the run's chain of policies then, 0 for the base; None where it is not in there any more."""
    adapter: str | None
    """Key of the train artifact that made it; None for the base."""
    prompts: str | None
    """Digest of the artifact of optimized prompts that it was scored with; None for the program's own, or unknown."""
    scores: str | None
    """Digest of its scores on the dev split; None where it was not scored."""
    previous: str
    """The policy that was released before."""
    previous_adapter: str | None
    evidence: Evidence | None
    forced: bool = False
    """Released by hand although the evidence was missing or not enough."""
    reason: str
    """In words."""

    @property
    def moved(self) -> bool:
        """Whether `released` is another policy since."""
        return self.verdict == "released"
