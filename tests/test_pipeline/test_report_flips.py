"""Examples that flipped between policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting import flips
from pipeline.reporting.build import build_report
from pipeline.reporting.collect import collect
from pipeline.reporting.data_answers import Flips
from pipeline.reporting.flips import INPUTS_LENGTH, excerpt, kind_of
from schemas.canonical import canonical_json
from tests.test_pipeline.report_run import EVIL, RunWriter


def flipped(folder: Path, *scores: list[float | None]) -> Flips | None:
    writer = RunWriter(folder, iterations=max(len(scores) - 1, 1))
    writer.add_setup()
    for position, values in enumerate(scores):
        if position:
            writer.add_rollout()
            writer.add_group()
            writer.add_train()
        writer.add_scores(position, values)
    return collect(writer.write()).flips


def test_gained_lost_and_back_again_are_told_apart_and_the_same_is_left_out(tmp_path: Path):
    found = flipped(tmp_path, [0.0, 1.0, 1.0, 0.5], [0.0, 1.0, 0.0, 0.5], [1.0, 0.0, 1.0, 0.5])
    assert found is not None
    assert (found.compared, found.positions) == (4, (0, 1, 2))
    assert found.flipped == {"gained": 1, "lost": 1, "back again": 1}
    assert [(row.kind, row.scores) for row in found.shown] == [
        ("lost", (1.0, 1.0, 0.0)),
        ("gained", (0.0, 0.0, 1.0)),
        ("back again", (1.0, 0.0, 1.0)),
    ]


def test_one_policy_or_none_in_common_has_no_flips(tmp_path: Path):
    assert flipped(tmp_path, [1.0, 0.0]) is None


def test_a_failed_run_counts_as_the_recipe_says(tmp_path: Path):
    found = flipped(tmp_path, [None, 0.0], [1.0, 0.0])
    assert found is not None
    assert [(row.kind, row.scores) for row in found.shown] == [("gained", (0.0, 1.0))]


def test_what_is_shown_is_bounded_and_no_kind_crowds_out_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flips, "SHOWN", 10)
    found = flipped(tmp_path, [0.0] * 40 + [1.0] * 3, [1.0] * 40 + [0.5] * 3)
    assert found is not None
    assert found.flipped == {"gained": 40, "lost": 3, "back again": 0}
    assert [row.kind for row in found.shown].count("lost") == 3
    assert len(found.shown) == 10
    page = build_report(tmp_path).read_text()
    assert "10 are shown, the largest changes of each kind." in page


def test_of_many_policies_the_first_and_the_last_ones_are_shown(tmp_path: Path):
    found = flipped(tmp_path, *[[float(position % 2), 1.0] for position in range(10)])
    assert found is not None
    assert found.positions == (0, 1, 5, 6, 7, 8, 9)
    assert len(found.shown[0].scores) == 7


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=6))
def test_the_kind_is_that_of_the_ends_and_reversing_swaps_gains_and_losses(path: list[float]):
    swapped = {"gained": "lost", "lost": "gained", "back again": "back again", None: None}
    assert kind_of(path[::-1]) == swapped[kind_of(path)]
    assert (kind_of(path) is None) == (len(set(path)) == 1)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=300) | st.none(), max_size=4))
def test_an_excerpt_is_one_bounded_line(inputs: dict[str, str | None]):
    text = excerpt(canonical_json(inputs))
    assert 0 < len(text) <= INPUTS_LENGTH
    assert "\n" not in text


def test_inputs_are_shown_as_text(tmp_path: Path):
    assert excerpt(json.dumps({"question": f"a\n  b {EVIL}"})).startswith("a b <script>")
    assert excerpt("no json") == "no json"
