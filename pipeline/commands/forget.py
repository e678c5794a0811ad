"""`mmgrpo forget --trace ID`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline.commands.arguments import folder, snapshots_argument
from pipeline.terminal import say
from schemas.errors import RecipeError

TEXT = "delete traces from all snapshots, and say what they had reached"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("--trace", action="append", default=[], metavar="ID", help="a trace's id; may be repeated")
    parser.add_argument(
        "--user", action="append", default=[], metavar="KEY", help="all traces of a user, by its key; may be repeated"
    )
    snapshots_argument(parser)
    parser.add_argument(
        "--runs", type=folder, nargs="*", metavar="RUN", help="folders with runs in them, at any depth (default: runs)"
    )
    parser.add_argument("--reason", default="requested", metavar="TEXT", help="why, for the tombstone")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo forget --trace ID`."""
    from pipeline.forget import Wanted, forget, render, runs_below
    from pipeline.progress import Reporter

    if not (options.trace or options.user):
        raise RecipeError("name what is to be forgotten: --trace ID, or --user KEY; each may be repeated")
    wanted = Wanted(tuple(options.trace), tuple(options.user), options.reason)
    runs = options.runs if options.runs is not None else runs_below(Path("runs"))
    found = forget(wanted, options.snapshots, runs, Reporter("off"))
    say(json.dumps(found.as_json(), indent=2) if options.json else render(found))
    return 0
