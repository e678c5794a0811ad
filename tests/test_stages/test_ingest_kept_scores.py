"""Scores are kept as they are made; what a kill or a fault of the disk has harmed is not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.ingest.kept_scores import KeptScores, Score

SCORES = {"a": Score(1.0, '{"x":1.0}'), "b": Score(0.1 + 0.2, None), "c": Score(-1e-300, '{"é":"\\u0000"}')}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    kept = KeptScores(tmp_path / "scores")
    for name, score in SCORES.items():
        kept.keep(name, score)
    return tmp_path / "scores"


def known(path: Path) -> dict[str, Score]:
    kept = KeptScores(path)
    return {name: found for name in SCORES if (found := kept.get(name)) is not None}


def test_a_later_process_knows_every_score_to_the_last_bit(path: Path) -> None:
    assert known(path) == SCORES
    assert KeptScores(path).get("d") is None


def test_wherever_the_file_was_cut_the_whole_lines_count_and_the_next_score_is_kept(path: Path) -> None:
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        whole = data[: end + 1].count(b"\n")  # a line that lacks its end alone is whole
        found = known(path)
        assert found == dict(list(SCORES.items())[: len(found)])
        assert len(found) == whole
        KeptScores(path).keep("d", SCORES["a"])
        assert (known(path), KeptScores(path).get("d")) == (found, SCORES["a"])


def test_a_line_with_a_flipped_bit_is_no_score(path: Path) -> None:
    data = path.read_bytes()
    first = data.index(b"\n")
    for place in range(first):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert "a" not in known(path)
        assert known(path)["b"] == SCORES["b"]
