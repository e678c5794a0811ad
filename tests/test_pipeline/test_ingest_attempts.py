"""What outlives an attempt at an ingest, such as an actor on another machine, spoils no later one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline.ingest_spooling import spooled_in, taken_over
from pipeline.ingest_steps import Lying, Read, Reading, read_piece
from stages.ingest.chunks import Chunks
from stages.ingest.pieces import Piece

CHAT = (
    b'{"messages": [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "4"}], "id": "%d"}\n'
)


def read(state: Reading, number: int) -> Read:
    found: Read = read_piece(state, (Piece("chats.jsonl", CHAT % number, 0, 100), "openai_chat", f"piece {number}"))
    assert found.spans == 1
    return found


def held(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def killed(folder: Path) -> Iterator[Path]:
    """An attempt that is stopped."""
    with suppress(KeyboardInterrupt), spooled_in(folder, "a way") as own:
        yield own
        raise KeyboardInterrupt


def test_what_still_reads_for_a_killed_attempt_no_longer_finds_its_spool(tmp_path: Path) -> None:
    with killed(tmp_path) as first:
        lost = Reading(Lying(first, frozenset(), redacted=False), None)
        read(lost, 1)
    with killed(tmp_path) as second:
        before = held(second)
        assert {path.parts[0] for path in before} == {lost.leaves.name, "lock"}
        with pytest.raises(FileNotFoundError):
            read(lost, 2)
        Reading(Lying(first, frozenset(), redacted=False), None)  # one that only begins now
        assert held(second) == before
    with spooled_in(tmp_path, "a way") as third:
        assert held(third).keys() == before.keys()
    assert len({first, second, third}) == 3
    assert list(tmp_path.glob(".spool*")) == []


def test_a_spool_in_which_another_process_works_is_left_to_it(tmp_path: Path) -> None:
    with killed(tmp_path) as own:
        with killed(tmp_path) as other:
            assert own != other
        assert own.exists()
    assert list(tmp_path.glob(".spool*")) == [own], "what is taken up is one attempt's"


def test_what_still_makes_records_for_a_killed_attempt_no_longer_finds_its_folder(tmp_path: Path) -> None:
    first = taken_over(tmp_path, "ranges-1-ab")
    lost = Chunks(first / "of an actor", 1)
    lost.add(0, (1,), b"1")
    lost.done("part 1", None)
    other = taken_over(tmp_path, "ranges-2-ab")
    second = taken_over(tmp_path, "ranges-1-ab")
    before = held(second)
    assert before.keys() == {Path("of an actor/000"), Path("of an actor/journal")}
    lost.add(0, (2,), b"2")
    with pytest.raises(FileNotFoundError):
        lost.done("part 2", None)
    assert held(second) == before
    assert sorted(tmp_path.iterdir()) == sorted([other, second])
