"""Captured rows on their way to the disk: whole files, bounded, from several processes, whatever the disk does."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.capture import Capture
from tests.test_e2e.kit import ROOT
from tests.test_pipeline.capture_kit import roots

WORD = "x" * 1000


def some_runs(capture: Capture, count: int, tag: str = "") -> None:
    for number in range(count):
        with capture.run({"number": f"{tag}{number}", "text": WORD}):
            pass


def test_a_file_holds_so_many_runs_and_is_there_without_a_flush(tmp_path: Path) -> None:
    with Capture(tmp_path, runs_per_file=10, seconds=0.2) as capture:
        some_runs(capture, 25)
        deadline = time.monotonic() + 20
        while capture.counts.get("rows", 0) < 25 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert capture.counts["rows"] == 25
        sizes = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.glob("*.parquet"))]
        assert max(sizes) <= 10
        assert sum(sizes) == 25
    assert not list(tmp_path.glob(".*"))


def test_a_file_is_bounded_in_bytes(tmp_path: Path) -> None:
    with Capture(tmp_path, seconds=1000) as capture:
        capture._writer._size = 20_000
        some_runs(capture, 60)
    assert len(roots(tmp_path)) == 60
    assert len(list(tmp_path.glob("*.parquet"))) >= 3


def test_a_folder_that_cannot_be_written_costs_nothing_but_memory_and_is_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "traces"
    blocked.write_text("a file is in the way")
    with Capture(blocked) as capture:
        some_runs(capture, 5)
        assert not capture.flush()
        assert capture.counts["errors"] == 1
        blocked.unlink()
        some_runs(capture, 1, "late")
        assert capture.flush()
    assert len(roots(blocked)) == 6


def test_runs_without_room_are_lost_and_counted(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("a file is in the way")
    capture = Capture(tmp_path / "traces")
    capture._writer._room = 30_000
    some_runs(capture, 100)
    lost = capture.counts["lost"]
    assert 0 < lost < 100
    assert not capture.close()
    assert capture.counts["lost"] == 100
    some_runs(capture, 1)
    assert capture.counts["lost"] == 101


def test_the_end_of_the_process_writes_what_is_left_and_ends_what_is_open(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pipeline.capture import Capture\n"
        "capture = Capture(sys.argv[1])\n"
        "with capture.run({'n': 1}): pass\n"
        "run = capture.run({'n': 2}).__enter__()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    assert {root.inputs["n"]: root.error for root in roots(tmp_path)} == {
        1: None,
        2: "the program ended before the run did",
    }


def in_another(capture: Capture) -> None:
    some_runs(capture, 5, f"{os.getpid()} ")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_processes_write_their_own_runs_and_nobody_elses(tmp_path: Path) -> None:
    with Capture(tmp_path) as capture:
        some_runs(capture, 5, "parent ")
        fork = multiprocessing.get_context("fork")
        with capture.run({"number": "across"}):
            workers = [fork.Process(target=in_another, args=(capture,)) for _ in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
        assert [worker.exitcode for worker in workers] == [0, 0]
    found = [root.inputs["number"] for root in roots(tmp_path)]
    assert len(found) == len(set(found)) == 16
    assert len({path.name.split("-")[1] for path in tmp_path.iterdir()}) == 3


def own(folder: str) -> None:
    some_runs(Capture(folder), 5, f"{os.getpid()} ")


def test_processes_with_a_capture_each_write_into_one_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=own, args=(str(tmp_path),)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len({root.inputs["number"] for root in roots(tmp_path)}) == 10
