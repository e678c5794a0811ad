"""Write the report of a run: report.html and report.json, each replaced atomically."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.browsing.section import rollout_section, script, style
from pipeline.files import replace_file
from pipeline.reporting.collect import collect
from pipeline.reporting.data import Report
from pipeline.reporting.page import Component, render

PAGE, NUMBERS = "report.html", "report.json"


def build_report(run_dir: Path, running: str | None = None) -> Path:
    """Write report.html and report.json of a run, finished or not, and return the page's path.

    The same run gives the same bytes. Reading needs no network: the page holds its style, scripts and pictures.

    Args:
        run_dir: its folder.
        running: what is at work on it now, in words, where the caller is.

    Raises:
        DataError: naming the file, when run.json, a manifest or a table is damaged. Nothing is written then.
    """
    report = collect(run_dir, running)
    page = render(report, Component(rollout_section(run_dir), Markup(style()), script()))  # noqa: S704 - our own file
    replace_file(run_dir / NUMBERS, as_json(report))
    replace_file(run_dir / PAGE, page)
    return run_dir / PAGE


def as_json(report: Report) -> str:
    """The report as JSON. A figure that is not finite is null there; the notes say which and how often."""
    return json.dumps(_plain(dataclasses.asdict(report)), indent=1, sort_keys=True, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
