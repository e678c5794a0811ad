"""`mmgrpo report RUN`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "write report.html and report.json into the run folder; --serve browses all rollouts"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("--serve", action="store_true", help="then browse all its rollouts, on this machine only")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: a free one)")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo report RUN`."""
    from pipeline.remote.attached import shown
    from pipeline.reporting.build import build_report
    from pipeline.reporting.working import at_work
    from schemas.errors import RecipeError

    if options.port is not None and not options.serve:
        raise RecipeError("--port goes with --serve")
    if options.port is not None and not 0 <= options.port < 1 << 16:
        raise RecipeError(f"--port {options.port}: expected a number from 0 to 65535; 0 takes a free one")
    say(shown(f"Report: {build_report(options.run, at_work(options.run))}"), flush=True)
    if not options.serve:
        return 0
    from pipeline.browsing.server import serve

    return serve(options.run, options.port or 0)
