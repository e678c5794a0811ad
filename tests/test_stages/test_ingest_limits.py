"""Files made to fill a disk: refused with what to do, in bounded memory, whatever they are packed with."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.ingest import limits as module
from stages.ingest import memory
from stages.ingest.limits import Limits, limits, use_limits
from tests.test_e2e.kit import ROOT
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


def test_a_table_whose_rows_take_more_memory_than_its_size_lets_expect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a footer says of sizes is not believed: 2 MB told once and meant 5,000 times are 10 GB."""
    monkeypatch.setattr(memory, "FLOOR", 128 << 20)
    use_limits(Limits())
    monkeypatch.setattr(module, "_FREE", 64 << 20)
    told = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), pa.array(["x" * (2 << 20)]))
    table = pa.table({"trace_id": told, "score": [1.0] * 5_000})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", dictionary_pagesize_limit=1 << 30)
    found = read_file(tmp_path / "bomb.parquet", "scores")
    assert [item.reason for item in found.refused] == ["too_large"]
    assert "of memory" in found.refused[0].detail
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY
    assert len(read_file(packed(tmp_path / "next", CHATS, "plain")).spans) == 3  # the process goes on


def test_the_first_table_that_a_process_reads_is_read(tmp_path: Path) -> None:
    """Arrow's allocator and threads take their share of memory then, and in a process of tests they have it already."""
    pq.write_table(pa.table({"trace_id": ["t", "u"], "score": [1.0, 0.0]}), tmp_path / "scores.parquet")
    script = "import sys; from stages.ingest.read import read_values; print(*map(type, read_values(sys.argv[1])))"
    command = [sys.executable, "-c", script, str(tmp_path / "scores.parquet")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.stdout.count("shape.Value") == 2, (ran.stdout, ran.stderr)


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_ways_of_packing_that_logs_do_not_use_are_refused(how: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.eval", "w", how) as archive:
        archive.writestr("samples/a_epoch_1.json", b"{}" * 100)
    found = read_file(tmp_path / "log.eval")
    assert [item.reason for item in found.refused] == ["not_readable"]
    assert "packed in a way that is not known" in found.refused[0].detail


@pytest.mark.parametrize("name", [b"samples/\xff\xfe.json", b"samples/\x1b[31m.json", b"/samples/a.json"])
def test_names_in_archives_that_are_no_text_are_no_fault(name: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("samples/" + "n" * (len(name) - 8), b"{}")
    path = tmp_path / "log.eval"
    data = path.read_bytes().replace(b"samples/" + b"n" * (len(name) - 8), name)
    path.write_bytes(data.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x00\x08"))
    found = read_file(path)
    assert len(found.refused) + len(found.spans) == 1
