"""`mmgrpo serve RECIPE`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import count, recipe_arguments
from pipeline.terminal import say

TEXT = "start vLLM as a server of the base and the run's newest policy"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
    parser.add_argument("--port", type=count, default=8000, help="port to listen at (default 8000)")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the command, start nothing")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo serve RECIPE`."""
    from pipeline.commands.resolved import resolve
    from pipeline.serving import serving

    loaded, execution, folder = resolve(options)
    found = serving(loaded, execution, folder, options.host, options.port)
    say(found.printed(), flush=True)
    if not options.only_print:
        found.start()
    return 0
