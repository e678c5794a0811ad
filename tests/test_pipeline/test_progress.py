from __future__ import annotations

import io

from pipeline import progress
from pipeline.progress import Reporter


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
