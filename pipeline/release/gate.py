"""The gate: after each evaluation of the dev split it looks at the new policy, and `released` moves or not.

Training goes on from the newest adapter either way. A policy is looked at once: a run that is repeated, or goes on
after it was killed, finds the look in the ledger and the decision in its folder, and spends nothing again.
"""

from __future__ import annotations

from pipeline.drifting import alarms
from pipeline.jobs import Job
from pipeline.release.early import is_last, why_stop_behind
from pipeline.release.evidence import weigh
from pipeline.release.ledger import take_look, whole
from pipeline.release.records import decisions, write
from pipeline.release.rescore import rescored
from pipeline.release.scored import Scored, read_scored, why_incomparable
from pipeline.release.standing import Known, Standing, scores_of, standing
from pipeline.release.words import reason_of
from pipeline.run import Runner
from pipeline.tainted import read_tainted
from schemas.decisions import Decision


class Gate:
    """The gate of one process's work on a run: it is told of every job that is done."""

    def __init__(self, runner: Runner) -> None:
        """Read the records of the run, before anything is paid for.

        Raises:
            DataError: when they were changed, or when the ledger is not the one that the run began with.
        """
        self._runner, self._scored = runner, dict[str, Job]()
        whole(runner.folder, runner.recipe, decisions(runner.folder))

    def after(self, job: Job) -> Decision | None:
        """The decision that a job made possible: on the policy whose last figures on the dev split it made."""
        if job.stage.NAME == "evaluate" and job.slot[1] == self._runner.recipe.examples.dev:
            self._scored[job.slot[2]] = job
        scored = self._scored.get(job.slot[2]) if is_last(self._runner.recipe, job) else None
        return look(self._runner, scored) if scored is not None else None

    def why_stop(self, job: Job) -> str | None:
        """Why the run ends behind a job, or None."""
        runner = self._runner
        return why_stop_behind(job, runner.recipe, runner.state.policies, decisions(runner.folder))


def look(runner: Runner, job: Job) -> Decision | None:
    """Look at a policy that was scored on the dev split; the decision on it, made now or before.

    Returns None for the base, and for what is released already.

    Args:
        runner: of the run.
        job: the evaluation, which is done.

    Raises:
        DataError: when the records were changed.
        LockedError: when another process holds the ledger.
    """
    recipe, adapter = runner.recipe, job.artifacts.get("adapter")
    artifact = runner.store.find(job.stage.NAME, runner.key(job))
    scored = read_scored(artifact, recipe) if artifact is not None else None
    if adapter is None or scored is None:
        return None
    made = decisions(runner.folder)
    now = standing(runner.state, made)
    known = [item for item in made if item.kind == "gate" and item.scores == scored.artifact.digest]
    if known and known[-1].evidence is not None:
        return known[-1]
    if now.policy == scored.policy and now.decision is not None and now.decision.prompts == scored.prompts:
        return None
    facts = {
        "kind": "gate",
        "policy": scored.policy,
        "position": int(job.slot[2]),
        "adapter": adapter.manifest.key,
        "prompts": scored.prompts,
        "scores": scored.artifact.digest,
        "previous": now.policy,
        "previous_adapter": now.adapter,
    }
    against = _released_scores(runner, job, now, made, scored)
    if isinstance(against, Scored) and recipe.gate.rule != "always":  # which asks for no evidence
        against = why_incomparable(against, scored) or against
    if isinstance(against, str):
        return (
            known[-1]
            if known
            else write(runner.folder, made, **facts, verdict="kept", evidence=None, reason=f"not compared: {against}")
        )
    taken = take_look(runner.folder, recipe, scored, against, made)
    evidence = weigh(scored, against, taken, recipe, tuple(alarms(runner.folder, scored.policy)))
    through = {"improves": evidence.passed, "always": True, "never": False}[recipe.gate.rule]
    reason = reason_of(evidence, now.name, recipe.gate.rule)
    if through and (tainted := _tainted(runner, scored.policy)):
        through, reason = False, f"{reason}; {tainted}"
    verdict = "released" if through else "kept"
    return write(runner.folder, made, **facts, verdict=verdict, evidence=evidence, reason=reason)


def _released_scores(runner: Runner, job: Job, now: Standing, made: list[Decision], like: Scored) -> Scored | str:
    """Scores of what is released that were made alike, now where there are none; or why there cannot be any."""
    found = scores_of(Known(runner.store, runner.state, runner.recipe, made), now.policy, like)
    if found is not None and (now.decision is None or now.decision.prompts == found.prompts):
        return found
    artifact = rescored(runner, job, now)
    if isinstance(artifact, str):
        return artifact
    scored = read_scored(artifact, runner.recipe)
    if scored is None or scored.way != like.way:
        return "the released policy has no scores of the same examples"
    return scored


def _tainted(runner: Runner, policy: str) -> str | None:
    found = read_tainted(runner.folder)
    return "it learnt from traces that were to be forgotten" if found and policy in found.policies else None
