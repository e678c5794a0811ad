from __future__ import annotations

import io

import pytest

from pipeline import progress
from pipeline.progress import Pace, Reporter


def test_a_stream_that_is_no_terminal_gets_plain_lines(monkeypatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    stream = io.StringIO()
    reporter = Reporter("auto", stream)
    reporter.start("iteration 0 · rollout")
    reporter.update(1, 100, "rollouts", {})
    reporter.update(50, 100, "rollouts", {"tokens_per_second": 41_730.4, "loss": 0.12345})
    reporter.finish("done")
    first, second, last = stream.getvalue().splitlines()
    assert first == "  iteration 0 · rollout: 1/100 rollouts", "one in a hundred says nothing of the time left"
    assert second.startswith("  iteration 0 · rollout: 50/100 rollouts · tokens per second 41,730 · loss 0.123 · ")
    assert last.startswith("iteration 0 · rollout: done (")


def test_lines_are_rare_and_off_is_silent() -> None:
    stream = io.StringIO()
    for mode in ("plain", "off"):
        reporter = Reporter(mode, stream)
        reporter.start("x")
        for done in range(1000):
            reporter.update(done, 1000, "steps", {})
    assert stream.getvalue() == ""


def test_the_time_left_is_that_of_what_is_done_now_at_its_own_pace() -> None:
    pace = Pace("steps of b", since=100.0, before=2)
    pace.seen = 110.0
    assert pace.left(4, 10) == 30.0
    assert pace.left(2, 10) is None
    assert pace.left(3, 100) is None


def test_a_stage_that_goes_on_to_another_kind_of_thing_starts_its_clock_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    reporter = Reporter("plain", stream)
    reporter.start("train")
    for now, done, unit in ((100.0, 4, "steps of a"), (110.0, 1, "steps of b"), (120.0, 2, "steps of b")):
        clock[0] = now
        reporter.update(done, 4, unit, {})
    lines = stream.getvalue().splitlines()
    assert "1/4 steps of b · 30 s left" in lines[1]
    assert "2/4 steps of b · 20 s left" in lines[2]
