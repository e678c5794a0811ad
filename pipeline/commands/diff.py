"""`mmgrpo diff RUN_A RUN_B`."""

from __future__ import annotations

import argparse
import json

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "what differs between two runs: recipe, data, code, environment, artifacts, scores"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("first", type=folder, metavar="RUN_A", help="a run folder")
    parser.add_argument("second", type=folder, metavar="RUN_B", help="another one")
    parser.add_argument("--json", action="store_true", help="machine-readable output, whole")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo diff RUN_A RUN_B`."""
    from pipeline.comparing.diff import diff, render

    found = diff(options.first, options.second)
    say(json.dumps(found, indent=2) if options.json else render(options.first, options.second, found))
    return 0
