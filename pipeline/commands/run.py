"""`mmgrpo run RECIPE`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import iterations_argument, recipe_arguments

TEXT = "run all iterations of a recipe; what is up to date is skipped"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)
    iterations_argument(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo run RECIPE`."""
    from pipeline.commands.resolved import iterations_of, resolve
    from pipeline.jobs import Job
    from pipeline.lineage import newest_adapters
    from pipeline.outcome import cost_line, score_line
    from pipeline.progress import Reporter
    from pipeline.release.gate import Gate
    from pipeline.release.words import line_of
    from pipeline.reporting.live import LiveReport
    from pipeline.run import open_run, run_all
    from stages.engines.adapters import SHARED_NAME

    loaded, execution, folder = resolve(options)
    reporter = Reporter(execution.progress)
    with open_run(loaded, execution, folder, reporter) as runner, LiveReport(folder, reporter) as report:
        gate = Gate(runner)

        def after(job: Job) -> str | None:
            if job.stage.NAME == "evaluate":
                reporter.note(score_line(folder, job.slot[1], int(job.slot[2])))
            if decision := gate.after(job):
                reporter.note(line_of(decision))
            return gate.why_stop(job)

        ended = run_all(runner, iterations_of(options, loaded), after)
        if ended:
            reporter.note(f"The run ended early: {ended}")
        if runner.made == 0:
            print(f"Everything in {folder} is up to date; nothing was run.")
        page = report.finish()
        print(cost_line(folder))
        for name, adapter in newest_adapters(folder).items():
            print(f"Adapter: {adapter}" if name == SHARED_NAME else f"Adapter {name}: {adapter}")
        if page is not None:
            print(f"Report: {page}")
    return 0
