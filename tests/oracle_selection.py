"""The plain version of the group stage, second part: which members of a group are kept, and how often."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from tests.oracle_rewards import Judge, Row, chain, mix, name_hash


class Selector(Judge):
    """Selection, one group after the other."""

    def _select(self, place: tuple[str, str, int, int], members: list[Row]) -> list[list[Row]]:
        """Per member the times it is kept: [] when left out, [m, copy, copy] with two extra copies."""
        k, mode, n = self.k, self.group.select, len(members)
        if mode == "all" or n == 0:
            return [[m] for m in members]
        ranked = sorted(members, key=lambda m: (m["q"], m["copy_kind"] != "none", self.order[m["rollout"]]))
        if mode == "even":
            places = (
                [(n - 1) // 2]
                if k == 1
                else [math.floor(Fraction(t * (n - 1), k - 1) + Fraction(1, 2)) for t in range(k)]
            )
            return [[m] * sum(ranked[at] is m for at in places) for m in members]
        if mode == "random":
            return self._random(place, members)
        if n == k:
            return [[m] for m in members]
        if n > k:
            kept = self._outermost(ranked)
            return [[m] if any(m is other for other in kept) else [] for m in members]
        return self._with_copies(members)

    def _random(self, place: tuple[str, str, int, int], members: list[Row]) -> list[list[Row]]:
        example, module, key, position = place
        n = len(members)
        if n <= self.k:
            state = chain(mix(self.recipe.seed), example, name_hash(2, module), key, position)
            times = [1] * n
            for turn in range(self.k - n):
                times[chain(state, turn) % n] += 1
            return [[m] * count for m, count in zip(members, times, strict=True)]
        draws = [chain(mix(self.recipe.seed), m["rollout"], name_hash(1, module), position) for m in members]
        kept = sorted(range(n), key=lambda at: draws[at])[: self.k]
        return [[m] if at in kept else [] for at, m in enumerate(members)]

    def _outermost(self, ranked: list[Row]) -> list[Row]:
        """Greatest variance over every cut; then fewest copies; then most high rewards; then preference."""
        n, k = len(ranked), self.k
        best: tuple[Any, ...] | None = None
        chosen: list[Row] = []
        for j in range(k + 1):
            wanted = [m["q"] for m in ranked[:j]] + [m["q"] for m in ranked[n - k + j :]]
            kept: list[Row] = []
            for value in sorted(set(wanted)):
                kept += [m for m in ranked if m["q"] == value][: wanted.count(value)]
            score = (-variance(wanted), sum(m["copy_kind"] != "none" for m in kept), j)
            if best is None or score < best:
                best, chosen = score, kept
        return chosen

    def _with_copies(self, members: list[Row]) -> list[list[Row]]:
        """Every member once, and K - n copies of the least and the greatest: the best split, most of the greatest."""
        extra = self.k - len(members)
        values = [m["q"] for m in members]
        low, high = min(values), max(values)
        top = max(range(extra + 1), key=lambda b: (variance(values + [high] * b + [low] * (extra - b)), b))
        times = {id(m): 1 for m in members}
        for value, count in ((high, top), (low, extra - top)):
            ends = [m for m in members if m["q"] == value]
            ends = [m for m in ends if m["copy_kind"] == "none"] or ends
            for turn in range(count):
                times[id(ends[turn % len(ends)])] += 1
        return [[m] * times[id(m)] for m in members]


def variance(values: list[int]) -> Fraction:
    """Population variance, exactly."""
    n, total = len(values), sum(values)
    return Fraction(n * sum(value * value for value in values) - total * total, n * n)
