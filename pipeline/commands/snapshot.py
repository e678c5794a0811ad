"""`mmgrpo snapshot diff A B` and `mmgrpo snapshot export SNAPSHOT FOLDER`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline.commands.arguments import folder
from pipeline.terminal import say

TEXT = "compare two snapshots of traces, or export one as a data set"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    diff = kinds.add_parser("diff", help="which traces came, went and changed from one snapshot to another")
    diff.add_argument("before", type=folder, help="a snapshot's folder")
    diff.add_argument("after", type=folder, help="another one's")
    diff.add_argument("--json", action="store_true", help="machine-readable output, with every id")
    export = kinds.add_parser("export", help="write a Hugging Face dataset folder with a card")
    export.add_argument("snapshot", type=folder, help="a snapshot's folder")
    export.add_argument("folder", type=Path, help="the folder to write; it must not exist")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo snapshot diff A B` and `mmgrpo snapshot export SNAPSHOT FOLDER`."""
    from pipeline.snapshot_diff import diff, render
    from pipeline.snapshot_export import export_snapshot
    from pipeline.snapshots import open_snapshot

    if options.what == "export":
        rows = export_snapshot(open_snapshot(options.snapshot), options.folder)
        say(f"{options.folder}: " + ", ".join(f"{count} {name}" for name, count in rows.items()))
        return 0
    found = diff(open_snapshot(options.before), open_snapshot(options.after))
    say(json.dumps(found.as_json(), indent=2) if options.json else render(found))
    return 0
