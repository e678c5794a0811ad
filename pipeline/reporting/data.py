"""What a report says, as plain data: the page and report.json are two renderings of one `Report`.

Absent is None, never 0: an unfinished run has iterations that lack stages, and a stage may lack telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.costs import Ledger
from pipeline.release.scored import NOT_THE_MODEL
from pipeline.reporting.clips import Clipped
from pipeline.reporting.data_answers import Advice, Answer, Compared, Flips
from pipeline.reporting.data_chain import Chain
from pipeline.reporting.data_drift import Drift
from pipeline.reporting.data_engines import EngineGap, Sampled
from pipeline.reporting.data_gate import Gate
from pipeline.reporting.data_training import AgeStats, ModuleStats, Step, StepMeans
from stages.statistics import Interval


@dataclass(frozen=True)
class PolicyScore:
    """Score of one policy on one split."""

    position: int
    """Iterations finished before it: 0 is the policy that the run started from."""
    policy: str
    score: Interval
    rows: int
    failed: int
    """Rows whose program run failed; each counts as the recipe's `evaluate.failure_score`."""
    failures: dict[str, int]
    """Failed rows by status."""
    artifact: str
    """Its evaluate artifact, relative to the run folder."""
    to_first: Interval | None
    """Paired difference to the first policy scored; None for itself, or where the examples differ."""
    to_previous: Interval | None
    parts: dict[str, float]
    """Mean of each named part of the metric over the runs that have it."""
    first_valid: float | None
    """Share of the calls to be parsed whose first attempt did; None without such calls."""
    engines: dict[str, int]
    """The student's calls by the engine that sampled them; empty where that was not counted."""

    @property
    def spoiled(self) -> dict[str, int]:
        """Failed rows that say nothing of the policy, by status."""
        return {status: count for status, count in self.failures.items() if status in NOT_THE_MODEL}

    def other_engine(self, score: PolicyScore) -> bool:
        """Whether another engine is known to have sampled a score: engines alone may move it."""
        return bool(self.engines and score.engines) and self.engines.keys() != score.engines.keys()


@dataclass(frozen=True)
class SplitScores:
    """All policies scored on one split, in the order of the run."""

    split: str
    policies: tuple[PolicyScore, ...]

    @property
    def part_names(self) -> list[str]:
        """Names of the metric's parts that occur."""
        return sorted({name for row in self.policies for name in row.parts})

    @property
    def parses(self) -> bool:
        """Whether there were calls to be parsed."""
        return any(row.first_valid is not None for row in self.policies)

    @property
    def engines(self) -> list[str]:
        """Names of the engines that sampled, sorted."""
        return sorted({name for row in self.policies for name in row.engines})

    @property
    def first(self) -> PolicyScore | None:
        """The earliest policy scored."""
        return self.policies[0] if self.policies else None

    @property
    def last(self) -> PolicyScore | None:
        """The latest policy scored."""
        return self.policies[-1] if self.policies else None

    @property
    def spoiled(self) -> tuple[PolicyScore, ...]:
        """Those of the first and the last policy that cannot be compared, because of `PolicyScore.spoiled`."""
        ends = self.policies if len(self.policies) < 2 else (self.policies[0], self.policies[-1])
        return tuple(score for score in ends if score.spoiled)


@dataclass(frozen=True)
class RolloutStats:
    """What the rollout stage of one iteration gave."""

    rollouts: int
    examples: int
    rewarded: int
    """Rollouts with a reward; the others failed, or their metric gave none."""
    mean_reward: float | None
    statuses: dict[str, int]
    sources: dict[str, int]


@dataclass(frozen=True)
class ModuleReward:
    """Rollouts that reached the n-th call of a trained module."""

    iteration: int
    module: str
    invocation_index: int
    rollouts: int
    mean_reward: float | None
    """Mean program reward of those that have one."""
    without_reward: int
    first_failed: int
    """Of these calls, how many had no parsable completion at the first attempt."""
    parse_failed: int
    """And how many still had none after the last."""


@dataclass(frozen=True)
class GroupStats:
    """What the group stage of one iteration made."""

    groups: int
    members: int
    copies: dict[str, int]
    """Members that are copies, by kind."""
    sizes: dict[int, int]
    """Number of groups by number of members."""
    flat_kept: int
    """Groups in the table whose rewards are all equal (within `group.min_spread`): they move nothing."""
    flat_dropped: int
    """Groups that were left out because they were flat."""
    modules: dict[str, int]
    """Number of groups that have members, or calls of members, of a module."""
    pull: dict[str, float]
    """Sum over members of |weight * advantage|, by module: how much of the loss each module has."""
    outsized: float | None
    """Share of that sum of members whose advantage is larger than any that its group's deviation was taken over can
    have: failed attempts, which count in no deviation, in groups that are nearly flat. None where nothing pulls."""

    @property
    def flat_share(self) -> float | None:
        """Share of flat groups among all that could have been."""
        total = self.groups + self.flat_dropped
        return (self.flat_kept + self.flat_dropped) / total if total else None


@dataclass(frozen=True)
class Iteration:
    """One iteration; a stage that has not finished is None."""

    index: int
    missing: tuple[str, ...]
    rollouts: RolloutStats | None
    groups: GroupStats | None
    trained: bool | None
    """Whether the train stage made a new policy; None when it has not finished."""
    train_note: str | None
    """Why nothing was trained, or why training ended early."""
    objective: str | None
    """What was trained on, by its name; None when nothing was."""
    likelihood_members: int
    """Members without a behaviour policy: trained as advantage-weighted likelihood."""
    rows: int
    """Distinct calls that were trained on; 0 where that was not counted."""
    narrowed_rows: int
    """Of these, how many were sampled with top_p or top_k."""


@dataclass(frozen=True)
class SourceStats:
    """What one source, the student or a teacher, had in one iteration."""

    iteration: int
    source: str
    rollouts: int
    """Its own of this iteration; replayed ones are counted as members only."""
    ok: int
    mean_reward: float | None
    members: int | None
    """Trained on; None where nothing was, or none of this source."""
    share: float | None
    """Of the members."""
    pull_share: float | None
    """Of the sum over members of |weight * advantage|."""


@dataclass(frozen=True)
class ModulePrompt:
    """The frozen prompt of one module."""

    module: str
    instructions: Clipped
    demos: int


@dataclass(frozen=True)
class Prompts:
    """What a prompts stage made."""

    iteration: int
    """Before which iteration."""
    optimizer: str
    trials: int
    score_before: float | None
    """Score on all validation examples of the prompts that it began with; None where they were never scored so."""
    score: float | None
    """The same of the prompts that it ended with."""
    validation: int
    calls: int
    new_calls: int
    """Calls that were not equal to an earlier one, and so were paid for."""
    modules: tuple[ModulePrompt, ...]


@dataclass(frozen=True)
class Exclusion:
    """Rows left out by a stage."""

    stage: str
    iteration: int | None
    reason: str
    count: int


@dataclass(frozen=True)
class Failure:
    """Program runs that ended the same way: with one status, and errors of the same first line."""

    split: str | None
    """Split of evaluation runs; None for rollouts."""
    status: str
    error: str
    """The first such error: all its lines, of bounded length."""
    count: int
    last_seen: str
    """The iteration of the last such rollout; the policy of the last such evaluation run."""


@dataclass(frozen=True)
class StageCost:
    """What one stage cost over the run."""

    stage: str
    artifacts: int
    without_telemetry: int
    """Artifacts that recorded no telemetry: their cost is not in the sums."""
    figures: dict[str, float]


@dataclass(frozen=True)
class ArtifactRef:
    """An artifact that the run chose."""

    stage: str
    iteration: int | None
    key: str
    digest: str | None
    """None when it is not there (yet)."""
    git: str | None


@dataclass(frozen=True)
class Note:
    """Something that happened and that a reader should know."""

    level: Literal["good", "plain", "warning"]
    text: str


@dataclass(frozen=True)
class Logged:
    """The snapshot of traces that the run grouped with its own rollouts."""

    rollouts: int
    invocations: int
    fidelity: dict[str, int]
    """Calls by how far they can be trusted."""
    reasons: dict[str, int]
    """Calls by why they are not exact."""


@dataclass(frozen=True)
class Report:
    """Everything that a report says."""

    format: int
    name: str
    run_digest: str
    recipe: dict[str, Any]
    running: str | None
    """What was at work when the report was made; None where nothing is known to be."""
    answers: tuple[Answer, ...]
    """The first screen, in order."""
    advice: tuple[Advice, ...]
    """What to do next, most urgent first."""
    verdict: Note
    notes: tuple[Note, ...]
    dev: SplitScores
    test: SplitScores | None
    tests_opened: int
    seconds: float | None
    """Recorded seconds of all stages; None when none was recorded."""
    costs: tuple[StageCost, ...]
    compared: tuple[Compared, ...]
    """The policies of the run, side by side."""
    gate: Gate | None
    drift: Drift | None
    flips: Flips | None
    ledger: Ledger
    prompts: tuple[Prompts, ...]
    iterations: tuple[Iteration, ...]
    sources: tuple[SourceStats, ...]
    logged: Logged | None
    module_rewards: tuple[ModuleReward, ...]
    exclusions: tuple[Exclusion, ...]
    failures: tuple[Failure, ...]
    steps: tuple[Step, ...]
    step_means: tuple[StepMeans, ...]
    ages: tuple[AgeStats, ...]
    module_training: tuple[ModuleStats, ...]
    sampled: tuple[Sampled, ...]
    engine_gaps: tuple[EngineGap, ...]
    artifacts: tuple[ArtifactRef, ...]
    chain: Chain
