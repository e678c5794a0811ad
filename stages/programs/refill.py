"""Refill: further examples are run until enough have mixed rewards.

Examples go in waves: the iteration's own first, then a quarter as many at a time. Whether another wave goes depends on
the rewards of all waves before it and on nothing else, so that a killed stage goes on as if it had not been killed,
and the number of workers changes nothing. Every rollout of a started example is made and kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Out
from stages.programs.worth import Worths, worths


def waves(order: Sequence[str], recipe: Recipe, out: Out) -> Iterator[list[str]]:
    """Examples to run, wave by wave. Ask for the next one when all shards of the one before are committed.

    Args:
        order: ids in the order of the draw.
        recipe: how many, and what mixed means.
        out: where the shards of examples that have run are.
    """
    section, mixed, at = recipe.rollout, 0, 0
    most = min(section.most_examples, len(order))
    size = section.examples
    while at < most and (at == 0 or mixed < (section.refill or 0)):
        wave = list(order[at : min(at + size, most)])
        yield wave
        at, size = at + len(wave), -(-section.examples // 4)
        if section.refill is not None and at < most:
            mixed += count_mixed(_worths_of(wave, recipe, out), recipe)


def _worths_of(wave: Sequence[str], recipe: Recipe, out: Out) -> dict[str, Worths]:
    shards = out.committed()
    rollouts, invocations = (
        read_frame([shards[f"{spec.name}/{name}.parquet"] for name in wave], spec, validate=False)
        for spec in (ROLLOUTS, INVOCATIONS)
    )
    return worths(rollouts, invocations, recipe.group)


def count_mixed(found: Mapping[str, Worths], recipe: Recipe) -> int:
    """How many examples have mixed rewards."""
    return sum(worth.mixed(recipe.group) for worth in found.values())


def refill_figures(found: Mapping[str, Worths], ran: int, known: int, recipe: Recipe) -> dict[str, Any]:
    """What a refill came to, for the manifest; empty without one.

    Args:
        found: the worths of all examples that have run.
        ran: how many those are.
        known: examples of the split.
        recipe: what was asked for.
    """
    section = recipe.rollout
    if section.refill is None:
        return {}
    mixed = count_mixed(found, recipe)
    if mixed >= section.refill:
        ended = "enough examples have mixed rewards"
    elif ran == known:
        ended = "every example of the split was run"
    else:
        ended = f"{section.most_examples} examples, the most that an iteration may run, were run"
    return {"mixed_examples": mixed, "refilled": ran - section.examples, "refill_ended": ended}
