"""From the parts of a report to the facts that advice is given on."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.reporting.advice import Facts
from pipeline.reporting.data import Iteration, SplitScores
from pipeline.reporting.data_chain import Chain
from pipeline.reporting.data_gate import Gate
from pipeline.reporting.data_training import StepMeans
from pipeline.reporting.opened import OpenRun
from pipeline.reporting.text import after
from pipeline.tainted import read_tainted


def facts_of(
    run: OpenRun,
    iterations: Sequence[Iteration],
    dev: SplitScores,
    *,
    step_means: Sequence[StepMeans],
    chain: Chain,
    gate: Gate | None,
    alarms: Sequence[str],
    running: str | None,
) -> Facts:
    """What `advise` looks at."""
    grouped = [item.groups for item in iterations if item.groups]
    trained = [item for item in iterations if item.trained is not None]
    statuses = _statuses(iterations)
    failed = {status: count for status, count in statuses.items() if status != "ok"}
    tainted = read_tainted(run.folder)
    policies = run.state.policies
    return Facts(
        done=sum(not item.missing for item in iterations),
        wanted=run.recipe.run.iterations,
        running=running,
        ended=run.state.ended,
        idle=trained[-1].train_note if trained and not trained[-1].trained else None,
        scored=len({score.policy for score in dev.policies}),
        changed=len(set(policies)) > 1,
        change=dev.last.to_first if dev.last else None,
        spoiled=bool(dev.spoiled),
        flat_share=grouped[-1].flat_share if grouped else None,
        outsized=grouped[-1].outsized if grouped else None,
        ess=_latest(step_means, "ess"),
        failed_share=sum(failed.values()) / sum(statuses.values()) if statuses else None,
        worst_status=max(sorted(failed), key=lambda status: failed[status], default=None),
        deleted=chain.marked("deleted"),
        tainted=chain.marked("tainted"),
        successor=tainted.successor if tainted else None,
        released=_named(gate.released, policies) if gate else None,
        newest_released=bool(gate and policies and len(set(policies)) > 1 and gate.released == policies[-1]),
        refused=gate.decisions[-1].reason
        if gate and gate.decisions and gate.decisions[-1].verdict != "released"
        else None,
        alarms=tuple(alarms),
        test_split=run.recipe.examples.test is not None,
        tests_opened=run.state.tests_opened,
        folder=run.folder.name,
    )


def _named(policy: str | None, policies: Sequence[str]) -> str | None:
    if policy is None:
        return None
    where = after(policies.index(policy)) if policy in policies else "of an earlier recipe"
    return f"{policy[:12]} ({where})"


def _latest(means: Sequence[StepMeans], name: str) -> float | None:
    """The lowest of the adapters of the latest iteration."""
    latest = max((item.iteration for item in means), default=None)
    known = [value for item in means if item.iteration == latest and (value := item.figures[name]) is not None]
    return min(known, default=None)


def _statuses(iterations: Sequence[Iteration]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for item in iterations:
        for status, count in (item.rollouts.statuses if item.rollouts else {}).items():
            sums[status] = sums.get(status, 0) + count
    return sums
