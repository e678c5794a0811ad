"""`mmgrpo release RUN`."""

from __future__ import annotations

import argparse
import json

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "release a policy by hand, on the evidence of its scores"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("--policy", metavar="DIGEST", help="how its digest begins (default: `newest`)")
    parser.add_argument("--reason", metavar="TEXT", help="why, for the record")
    parser.add_argument("--force", action="store_true", help="without evidence that it is better, or against it")
    parser.add_argument("--json", action="store_true", help="machine-readable output: the decision")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo release RUN`."""
    from pipeline.release.by_hand import release
    from pipeline.release.words import line_of

    decision = release(options.run, options.policy, options.reason, force=options.force)
    say(json.dumps(decision.model_dump(mode="json"), indent=2) if options.json else line_of(decision))
    return 0
