"""`mmgrpo next RECIPE`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

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
    from pipeline.reporting.text import plural
    from pipeline.run import open_run

    loaded, execution, folder = resolve(options)
    reporter = Reporter(execution.progress)
    with open_run(loaded, execution, folder, reporter) as runner, LiveReport(folder, reporter) as report:
        before = runner.state.iterations
        iteration = run_next(runner, after_jobs(runner, reporter))
        if iteration is None:
            say(f"Everything in {shown(str(folder))} is up to date: the recipe has no further iteration.")
            return NOTHING_LEFT
        say(f"Iteration {iteration} is done.")
        if lost := _lost(before, runner.state.iterations):
            say(
                f"No part of the run any more: {plural(len(lost), 'iteration')} that it had trained, from iteration "
                f"{lost[0]} on, since recipe, data, program or model changed. What was made is kept, and comes back "
                "with what it was made from."
            )
        closing(folder, report)
    return 0


def _lost(before: Sequence[Mapping[str, str]], after: Sequence[Mapping[str, str]]) -> list[int]:
    """The iterations whose training is not in the run any more."""
    return [
        index
        for index, stages in enumerate(before)
        if "train" in stages and (index >= len(after) or after[index].get("train") != stages["train"])
    ]


NOTHING_LEFT = 10
"""Exit code: the recipe's iterations are all done, or the run ended early."""
