"""The policies of a run side by side: how each scored, and what its iteration was like."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.costing import Spent
from pipeline.costs import Ledger
from pipeline.reporting.data import Iteration, PolicyScore, SplitScores
from pipeline.reporting.data_answers import Compared
from pipeline.reporting.data_gate import Gate
from pipeline.reporting.data_training import StepMeans
from pipeline.reporting.opened import OpenRun
from pipeline.reporting.text import ABSENT, difference


def compare(
    run: OpenRun,
    iterations: Sequence[Iteration],
    dev: SplitScores,
    step_means: Sequence[StepMeans],
    *,
    gate: Gate | None,
    ledger: Ledger,
) -> tuple[Compared, ...]:
    """One row for the policy that the run started from, and one for each iteration."""
    scores = {score.position: score for score in dev.policies}
    spent = {row.iteration: row.spent for row in ledger.iterations}
    rows = []
    for position in range(len(iterations) + 1):
        iteration = iterations[position - 1] if position else None
        means = [item for item in step_means if iteration is not None and item.iteration == iteration.index]
        score = scores.get(position)
        policy = run.state.policies[position] if position < len(run.state.policies) else None
        rows.append(
            _row(
                position,
                policy,
                iteration,
                score,
                means=means,
                spent=spent.get(position - 1 if position else None, Spent()),
                gate=gate,
            )
        )
    return tuple(rows)


def _row(
    position: int,
    policy: str | None,
    iteration: Iteration | None,
    score: PolicyScore | None,
    *,
    means: Sequence[StepMeans],
    spent: Spent,
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
        seconds=spent.seconds,
        completion_tokens=spent.completion_tokens,
        money=spent.money,
    )


def _mean(rows: Sequence[StepMeans], name: str) -> float | None:
    """Over adapters, each weighted by its steps."""
    known = [(value, row.steps) for row in rows if (value := row.figures[name]) is not None]
    steps = sum(own for _, own in known)
    return sum(value * own for value, own in known) / steps if steps else None
