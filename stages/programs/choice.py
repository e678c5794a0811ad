"""Which examples an iteration runs, and in which order: a pure function of the seed, the iteration and earlier tries.

The first `rollout.examples` of the order are run; a refill goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from schemas.canonical import seed_from
from schemas.errors import RecipeError
from schemas.recipe import Recipe


def refuse_few(recipe: Recipe, examples: int) -> None:
    """Refuse a train split of fewer examples than an iteration draws.

    Raises:
        RecipeError: saying how many there are.
    """
    if recipe.rollout.examples > examples:
        raise RecipeError(
            f"rollout.examples is {recipe.rollout.examples}, but split '{recipe.examples.train}' has {examples}: an "
            f"iteration draws each example at most once. Set rollout.examples to at most {examples}."
        )


def order(ids: Sequence[str], recipe: Recipe, iteration: int, deviations: Mapping[str, float]) -> list[str]:
    """Every id, in the order in which the iteration runs them.

    Args:
        ids: of the train split, in any order; at least `rollout.examples`.
        recipe: seed, choice, and how many examples an iteration has.
        iteration: which one.
        deviations: of the rewards of each example's last try, for `choice = "spread"`.
    """
    section, seed = recipe.rollout, recipe.seed
    if section.choice == "passes":
        first = draw(ids, seed, iteration, section.examples)
        # Not what the next iteration starts with: it would try the same examples again at once.
        return first + _without(first, sorted(ids, key=lambda name: seed_from(seed, "refill", iteration, name)))
    floor = draw(ids, seed, iteration, math.ceil(section.choice_floor * section.examples))
    return floor + _without(floor, by_deviation(ids, seed, iteration, deviations))


def draw(ids: Sequence[str], seed: int, iteration: int, count: int) -> list[str]:
    """The examples of an iteration: the next `count` of a sequence of passes, each a seeded permutation of all ids.

    All ids are drawn equally often, give or take one. Where an iteration reaches into the next pass, ids that it has
    already come later in that pass, so that none is drawn twice in one iteration. `count` is at most len(ids).
    """
    assert 0 < count <= len(ids), (count, len(ids))
    queue: list[str] = []
    chosen: list[str] = []
    passes = 0
    for _ in range(iteration + 1):
        chosen, queue = queue[:count], queue[count:]
        if len(chosen) < count:
            order_ = sorted(ids, key=lambda name: seed_from(seed, "pass", passes, name))
            fresh = [name for name in order_ if name not in chosen][: count - len(chosen)]
            queue = [name for name in order_ if name not in fresh]
            chosen, passes = chosen + fresh, passes + 1
    return chosen


def by_deviation(ids: Sequence[str], seed: int, iteration: int, deviations: Mapping[str, float]) -> list[str]:
    """All ids by weighted draws without replacement, the weight of an id being its deviation.

    Each id waits for a time of an exponential distribution whose rate is its weight; the shortest waits come first
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006). An id that is not in `deviations`
    weighs as much as the heaviest that is. Those of weight 0 come last, in a seeded order.
    """
    heaviest = max(deviations.values(), default=0.0) or 1.0

    def wait(name: str) -> tuple[float, int]:
        number = seed_from(seed, "spread", iteration, name)
        weight = deviations.get(name, heaviest) / heaviest
        uniform = (number + 0.5) / 2**63
        return (-math.log(uniform) / weight if weight else math.inf), number

    return sorted(ids, key=wait)


def _without(taken: Sequence[str], names: Sequence[str]) -> list[str]:
    gone = set(taken)
    return [name for name in names if name not in gone]
