"""The lower bound of the gate against closed forms, draws, and the tests of signs against enumeration."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.statistics import alpha_of, difference, lower_bound, mcnemar_p, sign_flip_p, tail

SCORES = st.lists(st.floats(-1, 1, allow_nan=False).map(lambda value: round(value, 3)), min_size=1, max_size=30)


def coin_tail(hits: int, n: int) -> float:
    """P(at least `hits` of `n` fair coins)."""
    return float(Fraction(sum(math.comb(n, i) for i in range(hits, n + 1)), 2**n))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 300))
def test_for_scores_of_0_and_1_the_p_value_is_mcnemars_one_sided_one(gained: int, lost: int, same: int) -> None:
    if gained + lost + same == 0:
        return
    values = [1.0] * gained + [-1.0] * lost + [0.0] * same
    exact = coin_tail(gained, gained + lost) if gained else 1.0
    assert tail(values, -1.0) == pytest.approx(exact, rel=1e-10)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([0.2, 0.05, 1e-3, 1e-5]))
def test_for_values_of_two_kinds_the_bound_is_clopper_and_pearsons(ones: int, zeros: int, alpha: float) -> None:
    bound, n = lower_bound([1.0] * ones + [0.0] * zeros, 0.0, alpha), ones + zeros

    def above(chance: float) -> float:
        return sum(math.comb(n, i) * chance**i * (1 - chance) ** (n - i) for i in range(ones, n + 1))

    assert above(bound) <= alpha * (1 + 1e-9)
    assert above(bound + 3e-7) >= alpha


@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.parametrize("at", [-0.4, 0.0, 0.2])
def test_the_p_value_is_the_share_of_random_weights_whose_mean_is_no_higher(n: int, at: float) -> None:
    generator = np.random.default_rng(n)
    values = generator.uniform(-0.7, 1.0, n)
    weights = generator.standard_exponential((200_000, n + 1))
    means = (weights @ np.append(values, -1.0)) / weights.sum(axis=1)
    assert tail(values.tolist(), -1.0, at) == pytest.approx(float((means <= at).mean()), abs=0.006)  # five sigma


@settings(deadline=None, max_examples=30)
@given(SCORES, st.randoms())
def test_order_does_not_matter_and_a_higher_value_never_lowers_the_bound(values: list[float], random: object) -> None:
    shuffled = values[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    raised = [min(1.0, value + 0.1) for value in values]
    bound = lower_bound(values, -1.0, 0.01)
    assert bound == pytest.approx(lower_bound(shuffled, -1.0, 0.01), abs=1e-6)
    assert lower_bound(raised, -1.0, 0.01) >= bound - 1e-6
    assert -1.0 <= bound <= sum(values) / len(values) + 1e-6


@settings(deadline=None, max_examples=30)
@given(SCORES, st.floats(0.1, 100), st.floats(-50, 50))
def test_the_bound_moves_and_stretches_with_the_scores(values: list[float], stretch: float, shift: float) -> None:
    moved = [value * stretch + shift for value in values]
    expected = lower_bound(values, -1.0, 0.02) * stretch + shift
    assert lower_bound(moved, min(-stretch + shift, *moved), 0.02) == pytest.approx(expected, abs=1e-4 * stretch)


def test_the_bound_and_the_p_value_say_the_same() -> None:
    values = np.random.default_rng(3).normal(0.08, 0.3, 150).clip(-1, 1).tolist()
    p = tail(values, -1.0)
    assert lower_bound(values, -1.0, p * 1.001) > 0 > lower_bound(values, -1.0, p * 0.999)


@pytest.mark.parametrize("alpha", [0.05, 1e-4])
def test_a_rare_large_loss_that_the_sample_has_not_shown_is_reckoned_with(alpha: float) -> None:
    """Gains 0.02 nearly always and loses 1 once in 51: no improvement. A t bound is above 0 whenever none is drawn."""
    chance, trials, generator = 1 / 51, 2000, np.random.default_rng(5)
    released = 0
    for _ in range(trials):
        losses = int(generator.binomial(100, chance))
        released += tail([0.02] * (100 - losses) + [-1.0] * losses, -1.0) <= alpha
    assert (1 - chance) ** 100 > 0.13  # how often a sample has no loss
    assert released / trials <= alpha + 3 * math.sqrt(alpha / trials)


def test_differences_that_are_all_the_same_are_believed_only_as_far_as_their_number_goes() -> None:
    assert tail([0.0] * 50, -1.0) == 1.0
    assert lower_bound([0.0] * 50, -1.0, 0.05) == pytest.approx(0.05 ** (1 / 50) - 1, abs=1e-6)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
def test_sign_flips_are_those_of_every_choice_of_signs(units: list[int]) -> None:
    signs = itertools.product((-1, 1), repeat=len(units))
    sums = [abs(sum(sign * unit for sign, unit in zip(choice, units, strict=True))) for choice in signs]
    exact = sum(value >= abs(sum(units)) for value in sums) / len(sums)
    assert sign_flip_p([unit / 10 for unit in units], 0) == pytest.approx(exact)


def test_drawn_sign_flips_come_near_the_exact_ones_and_are_never_0() -> None:
    generator = np.random.default_rng(0)
    values = generator.uniform(0.5, 2.0, 18) * generator.choice([-1, 1, 1], 18)
    exact = sign_flip_p(values.tolist(), 0)
    more = [*values.tolist(), 1e-6, -1e-6]  # two too many to be enumerated, too small to matter
    assert sign_flip_p(more, 1, flips=20_000) == pytest.approx(exact, abs=0.015)
    assert sign_flip_p([0.1, 0.2] * 40, 0, flips=999) == 1 / 1000


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_and_sign_flips_agree_on_scores_of_0_and_1(pairs: list[tuple[bool, bool]]) -> None:
    a, b = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    p = mcnemar_p(a, b)
    assert p == sign_flip_p([first - second for first, second in zip(a, b, strict=True)], 0)
    gained, lost = (sum(first > second for first, second in zip(*sides, strict=True)) for sides in ((a, b), (b, a)))
    assert p == pytest.approx(min(1.0, 2 * coin_tail(max(gained, lost), gained + lost)))


def test_mcnemar_is_for_scores_of_0_and_1_alone() -> None:
    assert mcnemar_p([0.5, 1.0], [0.0, 1.0]) is None
    assert mcnemar_p([1.0] * 3000, [0.0] * 3000) == pytest.approx(0.0)


def test_a_difference_has_its_interval_and_its_p_values() -> None:
    a = {f"e{index}": float(index % 3 > 0) for index in range(60)}
    b = {f"e{index}": float(index % 4 > 1) for index in range(60)}
    found = difference(a, b, 0, resamples=500)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.estimate <= found.high
    assert found.mcnemar_p == found.sign_flip_p
    assert difference({"a": 1.0}, {"a": 0.0}, 0).sign_flip_p is None


def test_what_all_looks_spend_comes_to_alpha_and_never_to_more() -> None:
    spent = [alpha_of(look, 0.05) for look in range(1, 20_000)]
    assert 0.0499 < math.fsum(spent) < 0.05
    assert spent == sorted(spent, reverse=True)
    assert spent[0] == pytest.approx(0.0304, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tail([], -1.0), "at least one value"),
        (lambda: tail([math.nan], -1.0), "all finite"),
        (lambda: tail([-2.0], -1.0), "do not lie above the lowest"),
        (lambda: lower_bound([0.0], -1.0, 0.7), "alpha in"),
        (lambda: alpha_of(0, 0.05), "a look from 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
