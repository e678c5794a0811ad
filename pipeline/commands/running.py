"""What `run` and `next` do behind each job and at their end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pipeline.jobs import Job
from pipeline.lineage import newest_adapters
from pipeline.outcome import cost_line, score_line
from pipeline.progress import Reporter
from pipeline.release.gate import Gate
from pipeline.release.words import line_of
from pipeline.remote.attached import shown
from pipeline.reporting.live import LiveReport
from pipeline.run import Runner
from pipeline.terminal import say
from stages.engines.adapters import SHARED_NAME


def after_jobs(runner: Runner, reporter: Reporter) -> Callable[[Job], str | None]:
    """What is done behind each job of a run: scores are told, the gate looks. It returns why the run is to stop."""
    gate = Gate(runner)

    def after(job: Job) -> str | None:
        if job.stage.NAME == "evaluate":
            reporter.note(score_line(runner.folder, job.slot[1], int(job.slot[2])))
        if decision := gate.after(job):
            reporter.note(line_of(decision))
        return gate.why_stop(job)

    return after


def closing(folder: Path, report: LiveReport) -> None:
    """Write the report; say what the run cost, and where its newest adapters are."""
    page = report.finish()
    say(cost_line(folder))
    for name, adapter in newest_adapters(folder).items():
        copy = f" (its copy here: {adapter})" if shown(str(adapter)) != str(adapter) else ""
        say(f"Adapter{'' if name == SHARED_NAME else f' {name}'}: {shown(str(adapter))}{copy}")
    if page is not None:
        say(f"Report: {shown(str(page))}")
