"""Files made to fill a disk: refused with what to do, in bounded memory, whatever they are packed with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.ingest import limits as module
from stages.ingest.limits import Limits, limits, use_limits
from tests.test_stages.ingest_kit import packed, read_file
from tests.test_stages.ingest_values import CHAT, SAID

CHATS = "".join(json.dumps({"id": f"c{n}", "messages": [*CHAT, SAID]}) + "\n" for n in range(3)).encode()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = limits()
    monkeypatch.setattr(module, "_FREE", 1 << 16)
    use_limits(Limits(unpacked=1 << 22, ratio=20))
    yield
    use_limits(before)


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("filler", [b" ", b"\n", b'{"a": "b"}\n'])
def test_a_packed_file_gives_what_comes_before_its_limit_and_says_how_to_raise_it(
    how: str, filler: bytes, tmp_path: Path
) -> None:
    found = read_file(packed(tmp_path / "bomb", CHATS + filler * (8 << 20), how), "openai_chat")
    assert len(found.spans) == 3
    last = found.refused[-1]
    assert (last.reason, "unpacked_ratio" in last.detail) == ("not_readable", True)


def test_a_file_that_is_not_packed_may_be_of_any_length(tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "long", CHATS + b"\n" * (8 << 20), "plain"))
    assert (len(found.spans), found.refused) == (3, [])


def test_a_table_whose_values_are_told_once_and_meant_often_is_refused(tmp_path: Path) -> None:
    text = "x" * 1_000
    table = pa.table({"trace_id": ["t"] * 50_000, "name": [text] * 50_000, "score": [1.0] * 50_000})
    pq.write_table(table, tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 18
    found = read_file(tmp_path / "bomb.parquet", "scores")
    assert [item.reason for item in found.refused] == ["too_large"]
    assert len(found.scores) < 10_000
