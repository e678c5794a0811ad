"""`mmgrpo study`: from the study file to its table."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.progress import Reporter
from pipeline.study.page import PAGE, write_study
from pipeline.study.results import Outcome, Result, total_spent
from pipeline.study.runs import check_runs, plan_runs, settled
from pipeline.study.spec import Study, read_study
from pipeline.study.table import Table, make_table
from pipeline.study.work import do_runs
from pipeline.terminal import say
from schemas.errors import StageError
from schemas.execution import Execution


def study(path: Path, folder: Path | None, settings: list[str], execution: Execution) -> int:
    """Do a study and print what came of it. Returns the exit code: 4 when a run failed.

    Args:
        path: the study file.
        folder: where runs and results go; default: `runs/NAME`.
        settings: recipe settings for all runs, over those of the file.
        execution: how its runs are made.

    Raises:
        RecipeError: when the file or a recipe in it is wrong, before anything runs.
        LockedError: when another process works on it.
    """
    spec = read_study(path)
    # Absolute from here on: a program may change the working folder.
    target = (folder or Path("runs") / spec.name).absolute()
    runs, notes = settled(plan_runs(spec, path.resolve().parent, target, settings), execution)
    for note in notes:
        say(note, file=sys.stderr)
    check_runs(runs, execution.cache)
    gpu = _on_gpu(execution)

    def write(outcomes: list[Outcome]) -> str:
        return write_study(_table(spec, outcomes), target, gpu=gpu)

    outcomes = do_runs(runs, execution, target, Reporter(execution.progress), write)
    say(write(outcomes))
    say(f"Study: {target / PAGE}")
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Result)]
    return StageError.exit_code if failed else 0


def _table(spec: Study, outcomes: list[Outcome]) -> Table:
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    return make_table(spec, outcomes, total_spent(results))


def _on_gpu(execution: Execution) -> bool:
    if execution.device != "auto":
        return execution.device == "cuda"
    import torch

    return bool(torch.cuda.is_available())
