"""The score of an example: the mean over its samples.

Samples of one example share its difficulty, so that an example is what is independent of others, not a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def example_means(example_ids: Sequence[str], scores: Iterable[float | None], missing: float) -> dict[str, float]:
    """Mean score of each example over its samples, whatever the row order.

    Args:
        example_ids: the example of each row.
        scores: the score of each row; None where the run failed.
        missing: the score that a failed run counts as.

    Raises:
        ValueError: when the two differ in length, or a score is not finite.
    """
    samples: dict[str, list[float]] = {}
    for example, score in zip(example_ids, scores, strict=True):
        value = missing if score is None else float(score)
        if not math.isfinite(value):
            raise ValueError(f"score of example {example} is {value}, expected a finite number")
        samples.setdefault(example, []).append(value)
    return {example: math.fsum(values) / len(values) for example, values in sorted(samples.items())}
