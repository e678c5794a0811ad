"""How much of alpha a look may spend, when nobody knows how many looks there will be."""

from __future__ import annotations

import math


def alpha_of(look: int, alpha: float) -> float:
    """The level of a look: 6 alpha / (pi² k²), whose sum over all k = 1, 2, … is alpha.

    However many looks there are and however they depend on each other, the chance of any false one is at most the sum
    of their levels (Bonferroni), so at most `alpha`.

    Args:
        look: k, from 1.
        alpha: what all looks together may spend, in (0, 1).
    """
    if look < 1 or not 0.0 < alpha < 1.0:
        raise ValueError(f"expected a look from 1 and alpha in (0, 1), got {look} and {alpha}")
    return 6.0 * alpha / (math.pi * look) ** 2
