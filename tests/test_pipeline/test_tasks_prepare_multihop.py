from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.tasks import prepare_multihop
from schemas.errors import DataError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six questions that qualify among eight; two pairs of them are linked, one by a page and one by its origin."""

    def lines(name: str, rows: list[dict[str, Any]]) -> None:
        (tmp_path / name).write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))

    titles = [f"T{n}" for n in range(20)]
    for name in prepare_multihop.CORPORA:
        pl.DataFrame({"id": range(20), "title": titles, "text": [f"text {n}" for n in range(20)]}).write_parquet(
            tmp_path / f"{name}_passages.parquet"
        )
    lines(
        "2wiki_queries.jsonl.gz",
        [
            {"id": "a", "question": "A?", "gold_titles": ["T0", "T1", "T2", "T3"]},
            {"id": "b", "question": "B?", "gold_titles": ["T3", "T4", "T5", "T6"]},
            {"id": "c", "question": "C?", "gold_titles": ["T7", "T8"]},
        ],
    )
    lines(
        "musique_queries.jsonl.gz",
        [
            {"id": "d", "question": "D?", "num_hops": 3, "gold_passage_ids": [9, 10, 10]},
            {"id": "e", "question": "E?", "num_hops": 2, "gold_passage_ids": [11, 12]},
        ],
    )
    claims = [("f", ["T13", "T14"], "h1"), ("g", ["T15", "T16"], "h1"), ("h", ["T17", "T18"], None)]
    rows = [{"id": i, "claim": f"{i}.", "gold_titles": t, "num_hops": 2, "hpqa_id": o} for i, t, o in claims]
    (tmp_path / "hover_covered.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_linked_questions_share_a_split_and_everything_is_counted(source: Path):
    counts = prepare_multihop.write(source, source, source / "out", {"train": 2, "dev": 1})
    rows = {row["id"]: row for row in pl.read_parquet(source / "out" / "examples.parquet").to_dicts()}
    assert set(rows) == {"a", "b", "d", "f", "g", "h"}
    assert rows["a"]["split"] == rows["b"]["split"]
    assert rows["f"]["split"] == rows["g"]["split"]
    assert rows["d"]["titles"] == ["T9", "T10"]
    assert counts["clusters"] == 4
    assert counts["passages"] == 20
    assert counts["repeated passages"] == 40
    assert counts["train"] + counts["dev"] + counts["test"] == 6


def test_a_draw_does_not_depend_on_the_order_of_the_source(source: Path):
    prepare_multihop.write(source, source, source / "one", {"train": 2, "dev": 1})
    path = source / "hover_covered.jsonl"
    path.write_text("\n".join(reversed(path.read_text().splitlines())))
    prepare_multihop.write(source, source, source / "two", {"train": 2, "dev": 1})
    assert (source / "one" / "examples.parquet").read_bytes() == (source / "two" / "examples.parquet").read_bytes()


def test_a_source_without_a_gold_passage_or_a_column_is_refused(source: Path):
    for name in prepare_multihop.CORPORA:
        path = source / f"{name}_passages.parquet"
        pl.read_parquet(path).filter(pl.col("title") != "T13").write_parquet(path)
    with pytest.raises(DataError, match="no passage of the gold page 'T13'"):
        prepare_multihop.write(source, source, source / "out")
    (source / "hover_covered.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match="claim"):
        prepare_multihop.write(source, source, source / "out")
