from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from stages.statistics import Interval, bootstrap_seed, example_means, mean_interval, paired_interval


def by_id(values: list[float]) -> dict[str, float]:
    return {f"e{index:03d}": value for index, value in enumerate(values)}


def test_equal_values_and_seed_give_an_equal_interval_whatever_the_order():
    values = [0.1, 0.7, 0.3, 0.9, 0.2, 0.2]
    shuffled = values[:]
    random.Random(3).shuffle(shuffled)
    assert mean_interval(values, 7) == mean_interval(shuffled, 7) == mean_interval(by_id(shuffled), 7)


def test_another_seed_moves_the_ends_a_little():
    values = np.random.default_rng(1).random(50).tolist()
    first, second = mean_interval(values, 7), mean_interval(values, 8)
    assert first != second
    assert first.low == pytest.approx(second.low, abs=0.005)


def test_the_estimate_is_the_mean_and_lies_in_its_interval():
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 0.5]
    interval = mean_interval(values, 1)
    assert interval.estimate == pytest.approx(3.5 / 6, abs=1e-15)
    assert interval.n == 6
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < interval.estimate < interval.high


def test_three_examples_match_the_enumerated_bootstrap_distribution():
    values = [0.0, 0.0, 3.0]
    exact = sorted(sum(draw) / 3 for draw in itertools.product(values, repeat=3))  # 27 equally likely means
    # P(0) = 8/27, P(1) = 12/27, P(2) = 6/27, P(3) = 1/27, so the distribution function is .296, .741, .963, 1.
    assert [exact.count(mean) for mean in (0.0, 1.0, 2.0, 3.0)] == [8, 12, 6, 1]
    ends = {level: mean_interval(values, 5, level=level) for level in (0.3, 0.5, 0.9, 0.98)}
    assert {level: (interval.low, interval.high) for level, interval in ends.items()} == {
        0.3: (1.0, 1.0),
        0.5: (0.0, 2.0),
        0.9: (0.0, 2.0),
        0.98: (0.0, 3.0),
    }


def test_a_large_sample_agrees_with_the_normal_interval():
    values = np.random.default_rng(0).normal(2.0, 1.5, size=400)
    interval = mean_interval(values.tolist(), 11, resamples=20_000)
    half = 1.959964 * float(values.std()) / math.sqrt(400)
    assert interval.low == pytest.approx(float(values.mean()) - half, abs=0.01)
    assert interval.high == pytest.approx(float(values.mean()) + half, abs=0.01)


def test_blocks_of_draws_cover_every_resample(monkeypatch: pytest.MonkeyPatch):
    import stages.statistics.intervals as module

    monkeypatch.setattr(module, "_DRAWS", 7)
    means = module._resampled_means(np.array([0.0, 1.0, 2.0]), 4, 101)
    assert means.shape == (101,)
    assert set(np.round(means * 3)) <= set(range(7))


@pytest.mark.parametrize(("size", "least"), [(20, 0.86), (100, 0.915)])
def test_a_95_percent_interval_covers_the_true_mean_about_that_often(size: int, least: float):
    generator = np.random.default_rng(size)
    trials = 500
    hits = 0
    for trial in range(trials):
        interval = mean_interval((generator.random(size) < 0.6).astype(float).tolist(), trial, resamples=600)
        hits += interval.low is not None and interval.high is not None and interval.low <= 0.6 <= interval.high
    # Monte-Carlo error of 500 trials is about 1 % (one sigma); the percentile interval is short for few examples.
    assert least <= hits / trials <= 0.985


def test_a_paired_interval_covers_the_true_difference_and_is_rarely_above_zero_without_one():
    generator = np.random.default_rng(9)
    covered = false_alarms = 0
    for trial in range(400):
        ease = generator.normal(0, 1, 80)
        first, second = (by_id((ease + generator.normal(0, 0.4, 80)).tolist()) for _ in range(2))
        moved = {example: value + 0.3 for example, value in second.items()}
        real = paired_interval(moved, first, trial, resamples=600)
        assert real.low is not None
        assert real.high is not None
        covered += real.low <= 0.3 <= real.high
        false_alarms += paired_interval(second, first, trial, resamples=600).above_zero
    assert 0.91 <= covered / 400 <= 0.985
    assert false_alarms / 400 <= 0.055  # nominal 2.5 % on this side


def test_pairing_removes_what_both_policies_find_hard():
    ease = np.random.default_rng(2).normal(0, 1, 60)
    first, second = by_id(ease.tolist()), by_id((ease + 0.1).tolist())
    paired = paired_interval(second, first, 0)
    assert paired.above_zero
    assert paired.estimate == pytest.approx(0.1)
    alone = mean_interval(second, 0)
    assert alone.low is not None
    assert paired.low is not None
    assert alone.estimate - alone.low > 5 * (paired.estimate - paired.low)


def test_one_example_has_a_mean_but_no_interval():
    interval = mean_interval([0.25], 0)
    assert interval == Interval(0.25, None, None, 1)
    assert not interval.above_zero
    assert not interval.below_zero


def test_equal_examples_give_exactly_their_value():
    assert mean_interval([0.1] * 7, 0) == Interval(0.1, 0.1, 0.1, 7)
    same = by_id([0.1, 0.9, 0.4])
    assert paired_interval(same, same, 0) == Interval(0.0, 0.0, 0.0, 3)


def test_samples_of_an_example_are_averaged_and_failures_count_as_the_recipe_says():
    means = example_means(["b", "a", "b", "a"], [1.0, None, 0.0, 1.0], missing=-1.0)
    assert means == {"a": 0.0, "b": 0.5}
    assert list(means) == ["a", "b"]


def test_more_samples_of_the_same_examples_do_not_shrink_the_interval_as_more_examples_would():
    ids = [f"e{index % 10}" for index in range(1000)]
    scores = [float(index % 10 < 5) for index in range(1000)]
    many_samples = mean_interval(example_means(ids, scores, 0.0), 0)
    assert many_samples == mean_interval([1.0] * 5 + [0.0] * 5, 0)
    assert many_samples.n == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([], 0), "at least one example"),
        (lambda: mean_interval([0.1, math.nan], 0), "1 of 2 values are not finite"),
        (lambda: mean_interval([0.1, 0.2], 0, level=95.0), "level in"),
        (lambda: mean_interval([0.1, 0.2], 0, resamples=0), "at least 1 resample"),
        (lambda: paired_interval({"a": 1.0}, {"b": 1.0}, 0), "1 are only in the first, 1 only in the second"),
        (lambda: example_means(["a"], [math.inf], 0.0), "score of example a is inf"),
        (lambda: example_means(["a", "b"], [1.0], 0.0), "zip"),
    ],
)
def test_bad_input_is_refused_with_its_count(call: object, message: str):
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_a_run_has_one_bootstrap_seed():
    assert bootstrap_seed(3) == bootstrap_seed(3) != bootstrap_seed(4)
