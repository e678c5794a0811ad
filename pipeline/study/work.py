"""Doing a study: its runs one after another, each skipped as far as it is up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.locks import hold
from pipeline.progress import Reporter
from pipeline.reporting.live import LiveReport
from pipeline.run import open_run, run_all
from pipeline.single import score_last
from pipeline.study.results import Failure, Outcome, Result, result_of
from pipeline.study.runs import PlannedRun, share_artifacts
from pipeline.walk import identify
from schemas.errors import DataError, StageError
from schemas.execution import Execution


def do_runs(
    runs: Sequence[PlannedRun],
    execution: Execution,
    folder: Path,
    reporter: Reporter,
    after: Callable[[list[Outcome]], object],
) -> list[Outcome]:
    """Make every run and score it; a run that fails is kept as a failure and the others go on.

    Args:
        runs: of the study, settled and checked.
        execution: how; trackers write into each run's folder unless told otherwise.
        folder: of the study.
        reporter: where progress goes.
        after: called with all outcomes so far behind each run that was not up to date.

    Raises:
        LockedError: when another process works on the study or on one of its runs.
    """
    outcomes: list[Outcome] = []
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / ".lock", f"study folder {folder}"):
        for place, run in enumerate(runs, start=1):
            reporter.note(f"[{place}/{len(runs)}] {run.label}")
            outcome, news = _attempt(run, execution, folder, reporter)
            outcomes.append(outcome)
            if news:
                after(outcomes)
    return outcomes


def _attempt(run: PlannedRun, execution: Execution, folder: Path, reporter: Reporter) -> tuple[Outcome, bool]:
    """What came of one run, and whether anything was done for it."""
    try:
        share_artifacts(folder, run)
        result, made = _do(run, execution, reporter)
    except (DataError, StageError) as error:
        reporter.note(f"  failed: {error}")
        return Failure(run.task, run.strategy, run.seed, str(error)), True
    reporter.note(f"  {run.split} score {result.score:.3f}{'' if made else ', up to date'}")
    return result, made > 0


def _do(run: PlannedRun, execution: Execution, reporter: Reporter) -> tuple[Result, int]:
    reports = execution.report_dir or str(run.folder / "trackers")
    own = execution.model_copy(update={"report_dir": reports})
    with open_run(run.loaded, own, run.folder, reporter) as runner:
        run_all(runner, run.loaded.recipe.run.iterations, lambda _: None)
        setup = identify(run.loaded.recipe, run.loaded.root, execution.cache)
        scores = score_last(runner, setup, run.split)
        if runner.made:
            LiveReport(run.folder, reporter).finish()
        return result_of(run, scores), runner.made
