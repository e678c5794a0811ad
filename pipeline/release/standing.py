"""What is released: what the newest decision that moved it says; the base at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.release.scored import Scored, read_scored
from pipeline.runfile import RunFile
from pipeline.store import Store
from schemas.decisions import Decision
from schemas.recipe import Recipe

NEWEST = "newest"
"""Stands for the digest of the newest policy."""


@dataclass(frozen=True)
class Standing:
    """A policy that is, or was, released."""

    policy: str
    adapter: str | None
    """Key of the train artifact that made it; None for the base."""
    decision: Decision | None
    """What released it; None for the base that a run starts with."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        return "the base" if self.adapter is None else f"policy {self.policy[:12]}"


def history(base: str, made: Sequence[Decision]) -> list[Standing]:
    """What is released, last, and what it came after: where a rollback leads. The first is the base.

    A rollback takes away what was released since the policy that it went back to.
    """
    stack = [Standing(base, None, None)]
    for decision in made:
        if not decision.moved:
            continue
        item = Standing(decision.policy, decision.adapter, decision)
        places = [place for place, earlier in enumerate(stack) if earlier.policy == decision.policy]
        if places and (decision.kind == "rollback" or places[-1] == len(stack) - 1):
            del stack[places[-1] :]
        stack.append(item)
    return stack


def standing(state: RunFile, made: Sequence[Decision]) -> Standing:
    """What is released now."""
    return history(state.policies[0], made)[-1]


@dataclass(frozen=True)
class Known:
    """What there is to find scores in."""

    store: Store
    state: RunFile
    recipe: Recipe
    made: Sequence[Decision]


def scores_of(known: Known, policy: str, like: Scored | None = None) -> Scored | None:
    """A policy's scores on the dev split, the run's own first, else those that a decision was made on.

    Args:
        known: the run.
        policy: the policy.
        like: other scores; only scores that were made in the same way, of the same examples, will do.
    """
    chosen = known.state.evaluations.get(known.recipe.examples.dev, {}).get(policy)
    keys = [chosen] if chosen else []
    for decision in reversed(known.made):
        if decision.evidence is not None and decision.policy == policy:
            keys.append(decision.evidence.scores)
        if decision.evidence is not None and decision.evidence.against == policy:
            keys.append(decision.evidence.against_scores)
    for key in dict.fromkeys(keys):
        artifact = known.store.find("evaluate", key)
        scored = read_scored(artifact, known.recipe) if artifact is not None else None
        if scored is not None and (like is None or scored.way == like.way):
            return scored
    return None
