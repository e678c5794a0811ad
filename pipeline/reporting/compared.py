"""The policies of a run side by side: how each scored, and what its iteration was like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.reporting.data import Iteration, PolicyScore, SplitScores
from pipeline.reporting.data_answers import Compared
from pipeline.reporting.data_gate import Gate
from pipeline.reporting.data_training import StepMeans
from pipeline.reporting.opened import OpenRun, telemetry
from pipeline.reporting.text import ABSENT, difference


def compare(
    run: OpenRun,
    iterations: Sequence[Iteration],
    dev: SplitScores,
    step_means: Sequence[StepMeans],
    gate: Gate | None,
) -> tuple[Compared, ...]:
    """One row for the policy that the run started from, and one for each iteration."""
    scores = {score.position: score for score in dev.policies}
    spent = _spent(run)
    rows = []
    for position in range(len(iterations) + 1):
        iteration = iterations[position - 1] if position else None
        means = [item for item in step_means if iteration is not None and item.iteration == iteration.index]
        score = scores.get(position)
        policy = run.state.policies[position] if position < len(run.state.policies) else None
        rows.append(_row(position, policy, iteration, score, means=means, spent=spent.get(position, {}), gate=gate))
    return tuple(rows)


def _row(
    position: int,
    policy: str | None,
    iteration: Iteration | None,
    score: PolicyScore | None,
    *,
    means: Sequence[StepMeans],
    spent: Mapping[str, float],
    gate: Gate | None,
) -> Compared:
    rolled = iteration.rollouts if iteration else None
    compared = gate.difference_of(position) if gate else None
    return Compared(
        position=position,
        iteration=iteration.index if iteration else None,
        policy=policy,
        score=score.score.estimate if score else None,
        low=score.score.low if score else None,
        high=score.score.high if score else None,
        to_first=difference(score.to_first if score else None),
        to_previous=difference(score.to_previous if score else None),
        to_released=difference(compared.to_released if compared else None),
        gate=(gate.verdict_of(policy) if gate and policy else None) or ABSENT,
        reward=rolled.mean_reward if rolled else None,
        failed_share=(
            (rolled.rollouts - rolled.statuses.get("ok", 0)) / rolled.rollouts if rolled and rolled.rollouts else None
        ),
        flat_share=iteration.groups.flat_share if iteration and iteration.groups else None,
        steps=max((item.steps for item in means), default=None),
        kl_old=_mean(means, "kl_old"),
        ess=_mean(means, "ess"),
        seconds=spent.get("seconds"),
        completion_tokens=spent.get("completion_tokens"),
    )


def _mean(rows: Sequence[StepMeans], name: str) -> float | None:
    """Over adapters, each weighted by its steps."""
    known = [(value, row.steps) for row in rows if (value := row.figures[name]) is not None]
    steps = sum(own for _, own in known)
    return sum(value * own for value, own in known) / steps if steps else None


def _spent(run: OpenRun) -> dict[int, dict[str, float]]:
    """What each position cost: the stages of its iteration, and scoring its policy. The set-up counts to none."""
    sums: dict[int, dict[str, float]] = {}
    scored = {
        (position, scores[policy])
        for scores in run.state.evaluations.values()
        for position, policy in enumerate(run.state.policies)
        if policy in scores and run.state.policies.index(policy) == position
    }
    made = [
        (index + 1, name.partition(".")[0], key)
        for index, keys in enumerate(run.state.iterations)
        for name, key in keys.items()
    ]
    for position, stage, key in [*made, *((position, "evaluate", key) for position, key in sorted(scored))]:
        artifact = run.store.find(stage, key)
        total = sums.setdefault(position, {})
        for name, value in (telemetry(artifact) if artifact else {}).items():
            total[name] = total.get(name, 0.0) + value
    return sums
