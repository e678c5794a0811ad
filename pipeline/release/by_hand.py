"""What a person decides: to release a policy, or to go back to one that was released before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.drifting import alarms
from pipeline.locks import hold
from pipeline.manifests import read_stored
from pipeline.release.evidence import weigh
from pipeline.release.ledger import take_look
from pipeline.release.records import decisions, write
from pipeline.release.scored import Scored, why_incomparable
from pipeline.release.standing import NEWEST, Known, Standing, history, scores_of
from pipeline.release.words import reason_of
from pipeline.reporting.opened import OpenRun, open_run
from pipeline.tainted import refuse_tainted
from pipeline.tombstones import refuse_deleted
from schemas.decisions import Decision, Evidence
from schemas.errors import DataError, RecipeError
from stages.contract import Artifact


@dataclass(frozen=True)
class Opened:
    """A run, held for a decision."""

    run: OpenRun
    made: list[Decision]

    @property
    def past(self) -> list[Standing]:
        """What is released, last, and what a rollback leads to."""
        return history(self.run.state.policies[0], self.made)

    @property
    def known(self) -> Known:
        """Where scores are found."""
        return Known(self.run.store, self.run.state, self.run.recipe, self.made)


def release(folder: Path, wanted: str | None, reason: str | None, *, force: bool = False) -> Decision:
    """Release a policy. The decision is the newest one where the policy is released already.

    Args:
        folder: the run's.
        wanted: how its digest begins, or `newest`, the default.
        reason: why, for the record.
        force: release without evidence, or against it.

    Raises:
        RecipeError: when there is no such policy.
        DataError: when it learnt from traces that were to be forgotten, or without `force` when it is not shown to be
            better than what is released; that refusal is a decision too.
    """
    with _held(folder) as opened:
        trained = _trained(opened.run)
        newest = opened.run.state.policies[-1]
        policy = _named(newest if wanted in {None, NEWEST} else wanted, [*trained, opened.run.state.policies[0]])
        now = opened.past[-1]
        if policy == now.policy and now.decision is not None:
            return now.decision
        if policy not in trained:
            raise RecipeError(f"{policy[:12]} is the base, which is what `mmgrpo rollback {folder} --to base` releases")
        refuse_tainted(folder, policy, f"policy {policy[:12]}")
        refuse_deleted(trained[policy])
        scored = scores_of(opened.known, policy)
        evidence, seen = _evidence(opened, now, scored)
        facts = _facts(opened, policy, trained[policy], scored) | {"kind": "release", "evidence": evidence}
        if not force and not (evidence is not None and evidence.passed):
            if evidence is not None:
                write(folder, opened.made, **facts, verdict="kept", reason=_because(reason, seen))
            raise DataError(
                f"policy {policy[:12]} is not released: {seen}. Train on, or score more examples; "
                f"`mmgrpo release {folder} --policy {policy[:12]} --force --reason TEXT` releases it all the same"
            )
        forced = not (evidence is not None and evidence.passed)
        return write(folder, opened.made, **facts, verdict="released", forced=forced, reason=_because(reason, seen))


def rollback(folder: Path, wanted: str | None, reason: str | None) -> Decision:
    """Release what was released before.

    Args:
        folder: the run's.
        wanted: how the digest of a policy begins that was released once, or `base`; default: the one before.
        reason: why, for the record.

    Raises:
        RecipeError: when nothing is released, or that policy never was.
        DataError: when its adapter is gone, or learnt from traces that were to be forgotten.
    """
    with _held(folder) as opened:
        past = opened.past
        now, base = past[-1], past[0]
        earlier = {base.policy: base} | {item.policy: item for item in _moves(opened.made)}
        if wanted is None and len(past) == 1:
            raise RecipeError(f"{folder}: the base is released, and nothing was before it")
        policy = past[-2].policy if wanted is None else _named(base.policy if wanted == "base" else wanted, [*earlier])
        if policy == now.policy:
            raise RecipeError(f"{folder}: {now.name} ({policy[:12]}) is what is released")
        target = earlier[policy]
        adapter = None if target.adapter is None else opened.run.store.open("train", target.adapter)
        if adapter is not None:
            refuse_tainted(folder, policy, f"policy {policy[:12]}")
            refuse_deleted(adapter)
        facts = _facts(opened, policy, adapter, None)
        if target.decision is not None:
            facts |= {name: getattr(target.decision, name) for name in ("prompts", "scores")}
        told = _because(reason, f"back from {now.name}")
        return write(folder, opened.made, **facts, kind="rollback", verdict="released", evidence=None, reason=told)


@contextmanager
def _held(folder: Path) -> Iterator[Opened]:
    run = open_run(folder)
    if not run.state.policies:
        raise DataError(f"{folder} has no policy yet: `mmgrpo run` makes them")
    with hold(folder / ".lock", f"run folder {folder}"):
        yield Opened(run, decisions(folder))


def _evidence(opened: Opened, now: Standing, scored: Scored | None) -> tuple[Evidence | None, str]:
    """What the ledger's look says, taken now if it was not before; in words too."""
    recipe = opened.run.recipe
    if scored is None:
        return None, f"it was not scored on {recipe.examples.dev}"
    against = scores_of(opened.known, now.policy, scored)
    if against is None:
        return None, f"{now.name}, which is released, was not scored in the same way on the same examples"
    if why := why_incomparable(against, scored):
        return None, why
    look = take_look(opened.run.folder, recipe, scored, against, opened.made)
    evidence = weigh(scored, against, look, recipe, tuple(alarms(opened.run.folder, scored.policy)))
    return evidence, reason_of(evidence, now.name, "improves")


def _facts(opened: Opened, policy: str, adapter: Artifact | None, scored: Scored | None) -> dict[str, Any]:
    now, chain = opened.past[-1], opened.run.state.policies
    return {
        "policy": policy,
        "position": max((place for place, item in enumerate(chain) if item == policy), default=None),
        "adapter": None if adapter is None else adapter.manifest.key,
        "prompts": None if scored is None else scored.prompts,
        "scores": None if scored is None else scored.artifact.digest,
        "previous": now.policy,
        "previous_adapter": now.adapter,
    }


def _trained(run: OpenRun) -> dict[str, Artifact]:
    """The train artifact of every policy that the run has made, of earlier recipes too."""
    found: dict[str, Artifact] = {}
    for stage, path in run.store.all():
        if stage == "train":
            manifest = read_stored(path)
            if manifest.metrics["trained"]:
                found.setdefault(str(manifest.metrics["policy"]), Artifact(path, manifest))
    return found


def _moves(made: Sequence[Decision]) -> Iterator[Standing]:
    return (Standing(item.policy, item.adapter, item) for item in made if item.moved)


def _named(start: str, known: Sequence[str]) -> str:
    found = sorted({policy for policy in known if policy.startswith(start)})
    if len(found) != 1:
        which = f"{len(found)} policies begin so" if found else "there is none"
        raise RecipeError(f"policy '{start}': {which}; known: {', '.join(item[:12] for item in sorted(set(known)))}")
    return found[0]


def _because(reason: str | None, seen: str) -> str:
    return f"{reason}; {seen}" if reason else seen
