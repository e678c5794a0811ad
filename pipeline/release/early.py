"""Early stop: a run ends when too many iterations in a row have brought no significant gain."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.jobs import Job
from schemas.decisions import Decision
from schemas.recipe import Recipe


def is_last(recipe: Recipe, job: Job) -> bool:
    """Whether a job is what the walk does last with a policy on the dev split: an alarm of its drift counts too."""
    last = "drift" if recipe.evaluate.drift else "evaluate"
    return job.of_policy and job.slot[1] == recipe.examples.dev and last == job.stage.NAME


def why_stop_behind(job: Job, recipe: Recipe, policies: Sequence[str], made: Sequence[Decision]) -> str | None:
    """Why a run ends behind a job, or None; see `why_stop`."""
    return why_stop(recipe, policies, made, int(job.slot[2])) if is_last(recipe, job) else None


def why_stop(recipe: Recipe, policies: Sequence[str], made: Sequence[Decision], position: int) -> str | None:
    """Why a run ends with the policy at a position, or None.

    A gain is significant where the lower bound of the difference to what was released is above 0, guards aside. What
    was decided on later policies, or on those of an earlier recipe, does not count: a run that is repeated ends where
    it did.

    Args:
        recipe: the run's.
        policies: the run's chain of policies.
        made: its decisions.
        position: of the policy that was just scored; after iteration 0 it is 1.
    """
    patience = recipe.gate.patience
    if patience is None:
        return None
    gains = [
        decision.position
        for decision in made
        if decision.kind == "gate" and decision.evidence is not None and decision.evidence.improved
        if decision.position is not None and decision.position <= position
        if decision.position < len(policies) and policies[decision.position] == decision.policy
    ]
    last = max(gains, default=0)
    if position - last < patience:
        return None
    since = f"since iteration {last - 1}" if last else "so far"
    return (
        f"no significant gain on {recipe.examples.dev} {since}, for {position - last} iterations "
        f"(gate.patience = {patience})"
    )
