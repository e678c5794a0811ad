"""A short form of `tests/benchmarks/gate_simulation.py`: what the gate promises, within Monte-Carlo error."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.gate_simulation import ALPHA, LOOKS, binary, binary_better, false_releases, lopsided, power

TRIALS = 250
MOST = ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / TRIALS)


@pytest.mark.parametrize("kind", [binary, lopsided])
def test_any_false_release_over_20_correlated_looks_is_within_alpha_which_looking_naively_is_not(kind: object) -> None:
    found = false_releases([kind] * (LOOKS + 1), 60, TRIALS)  # type: ignore[list-item]
    assert found["gate, fixed"] <= MOST
    assert found["gate, redrawn"] <= MOST
    assert found["naive, redrawn"] > MOST


def test_nor_is_there_one_after_a_real_gain_was_released() -> None:
    found = false_releases([binary] * 3 + [binary_better] * (LOOKS - 2), 100, TRIALS)
    assert found["gate, fixed"] <= MOST
    assert found["gate, redrawn"] <= MOST


def test_power_at_3_points_grows_with_examples_and_falls_with_looks() -> None:
    first = [power(n, 1, TRIALS) for n in (200, 1000, 2000)]
    assert first[0] < 0.4 < 0.6 < first[1] < first[2]
    assert first[2] > 0.9
    assert power(1000, 20, TRIALS) < first[1] - 0.2
