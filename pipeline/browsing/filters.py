"""What a query asks for: filters as a client sends them, checked one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.errors import RecipeError
from schemas.rollouts import STATUSES

LONGEST_TEXT = 200
SORTS = ("order", "best", "worst")
LOGGED = "logged"
"""In the place of an iteration: the traces that were logged before the run."""


@dataclass(frozen=True)
class Filters:
    """Which rollouts are wanted; None: whatever they have."""

    iteration: str | None = None
    """A number, or `logged`."""
    module: str | None = None
    """That they call at least once."""
    status: str | None = None
    source: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    q: str | None = None
    """A text in their ids, inputs, output, error or completions; capitals do not matter."""
    sort: str = "order"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Filters:
        """Filters of a query.

        Raises:
            RecipeError: for a value that cannot be meant, naming the filter.
        """
        iteration, status, sort = given.get("iteration"), given.get("status"), given.get("sort", "order")
        if iteration is not None and iteration != LOGGED and not (iteration.isdecimal() and len(iteration) < 10):
            raise RecipeError(f"iteration '{iteration[:50]}': expected a number or '{LOGGED}'")
        if status is not None and status not in STATUSES:
            raise RecipeError(f"status '{status[:50]}': expected one of {', '.join(STATUSES)}")
        if sort not in SORTS:
            raise RecipeError(f"sort '{sort[:50]}': expected one of {', '.join(SORTS)}")
        if len(given.get("q", "")) > LONGEST_TEXT:
            raise RecipeError(f"q has {len(given['q'])} characters: expected at most {LONGEST_TEXT}")
        return cls(
            iteration=iteration,
            module=given.get("module"),
            status=status,
            source=given.get("source"),
            reward_min=_number(given, "reward_min"),
            reward_max=_number(given, "reward_max"),
            q=given.get("q") or None,
            sort=sort,
        )


def _number(given: Mapping[str, str], name: str) -> float | None:
    if name not in given:
        return None
    try:
        value = float(given[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RecipeError(f"{name} '{given[name][:50]}': expected a number")
    return value
