"""inspect_ai's `.eval` files: zip archives of JSON, whole, damaged and hostile."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stages.ingest import limits, zipped
from tests.test_stages.ingest_kit import TRACES, Held, counts, read_file
from tests.test_stages.ingest_values import SAMPLE

LOG = TRACES / "inspect_ai" / "log_read_sample.json"
HEADER = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}}


def archive(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def members(*samples: Any) -> dict[str, bytes]:
    """Of a log, laid out as inspect_ai does."""
    held = {"_journal/start.json": HEADER, "_journal/summaries/1.json": [], "header.json": HEADER, "summaries.json": []}
    held |= {f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in samples}
    return {name: json.dumps(value).encode() for name, value in held.items()}


def as_zstd(path: Path) -> Path:
    """An archive whose stored members are packed by zstd, as newer releases of inspect_ai write them."""
    data, moved = bytearray(), {}
    with zipfile.ZipFile(path) as old:
        infos = [(info, old.read(info)) for info in old.infolist()]
    for info, plain in infos:
        packed, name = zstandard.compress(plain), info.filename.encode()
        moved[info.filename] = len(data)
        sizes = (info.CRC, len(packed), len(plain), len(name), 0)
        data += struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 93, 0, 0, *sizes) + name + packed
    start = len(data)
    for info, plain in infos:
        packed, name = zstandard.compress(plain), info.filename.encode()
        told = (info.CRC, len(packed), len(plain), len(name), 0, 0, 0, 0, 0, moved[info.filename])
        data += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 93, 0, 0, *told) + name
    data += struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, len(infos), len(infos), len(data) - start, start, 0)
    path.write_bytes(data)
    return path


def reasons(found: Held) -> list[str]:
    return [item.reason for item in found.refused]


@pytest.mark.parametrize("how", ["stored", "deflated", "zstd"])
def test_an_archive_holds_what_its_log_as_json_does(tmp_path: Path, how: str) -> None:
    samples = json.loads(LOG.read_text())["samples"]
    path = archive(tmp_path / "log.eval", members(*samples), {"deflated": zipfile.ZIP_DEFLATED}.get(how, 0))
    found = read_file(as_zstd(path) if how == "zstd" else path)
    whole = read_file(LOG)
    assert found.format == "inspect_ai"
    assert counts(found) == counts(whole)
    assert found.calls == whole.calls


def test_a_sample_that_was_written_twice_counts_as_it_was_last(tmp_path: Path) -> None:
    path = archive(tmp_path / "log.eval", members(SAMPLE))
    with zipfile.ZipFile(path, "a") as made, pytest.warns(UserWarning, match="Duplicate"):
        made.writestr("samples/q1_epoch_2.json", json.dumps({**SAMPLE, "scores": {"match": {"value": "C"}}}))
    assert [score.value for score in read_file(path).scores] == [1.0]


def test_a_broken_member_leaves_its_neighbours(tmp_path: Path) -> None:
    held = members(SAMPLE, {**SAMPLE, "id": "q2", "uuid": "u2"})
    held["samples/q3_epoch_1.json"] = b'{"id": '
    held["samples/q4_epoch_1.json"] = b"\xff\xfe\x00"
    found = read_file(archive(tmp_path / "log.eval", held))
    assert (counts(found)["traces"], reasons(found)) == (2, ["not_json", "not_json"])


def test_flipped_bytes_are_noticed(tmp_path: Path) -> None:
    path = archive(tmp_path / "log.eval", members(SAMPLE), zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"out of time", b"in no time!", 1))
    assert reasons(read_file(path)) == ["not_readable"]


def test_archives_that_are_cut_or_hold_something_else_say_so(tmp_path: Path) -> None:
    whole = archive(tmp_path / "log.eval", members(SAMPLE)).read_bytes()
    for size in (2, 4, 30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        found = read_file(tmp_path / "cut")
        assert not found.spans
        assert found.refused
    other = read_file(archive(tmp_path / "other.zip", {"traces.jsonl": b"{}"}))
    assert (reasons(other), "unpack it" in other.refused[0].detail) == (["zip"], True)
    assert reasons(read_file(archive(tmp_path / "none.eval", {"header.json": b"{}"}))) == ["no_spans"]


def test_names_that_lead_out_of_a_folder_write_nothing_anywhere(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    held = members(SAMPLE)
    held["samples/../../../out.json"] = json.dumps({**SAMPLE, "uuid": "u3"}).encode()
    path = archive(inner / "log.eval", held)
    assert len({span.trace for span in read_file(path).spans}) == 2
    assert sorted(tmp_path.rglob("*.json")) == []


def test_a_member_that_unpacks_to_more_than_it_may_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_FREE", 1 << 20)
    monkeypatch.setattr(zipped, "limits", lambda: limits.Limits(ratio=100))
    held = members(SAMPLE)
    held["samples/bomb_epoch_1.json"] = b'{"id": "' + b" " * (30 << 20) + b'"}'
    for how in ("deflated", "zstd"):
        path = archive(tmp_path / "log.eval", held)
        found = read_file(as_zstd(path) if how == "zstd" else path)
        assert counts(found)["traces"] == 1
        assert reasons(found) == ["not_readable"]
        assert "unpacks to more than" in found.refused[0].detail


def test_an_archive_that_lies_about_a_size_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_FREE", 1 << 20)
    held = {"samples/bomb_epoch_1.json": b" " * (30 << 20)}
    path = archive(tmp_path / "log.eval", held)
    data = path.read_bytes().replace(struct.pack("<I", 30 << 20), struct.pack("<I", 10))
    path.write_bytes(data)
    assert set(reasons(read_file(path))) <= {"not_readable", "not_json"}
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        assert made.infolist()[0].file_size == 10
