"""A lower bound on a mean that holds at levels far from 95 %, for few examples and lopsided scores alike.

The release gate asks at levels such as 1e-4. There the percentile bootstrap has nothing to count, and a t bound
believes in a spread that a rare large loss has not shown yet: an adapter that gains a little often and loses much
seldom has a sample without losses, now and then. What is needed is the lowest value that a difference can have, and it
is known: scores have a range.

The bound is Gaffke's (Gaffke 2005; Learned-Miller and Thomas 2019, arXiv:1905.06208). Give the n values and one more,
the lowest there can be, random weights that are uniform on all that sum to 1: the chance that the weighted mean is at
most m, `tail(values, lowest, m)`, is the p-value of "the true mean is at most m", and the bound at level 1 - alpha is
the m where it is alpha. Facts:

- For differences of 0/1 scores (-1, 0, 1) the p-value at 0 is exactly that of McNemar's one-sided test, which is valid.
  For values of two kinds the bound is Clopper and Pearson's.
- In general nobody has found a distribution for which it fails, nor proved that there is none.
  `tests/benchmarks/gate_simulation.py` tries hard ones.
- It costs little: the one value added moves the mean by (mean - lowest) / (n + 1).

The chance is computed, not drawn. Uniform weights are independent exponentials over their sum, so that it is the chance
that a weighted sum of exponentials is at most 0: an integral of its moment generating function along a vertical line in
the complex plane, here the one through the saddle point, where nothing oscillates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_POINTS = np.arange(0.0, 16.0, 1 / 16)
"""Points of the trapezoidal rule, in u of y = w sinh(u): it converges exponentially for what is analytic."""
_CELLS = 1 << 21
"""Complex logarithms at a time: 32 MB."""
_BLOCKS = 8
"""Parts of the line, after each of which it may have come to nothing."""


def tail(values: Sequence[float], lowest: float, at: float = 0.0) -> float:
    """p-value of "the mean that these values are drawn from is at most `at`"; small where they lie above it.

    Args:
        values: one number per independent example.
        lowest: the lowest number that could have been among them.
        at: the mean in question; above `lowest`.

    Raises:
        ValueError: without values, when one is below `lowest` or not finite, or `at` is not above `lowest`.
    """
    plain = np.asarray(values, dtype=np.float64)
    if plain.size == 0 or not np.isfinite(plain).all():
        raise ValueError("a bound needs at least one value, all finite")
    if plain.min() < lowest - 1e-12 or at <= lowest:
        raise ValueError(f"values from {plain.min()} and a mean of {at} do not lie above the lowest, {lowest}")
    return _tail(*np.unique(plain, return_counts=True), lowest, at)


def lower_bound(values: Sequence[float], lowest: float, alpha: float) -> float:
    """The lower bound at level 1 - `alpha` on the mean that these values are drawn from; at least `lowest`.

    Raises:
        ValueError: as `tail` does, or for an alpha outside (0, 0.5).
    """
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"expected alpha in (0, 0.5), got {alpha}")
    plain = np.asarray(values, dtype=np.float64)
    low, high = float(lowest), float(plain.max()) if plain.size else float(lowest)
    if high <= low:
        return low
    tail(values, lowest, high)  # checks the values
    known = np.unique(plain, return_counts=True)
    step = 1e-7 * (high - low)
    while high - low > step:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(*known, lowest, middle) <= alpha else (low, middle)
    return low


def _tail(values: NDArray[np.float64], counts: NDArray[np.int64], lowest: float, at: float) -> float:
    """P(sum of E_i (value_i - at) <= 0) over independent exponentials E_i, the lowest value counted once more."""
    sizes = np.append(values, lowest) - at
    shapes = np.append(counts, 1).astype(np.float64)
    if sizes.max() <= 0.0:
        return 1.0
    sizes, shapes = sizes[sizes != 0.0] / np.abs(sizes).max(), shapes[sizes != 0.0]
    saddle = _saddle(sizes, shapes)
    curvature = float((shapes * (sizes / (1.0 - saddle * sizes)) ** 2).sum()) + saddle**-2
    width = curvature**-0.5
    height = area = 0.0
    for points in np.split(_POINTS, _BLOCKS):
        line = saddle + 1j * width * np.sinh(points)
        logs = -np.concatenate([np.log1p(-part[:, None] * sizes) @ shapes for part in _parts(line, sizes.size)])
        heights = np.exp(logs - np.log(-line)).real * np.cosh(points) * width
        area += float(heights.sum()) - (float(heights[0]) / 2 if points[0] == 0.0 else 0.0)
        height = max(height, float(np.abs(heights).max()))
        if np.abs(heights).max() < 1e-17 * height:
            break
    return min(1.0, max(0.0, area * float(_POINTS[1]) / math.pi))


def _parts(line: NDArray[np.complex128], size: int) -> list[NDArray[np.complex128]]:
    rows = max(1, _CELLS // size)
    return [line[start : start + rows] for start in range(0, line.size, rows)]


def _saddle(sizes: NDArray[np.float64], shapes: NDArray[np.float64]) -> float:
    """Where log E exp(s S) - log(-s), convex in s on (1 / smallest size, 0), is least."""
    low, high = 1.0 / float(sizes.min()), 0.0
    for _ in range(30):
        middle = (low + high) / 2
        slope = float((shapes * sizes / (1.0 - middle * sizes)).sum()) - 1.0 / middle
        low, high = (middle, high) if slope < 0.0 else (low, middle)
    return (low + high) / 2
