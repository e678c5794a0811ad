"""What a report says to do next, by its rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.advice import Facts, advise, examples_needed
from stages.statistics import Interval, mean_interval

GOOD = Interval(0.1, 0.05, 0.15, 400)
OPEN = Interval(0.02, -0.02, 0.06, 400)
WORSE = Interval(-0.1, -0.15, -0.05, 400)
FINE = Facts(done=4, wanted=4, scored=5, change=GOOD, flat_share=0.2, ess=0.9, failed_share=0.01)


def titles(**facts: Any) -> list[str]:
    return [item.title for item in advise(dataclasses.replace(FINE, **facts))]


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        ({}, "Train on"),
        ({"test_split": True}, "Open the test split"),
        ({"test_split": True, "tests_opened": 1}, "Train on"),
        ({"released": "abc", "newest_released": True}, "Export the adapter"),
        ({"released": "abc", "refused": "the bound is below 0"}, "Export what is released"),
        ({"change": OPEN}, "Score on more dev examples"),
        ({"change": WORSE}, "Train more gently"),
        ({"change": WORSE, "spoiled": True}, "Mend the scoring, then score again"),
        ({"change": None, "scored": 1}, "Score more policies"),
        ({"done": 2}, "Go on"),
        ({"done": 2, "running": "iteration 2 · rollout"}, "Wait"),
        ({"done": 2, "ended": "iteration 1: all groups are flat"}, "See why it ended early"),
        ({"idle": "all groups are flat"}, "Give it something to learn from"),
        ({"flat_share": 0.8}, "Make rewards differ"),
        ({"outsized": 0.5}, "Leave nearly flat groups out"),
        ({"ess": 0.3}, "Take fewer steps an iteration"),
        ({"failed_share": 0.3, "worst_status": "timeout"}, "Mend what fails"),
        ({"alarms": ("KL to the base is 3 nats",)}, "Look at the drift"),
        ({"tainted": 2, "alarms": ("KL",)}, "Train again without what was forgotten"),
    ],
)
def test_the_most_urgent_thing_comes_first(facts: dict[str, Any], first: str):
    assert titles(**facts)[0] == first


def test_what_is_wrong_is_said_beside_what_went_well():
    assert titles(flat_share=0.8, released="abc", newest_released=True) == ["Make rewards differ", "Export the adapter"]


def test_a_policy_that_did_not_change_is_not_called_worse_or_better():
    assert titles(change=Interval(0.0, 0.0, 0.0, 9), changed=False, idle="flat") == ["Give it something to learn from"]


@pytest.mark.parametrize("status", ["parse_failed", "timeout", "metric_error", "of_a_later_release"])
def test_every_way_to_fail_has_a_remedy(status: str):
    (first, *_) = advise(dataclasses.replace(FINE, failed_share=0.5, worst_status=status))
    assert status in first.text
    assert first.text.endswith(".")


def test_a_gain_that_may_be_chance_is_told_with_the_examples_that_would_show_it():
    (said,) = advise(dataclasses.replace(FINE, change=OPEN))
    needed = examples_needed(OPEN, OPEN.estimate)
    assert needed is not None
    assert needed > OPEN.n
    assert f"some {needed:,} dev examples" in said.text


@pytest.mark.parametrize("gain", [0.02, 0.05])
def test_the_examples_asked_for_show_the_gain_four_times_in_five(gain: float):
    draw = np.random.default_rng(3)
    spread = 0.6
    seen = mean_interval(draw.normal(0.0, spread, 400).tolist(), 1, 2000)
    needed = examples_needed(seen, gain)
    assert needed is not None
    means = draw.normal(gain, spread / np.sqrt(needed), 4000)
    shown = np.mean(means > 1.96 * spread / np.sqrt(needed))
    assert 0.72 < shown < 0.88


@given(
    st.builds(
        Facts,
        done=st.integers(0, 5),
        wanted=st.integers(0, 5),
        running=st.none() | st.text(max_size=9),
        ended=st.none() | st.text(max_size=9),
        idle=st.none() | st.text(max_size=9),
        scored=st.integers(0, 5),
        changed=st.booleans(),
        change=st.none()
        | st.builds(Interval, st.floats(-1, 1), st.none() | st.floats(-1, 1), st.none() | st.floats(-1, 1), st.just(1)),
        spoiled=st.booleans(),
        flat_share=st.none() | st.floats(0, 1),
        ess=st.none() | st.floats(0, 1),
        failed_share=st.none() | st.floats(0, 1),
        worst_status=st.none() | st.text(max_size=9),
        deleted=st.integers(0, 2),
        released=st.none() | st.text(max_size=9),
        newest_released=st.booleans(),
        test_split=st.booleans(),
    )
)
def test_any_facts_have_advice_of_whole_sentences(facts: Facts):
    found = advise(facts)
    assert found
    assert all(item.title and item.text for item in found)
    assert not any("None" in item.text or "nan" in item.text for item in found)
