"""`mmgrpo report RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path

TEXT = "write report.html and report.json into the run folder"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=Path, help="a run folder")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo report RUN`."""
    from pipeline.reporting.build import build_report

    print(f"Report: {build_report(options.run)}")
    return 0
