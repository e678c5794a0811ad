"""`mmgrpo stage NAME RECIPE --iteration I`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import count, recipe_arguments
from pipeline.stages_in_order import STAGES
from pipeline.terminal import say

TEXT = "run one stage of one iteration, as one batch job"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("name", choices=STAGES, help="the stage")
    recipe_arguments(parser)
    parser.add_argument("--iteration", type=count, default=0, metavar="I", help="which iteration (default 0)")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo stage NAME RECIPE --iteration I`."""
    from pipeline.commands.resolved import resolve
    from pipeline.follow import follow_node, follow_stage
    from pipeline.jobs import Job
    from pipeline.launch import follows
    from pipeline.launching.settings import check_launch, launch_of, refuse_mirrors
    from pipeline.progress import Reporter
    from pipeline.release.gate import Gate
    from pipeline.release.words import line_of
    from pipeline.run import open_run
    from pipeline.single import run_stage
    from pipeline.walk import identify

    loaded, execution, folder = resolve(options)
    if follows():
        follow_stage(loaded, execution, folder, options.name, options.iteration)
        return 0
    check_launch(execution, loaded.recipe)
    launch = launch_of(execution) if options.name == "train" else None
    if launch is not None:
        refuse_mirrors(launch, folder)
    if launch is not None and not launch.first:
        if not follow_node(loaded, execution, folder, launch, options.iteration):
            say(f"train of iteration {options.iteration} is up to date; this node was not needed.")
        return 0
    with open_run(loaded, execution, folder, Reporter(execution.progress)) as runner:
        setup, gate = identify(loaded.recipe, loaded.root, execution.cache), Gate(runner)

        def after(job: Job) -> None:
            if decision := gate.after(job):
                say(line_of(decision))

        jobs = run_stage(runner, setup, options.name, options.iteration, after)
        if jobs == 0:
            say(f"{options.name} of iteration {options.iteration}: the recipe needs none; nothing was run.")
        elif runner.made == 0:
            say(f"{options.name} of iteration {options.iteration} is up to date; nothing was run.")
    return 0
