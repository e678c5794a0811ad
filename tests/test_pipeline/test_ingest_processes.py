"""An ingest shared by processes gives what one alone gives, and ends with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.ingest_making
import pipeline.ingest_reading
from pipeline.cli import main
from pipeline.ingest_spooling import spooled_in
from pipeline.locks import hold
from pipeline.pool import Pool, pool_of
from pipeline.store import Store
from schemas.errors import StageError
from stages.ingest import pieces
from tests.test_e2e.kit import own_recipe
from tests.test_stages.ingest_kit import TRACES

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("otlp_json", "otel_genai_flat", "langfuse", "dspy_history", "openinference")
RECORDED = "4e46dfa4ac571505e6c52e2bd5126250c95ac9bcddaec51f3c93d1a7d6c06359"
"""Digest of the snapshot of the samples. Where it changes for a reason, raise VERSION of `stages.ingest.snapshot`."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = own_recipe(tmp_path_factory.mktemp("own") / "r")
    made.write_text(made.read_text().replace('inputs = ["word"]', 'inputs = ["question"]'))
    return made


def ingested(recipe: Path, snapshots: Path, addresses: Iterable[Path], *more: str) -> dict[str, Any]:
    """The manifest of a snapshot."""
    where = ["--snapshots", str(snapshots), "--exec", "progress=off"]
    assert main(["ingest", str(recipe), *map(str, addresses), *where, *more]) == 0
    ((_, path),) = Store(snapshots).all()
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ingested(recipe, tmp_path_factory.mktemp("alone"), [TRACES / name for name in SAMPLES])


def test_the_snapshot_of_the_samples_has_the_digest_that_it_always_had(alone: dict[str, Any]) -> None:
    assert alone["digest"] == RECORDED


def test_two_processes_give_what_one_gives(recipe: Path, alone: dict[str, Any], tmp_path: Path) -> None:
    addresses = [TRACES / name for name in SAMPLES]
    found = ingested(recipe, tmp_path, addresses, "--exec", "ingest_workers=2")
    for name in ("digest", "metrics", "excluded", "key"):
        assert found[name] == alone[name]


class Dealt(Pool):
    """Deals tasks out to the states of as many processes, in one."""

    def __init__(self, states: list[Any], order: list[int]) -> None:
        super().__init__(None, None, 1)
        self._states, self._order = states, order

    def each(self, step: Callable[[Any, Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for number, task in enumerate(tasks):
            yield step(self._states[self._order[number % len(self._order)]], task)


@settings(max_examples=8, deadline=None)
@given(order=st.lists(st.integers(0, 2), min_size=1, max_size=9), block=st.sampled_from([1, 3000, 8 << 20]))
def test_neither_who_reads_what_nor_how_files_are_cut_makes_a_difference(
    recipe: Path,
    alone: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    order: list[int],
    block: int,
) -> None:
    @contextmanager
    def dealt(_: int, make: Callable[[], Any]) -> Iterator[Pool]:
        yield Dealt([make() for _ in range(3)], order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BLOCK", block)
        patch.setattr(pipeline.ingest_reading, "pool_of", dealt)
        patch.setattr(pipeline.ingest_making, "pool_of", dealt)
        found = ingested(recipe, tmp_path_factory.mktemp("dealt"), [TRACES / name for name in SAMPLES])
    for name in ("digest", "metrics", "excluded", "key"):
        assert found[name] == alone[name]


def test_what_a_killed_ingest_left_is_cleared_and_what_another_works_on_stays(tmp_path: Path) -> None:
    left, held = tmp_path / ".spool-left", tmp_path / ".spool-held"
    for folder in (left, held):
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "items").write_bytes(b"much")
    with hold(held / "lock", "a spool"):
        with spooled_in(tmp_path) as own:
            assert sorted(tmp_path.glob(".spool*")) == sorted([held, own])
            with spooled_in(tmp_path) as other:
                assert own.exists()
                assert other != own
        assert list(tmp_path.glob(".spool*")) == [held]


def _state() -> str:
    return "state"


def _named(state: str, task: int) -> tuple[str, int, int]:
    return state, task, os.getpid()


def _killed(_: str, task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_pool_gives_results_in_the_order_of_the_tasks_and_lets_errors_through() -> None:
    with pool_of(2, _state) as pool:
        found = list(pool.each(_named, range(6)))
        assert [(state, task) for state, task, _ in found] == [("state", task) for task in range(6)]
        assert os.getpid() not in {pid for *_, pid in found}
        with pytest.raises(StageError, match="ingest_workers=1"):
            list(pool.each(_killed, range(4)))
    with pool_of(1, _state) as pool:
        assert [pid for *_, pid in pool.each(_named, range(2))] == [os.getpid()] * 2


SLEEPER = """
import os, time
from pipeline.pool import pool_of

def state():
    return None

def pid(_, task):
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    with pool_of(2, state) as pool:
        list(pool.each(pid, range(2)))
"""


def test_processes_end_with_the_one_that_they_work_for(tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    job = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert job.stdout is not None
    workers = [int(job.stdout.readline()) for _ in range(2)]
    job.kill()
    job.wait()
    deadline = time.monotonic() + 30
    while any(map(_runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, workers))


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended: nobody may have taken notice of its end yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
