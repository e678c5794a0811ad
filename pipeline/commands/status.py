"""`mmgrpo status RUN`."""

from __future__ import annotations

import argparse
import json

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "say what is released, what was decided, how much of alpha is left, and what to do next"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo status RUN`."""
    from pipeline.release.status import render, status

    found = status(options.run)
    say(json.dumps(found.as_json(), indent=2) if options.json else render(found))
    return 0
