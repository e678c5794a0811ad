"""The report of a run at work."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.progress import Reporter
from pipeline.reporting import live
from pipeline.reporting.live import FIRST_S, SHARE, LiveReport
from pipeline.reporting.working import LOCKS, at_work
from tests.test_pipeline.report_run import RunWriter, whole_run


class Clock:
    """Time as the test makes it pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


def test_a_stage_that_gets_further_is_on_the_page_and_in_the_numbers_until_the_run_is_left(
    tmp_path: Path, told: io.StringIO
):
    run, clock, reporter = whole_run(tmp_path, iterations=1), Clock(), Reporter("plain", told)
    with LiveReport(run, reporter, clock) as report:
        clock.now = 2 * FIRST_S / SHARE
        reporter.start("iteration 1 · rollout")
        assert "Running when this page was written: iteration 1 · rollout." in (run / "report.html").read_text()
        clock.now *= 2
        reporter.update(1200, 5000, "rollouts", {})
        numbers = json.loads((run / "report.json").read_text())
        assert numbers["running"] == "iteration 1 · rollout, 1,200 of 5,000 rollouts"
        assert numbers["advice"][0]["title"] == "Wait"
        assert report.finish() == run / "report.html"
    assert json.loads((run / "report.json").read_text())["running"] is None


def test_a_run_that_fails_leaves_no_page_that_says_it_runs(tmp_path: Path, told: io.StringIO):
    run, clock, reporter = whole_run(tmp_path, iterations=1), Clock(), Reporter("plain", told)

    def stopped() -> None:
        with LiveReport(run, reporter, clock):
            clock.now = 2 * FIRST_S / SHARE
            reporter.start("iteration 1 · rollout")
            assert json.loads((run / "report.json").read_text())["running"] == "iteration 1 · rollout"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert json.loads((run / "report.json").read_text())["running"] is None


def test_building_takes_no_more_than_its_share_of_the_time(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
):
    clock, reporter, built = Clock(), Reporter("off", told), [0.0]

    def build(run_dir: Path, running: str | None) -> Path:
        clock.now += 3.0
        built[0] += 3.0
        return run_dir

    monkeypatch.setattr(live, "build_report", build)
    with LiveReport(tmp_path, reporter, clock):
        for _ in range(20_000):
            clock.now += 0.1
            reporter.update(1, 2, "calls", {})
            assert built[0] <= max(3.0, SHARE * clock.now + 0.1)
    assert built[0] >= 0.5 * SHARE * clock.now, "and what it may take it does"


def test_a_report_that_cannot_be_built_is_told_once_and_stops_nothing(tmp_path: Path, told: io.StringIO):
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    writer.add_rollout()
    run, clock, reporter = writer.write(), Clock(), Reporter("plain", told)
    table = next((run / "artifacts" / "rollout").glob("*/rollouts.parquet"))
    table.write_bytes(table.read_bytes()[:100])
    with LiveReport(run, reporter, clock) as report:
        for _ in range(3):
            clock.now += 1000
            reporter.start("iteration 0 · group")
        assert report.finish() is None
    assert told.getvalue().count("The report could not be built, which does not harm the run") == 1
    assert "rollouts.parquet" in told.getvalue()


HOLD = """
import sys
from pathlib import Path
from pipeline.locks import hold
from pipeline.progress import Reporter
from pipeline.store import Store
run = Path(sys.argv[1])
with hold(run / ".lock", "run"):
    print("between", flush=True)
    sys.stdin.readline()
    with Store(run / "artifacts").begin("rollout", "f" * 64, Reporter("off")) as out:
        (out.scratch / "a.parquet").write_bytes(b"x")
        out.commit_shard("shards/a.parquet", out.scratch / "a.parquet")
        (out.scratch / "b.parquet").write_bytes(b"x")
        print("inside", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.skipif(not LOCKS.exists(), reason="no /proc/locks here: nothing is known of other processes")
def test_what_another_process_makes_is_seen_without_touching_its_locks(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    assert at_work(run) is None
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert held.stdin is not None
    assert held.stdout is not None
    try:
        assert held.stdout.readline() == "between\n"
        assert at_work(run) == "between two stages"
        print(file=held.stdin, flush=True)
        assert held.stdout.readline() == "inside\n"
        assert at_work(run) == "rollout, 1 file committed"
    finally:
        held.kill()
        held.wait()
    assert at_work(run) is None, "what a killed process left is no work"
