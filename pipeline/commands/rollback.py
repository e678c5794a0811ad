"""`mmgrpo rollback RUN`."""

from __future__ import annotations

import argparse
import json

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "go back to a policy that was released before"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("--to", metavar="DIGEST", help="how its digest begins, or `base` (default: the one before)")
    parser.add_argument("--reason", metavar="TEXT", help="why, for the record")
    parser.add_argument("--json", action="store_true", help="machine-readable output: the decision")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo rollback RUN`."""
    from pipeline.release.by_hand import rollback
    from pipeline.release.words import line_of

    decision = rollback(options.run, options.to, options.reason)
    say(json.dumps(decision.model_dump(mode="json"), indent=2) if options.json else line_of(decision))
    return 0
