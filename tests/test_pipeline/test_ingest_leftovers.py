"""What an ingest leaves unfinished is taken over, cleared away or named by the next one, and never touched in use."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pipeline.ingest_leftovers import clear_leftovers, purpose_of, settle_leftovers
from pipeline.ingest_spooling import clear_spools, spooled_in
from pipeline.progress import Reporter
from pipeline.store import Store

OURS, OTHER = "our purpose", "another"
KEYS = {name: name * 64 for name in "abc"}


class Left:
    """A store of snapshots, and what the settling of it told."""

    def __init__(self, root: Path) -> None:
        self.store, self._told = Store(root), io.StringIO()
        self.reporter = Reporter("plain", self._told)

    def broken_off(self, name: str, purpose: str, file: str = "scores-1") -> Path:
        """An ingest of a purpose that was stopped; it had made a file, which holds its name."""
        with self.store.begin("ingest", KEYS[name], self.reporter) as out:
            settle_leftovers(self.store, out, purpose, Reporter("off"))
            (out.scratch / file).write_text(name)
            return out.scratch.parent

    def settled(self, name: str, purpose: str) -> tuple[str, dict[str, str]]:
        """What the next ingest tells, and what it has to go on from."""
        with self.store.begin("ingest", KEYS[name], self.reporter) as out:
            settle_leftovers(self.store, out, purpose, self.reporter)
            return self._told.getvalue(), {path.name: path.read_text() for path in out.scratch.glob("*-*")}


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def test_what_the_same_command_made_of_other_files_is_taken_over_and_its_folder_goes(left: Left) -> None:
    before = left.broken_off("a", OURS)
    told, held = left.settled("b", OURS)
    assert f"cleared away: {before} (0.0 MiB)" in told
    assert (held, before.exists()) == ({"scores-1": "a"}, False)


def test_what_was_made_for_these_very_files_is_not_replaced_by_what_was_made_for_others(left: Left) -> None:
    with left.store.begin("ingest", KEYS["b"], left.reporter) as out:
        (out.scratch / "scores-1").write_text("b")
    left.broken_off("a", OURS)
    assert left.settled("b", OURS)[1] == {"scores-1": "b"}


def test_what_another_command_left_is_named_with_its_size_and_stays(left: Left) -> None:
    other = left.broken_off("a", OTHER)
    told, held = left.settled("b", OURS)
    assert f"left unfinished by another command: {other} (0.0 MiB)" in told
    assert (held, (other / ".scratch" / "scores-1").read_text()) == ({}, "a")


@pytest.mark.parametrize("purpose", [OURS, OTHER])
def test_what_another_process_works_on_is_neither_touched_nor_told(left: Left, purpose: str) -> None:
    busy = left.broken_off("a", purpose)
    with left.store.begin("ingest", KEYS["a"], left.reporter):
        told, held = left.settled("b", OURS)
    assert (told, held, busy.exists()) == ("", {}, True)


def test_all_that_no_process_works_on_goes_where_traces_are_forgotten(left: Left) -> None:
    purposes = {"a": OURS, "b": OTHER, "c": "a third"}
    ours, other, busy = (left.broken_off(name, purpose) for name, purpose in purposes.items())
    with pytest.raises(KeyboardInterrupt), spooled_in(left.store.root, {"way": 1}):
        raise KeyboardInterrupt
    with spooled_in(left.store.root, {"way": 2}) as spool, left.store.begin("ingest", KEYS["c"], left.reporter):
        clear_spools(left.store.root)
        clear_leftovers(left.store)
        assert (left.store.unfinished(), list(left.store.root.glob(".spool-*"))) == ([busy], [spool])
    assert not ours.exists()
    assert not other.exists()


def test_a_purpose_is_the_command_and_not_what_is_in_its_files() -> None:
    def purpose(*addresses: str, **params: str) -> str:
        return purpose_of(
            {"stage": "ingest", "params": {"traces": "1", "labels": "1", "base": "m", **params}}, addresses
        )

    first = purpose("x", "y")
    assert first == purpose("y", "x", traces="2", labels="2")
    assert first == purpose("x", "y", base="m")
    assert len({first, purpose("x"), purpose("x", "y", base="n"), purpose("x", "y", parent="p")}) == 4
