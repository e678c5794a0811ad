"""Of what a killed process left, the finished tasks are there, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.ingest.chunks import JOURNAL, Chunks, chunks_in
from stages.ingest.taken_up import TakenUp

PLACES = 3
Task = list[tuple[int, bytes]]
"""Records, each with its place."""
TASKS = st.lists(st.lists(st.tuples(st.integers(0, PLACES - 1), st.binary(max_size=3).map(bytes.hex).map(str.encode))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def written(folder: Path, tasks: list[Task], begin: int = 0) -> Chunks:
    chunks = Chunks(folder, PLACES)
    for number, records in enumerate(tasks, start=begin):
        for place, line in records:
            chunks.add(place, (number,), line)
        chunks.done(f"task {number}", [number])
    return chunks


def held(folder: Path) -> list[tuple[int, int, bytes]]:
    """(place, task, line) of all records."""

    def found() -> Iterator[tuple[int, int, bytes]]:
        for place in range(PLACES):
            for number, line in chunks_in(sorted(folder.iterdir()) if folder.exists() else [], place):
                yield place, number, line

    return sorted(found())


def of(tasks: list[Task], numbers: set[int]) -> list[tuple[int, int, bytes]]:
    return sorted((place, number, line) for number in numbers for place, line in tasks[number])


@settings(deadline=None)
@given(tasks=TASKS, begun=TASKS.map(lambda made: made[:1]), asked=st.sets(st.integers(0, 9)), torn=st.integers(0, 40))
def test_finished_tasks_that_are_asked_for_stay_and_what_was_begun_goes(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[Task], begun: list[Task], asked: set[int], torn: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    cut = len(tasks) // 2
    written(folder / "items-a", tasks[:cut])
    chunks = written(folder / "items-b", tasks[cut:], cut)
    for place, line in begun[0] if begun else []:
        chunks.add(place, (99,), line)
    chunks.flush()
    with (folder / "items-b" / JOURNAL).open("ab") as file:
        file.write(b'["task 99",[99],[1000000,1000000,1000000],[0,0,0]]\n'[:torn])  # its line was not finished
    left = TakenUp(folder)
    assert dict(left.told) == {f"task {number}": [number] for number in range(len(tasks))}
    left.keep({f"task {number}" for number in asked})
    assert held(folder) == of(tasks, asked & set(range(len(tasks))))
    again = TakenUp(folder)  # and what was kept can be taken up once more
    assert set(again.told) == {f"task {number}" for number in asked & set(range(len(tasks)))}


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no journal", "journal of other things"])
def test_a_damaged_folder_goes_as_a_whole_and_the_others_stay(folder: Path, damage: str) -> None:
    tasks: list[Task] = [[(0, b'"abc"'), (1, b'"def"')], [(0, b'"ghi"')]]
    written(folder / "items-a", tasks[:1])
    written(folder / "items-b", tasks[1:], 1)
    path = folder / "items-a" / "001"
    whole = path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-1])
    elif damage == "changed":
        path.write_bytes(whole.replace(b"def", b"xyz"))
    elif damage == "gone":
        path.unlink()
    elif damage == "no journal":
        (path.parent / JOURNAL).unlink()
    else:
        (path.parent / JOURNAL).write_text("{}\n[1]\n")
    left = TakenUp(folder)
    left.keep({"task 0", "task 1"})
    assert held(folder) == of(tasks, {1})


def test_a_folder_that_was_being_written_anew_is_cleared_away(folder: Path) -> None:
    tasks: list[Task] = [[(0, b'"abc"')]]
    written(folder / "items-a", tasks)
    shutil.copytree(folder / "items-a", folder / ".settling-b")
    assert set(TakenUp(folder).told) == {"task 0"}
    assert held(folder) == of(tasks, {0})


def test_nothing_was_left_where_no_folder_is(folder: Path) -> None:
    assert not TakenUp(folder).told
