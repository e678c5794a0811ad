"""`mmgrpo costs RUN`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "what a run cost: time, cores, GPUs, tokens, and money at the recipe's prices"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="machine-readable output")
    form.add_argument("--csv", action="store_true", help="the rows as CSV")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo costs RUN`."""
    from pipeline.cost_forms import as_csv, as_json, as_text
    from pipeline.costs import ledger

    found = ledger(options.run)
    form = as_json if options.json else as_csv if options.csv else as_text
    say(form(found).rstrip("\n"))
    return 0
