"""`mmgrpo next RECIPE`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import recipe_arguments
from pipeline.terminal import say

TEXT = "run one more iteration, whatever of it is missing; for schedules"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo next RECIPE`. Exit code 10 when nothing is left to do, 75 when an iteration is under way."""
    from pipeline.commands.resolved import resolve
    from pipeline.commands.running import after_jobs, closing
    from pipeline.next_iteration import run_next
    from pipeline.progress import Reporter
    from pipeline.remote.attached import shown
    from pipeline.reporting.live import LiveReport
    from pipeline.run import open_run

    loaded, execution, folder = resolve(options)
    reporter = Reporter(execution.progress)
    with open_run(loaded, execution, folder, reporter) as runner, LiveReport(folder, reporter) as report:
        iteration = run_next(runner, after_jobs(runner, reporter))
        if iteration is None:
            say(f"Everything in {shown(str(folder))} is up to date: the recipe has no further iteration.")
            return NOTHING_LEFT
        say(f"Iteration {iteration} is done.")
        closing(folder, report)
    return 0


NOTHING_LEFT = 10
"""Exit code: the recipe's iterations are all done, or the run ended early."""
