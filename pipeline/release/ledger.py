"""The ledger: every look at a dev split spends a part of alpha, whoever looks and whatever is released.

Looks are counted over the whole file. Examples drawn anew, another recipe or another released policy do not start the
count anew: alpha is a promise about everything that the ledger's looks ever release. To look at what is released
already, or to ask again what was asked, is no look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.release.chain import append, held, read_chain
from pipeline.release.records import now
from pipeline.release.scored import Scored
from schemas.decisions import Decision, Look
from schemas.errors import DataError
from schemas.recipe import Recipe
from stages.statistics import alpha_of


def ledger_of(run: Path, recipe: Recipe) -> Path:
    """Where the looks of a run are counted."""
    return run / recipe.gate.ledger


def looks(path: Path) -> list[Look]:
    """All looks of a ledger, oldest first.

    Raises:
        DataError: when it was changed.
    """
    return read_chain(path, Look)


def spent(found: Sequence[Look]) -> float:
    """How much of alpha the looks of a ledger have spent."""
    return math.fsum(look.alpha_k for look in found)


def whole(run: Path, recipe: Recipe, made: Sequence[Decision]) -> list[Look]:
    """All looks of a run's ledger, which has each that a decision of the run was made on.

    Raises:
        DataError: when it was changed, or is not the one that the run began with.
    """
    path = ledger_of(run, recipe)
    found = looks(path)
    if lost := missing_looks(found, made, recipe.gate.ledger):
        raise DataError(
            f"{path}: {lost[0]}. Restore the file, or set gate.ledger back: a ledger that forgets looks would spend "
            "alpha twice."
        )
    return found


def take_look(run: Path, recipe: Recipe, candidate: Scored, against: Scored, made: Sequence[Decision]) -> Look:
    """The line of one comparison: the one that is there, or a new one at the end.

    Raises:
        DataError: when the ledger was changed, or lacks looks that decisions of the run were made on.
        LockedError: when another process holds it.
    """
    path = ledger_of(run, recipe)
    with held(path):
        found = whole(run, recipe, made)
        k, alpha = len(found) + 1, recipe.gate.alpha
        draft = Look(
            at=now(),
            k=k,
            alpha=alpha,
            # Where the recipe's alpha was lowered, what is spent already counts too.
            alpha_k=max(0.0, min(alpha_of(k, alpha), alpha - spent(found))),
            run=recipe.name,
            split=recipe.examples.dev,
            examples=candidate.examples,
            n=len(candidate.means),
            candidate=candidate.policy,
            candidate_scores=candidate.artifact.digest,
            released=against.policy,
            released_scores=against.artifact.digest,
        )
        asked = [look for look in found if look.identity() == draft.identity()]
        return asked[0] if asked else append(path, found, draft)


def missing_looks(found: Sequence[Look], made: Sequence[Decision], ledger: str) -> list[str]:
    """What decisions refer to and a ledger lacks, in words.

    Args:
        found: the looks of the ledger.
        made: decisions of a run.
        ledger: the name of the ledger, as the recipe has it.
    """
    known = {look.digest for look in found}
    lacking = [item for item in made if item.evidence is not None and item.evidence.look not in known]
    return [
        f"it lacks the look that decision {item.number} was made on"
        + (f", which stands in '{item.evidence.ledger}'" if item.evidence.ledger != ledger else "")
        for item in lacking
        if item.evidence is not None
    ]
