"""`mmgrpo plan RECIPE`."""

from __future__ import annotations

import argparse
import sys

from pipeline.commands.arguments import iterations_argument, recipe_arguments
from pipeline.terminal import say

TEXT = "say what a run would do, and why"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)
    iterations_argument(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo plan RECIPE`."""
    from pipeline.commands.resolved import iterations_of, resolve
    from pipeline.launching.settings import crowded
    from pipeline.plan import plan, render

    loaded, execution, folder = resolve(options)
    say(render(plan(loaded, folder, iterations_of(options, loaded), execution.cache)))
    if note := crowded(execution):
        say(note, file=sys.stderr)
    return 0
