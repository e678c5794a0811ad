"""`mmgrpo ingest RECIPE TRACES…`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import folder, settings_arguments, snapshots_argument
from pipeline.terminal import say

TEXT = "logged traces become a snapshot: the tables that a rollout stage writes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML): the program's inputs, and [ingest]")
    parser.add_argument("addresses", nargs="+", metavar="TRACES", help="files, folders, patterns in quotes, or URLs")
    parser.add_argument(
        "--format",
        default="auto",
        metavar="F",
        help="of all files, by its name in stages/ingest/formats.py (default: seen from what they hold)",
    )
    snapshots_argument(parser)
    parser.add_argument("--onto", type=folder, metavar="SNAPSHOT", help="add the traces to this snapshot, as its child")
    parser.add_argument("--rescore", action="store_true", help="score the logged outputs with the program's metric")
    parser.add_argument(
        "--suggest-modules", action="store_true", help="print rules for the calls that no module is known for, and stop"
    )
    settings_arguments(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo ingest RECIPE TRACES…`."""
    from pipeline.ingest_account import account_of
    from pipeline.ingest_reading import Wanted
    from pipeline.ingesting import ingest, suggest_modules
    from pipeline.on_ray.cluster import cluster_of
    from pipeline.progress import Reporter
    from pipeline.recipes import load_execution, load_recipe
    from pipeline.remote.attached import shown

    loaded, execution = load_recipe(options.recipe, options.set), load_execution(options.execution, options.exec)
    reporter = Reporter(execution.progress)
    wanted = Wanted(tuple(options.addresses), options.format, options.rescore, options.onto)
    if options.suggest_modules:
        say(suggest_modules(loaded, execution, wanted, options.snapshots, reporter), end="")
        return 0
    with cluster_of(execution, loaded.recipe, reporter.note) as cluster:
        found, made = ingest(loaded, execution, wanted, options.snapshots, reporter, cluster=cluster)
    say(account_of(found))
    place = shown(str(found.path.absolute()))  # to be named in a recipe, whose relative paths begin elsewhere
    say(f"Snapshot: {place}" if made else f"Snapshot: {place}, which holds exactly these traces already")
    return 0
