"""`mmgrpo run RECIPE`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import iterations_argument, recipe_arguments
from pipeline.terminal import say

TEXT = "run all iterations of a recipe; what is up to date is skipped"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)
    iterations_argument(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo run RECIPE`."""
    from pipeline.commands.resolved import iterations_of, resolve
    from pipeline.commands.running import after_jobs, closing
    from pipeline.progress import Reporter
    from pipeline.remote.attached import shown
    from pipeline.reporting.live import LiveReport
    from pipeline.run import open_run, run_all

    loaded, execution, folder = resolve(options)
    reporter = Reporter(execution.progress)
    with open_run(loaded, execution, folder, reporter) as runner, LiveReport(folder, reporter) as report:
        ended = run_all(runner, iterations_of(options, loaded), after_jobs(runner, reporter))
        if ended:
            reporter.note(f"The run ended early: {ended}")
        if runner.made == 0:
            say(f"Everything in {shown(str(folder))} is up to date; nothing was run.")
        closing(folder, report)
    return 0
