"""Write what a study says into its folder: study.md, study.json, study.svg and study.html, each replaced whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.files import replace_file
from pipeline.reporting.environment import open_templates
from pipeline.reporting.text import visible
from pipeline.study import words
from pipeline.study.picture import pareto_picture
from pipeline.study.table import Table

PAGE, TEXT, NUMBERS, PICTURE = "study.html", "study.md", "study.json", "study.svg"
FORMAT = 1


def write_study(table: Table, folder: Path, *, gpu: bool) -> str:
    """Write the four files; equal tables give equal bytes. Returns the Markdown text.

    Args:
        table: of the study, finished or not.
        folder: of the study.
        gpu: whether the picture counts seconds of a GPU rather than of cores.
    """
    picture, text = pareto_picture(table, gpu=gpu), words.markdown(table, PICTURE)
    replace_file(folder / PICTURE, picture)
    replace_file(folder / TEXT, text)
    replace_file(folder / NUMBERS, json.dumps(as_json(table), indent=1, sort_keys=True, allow_nan=False) + "\n")
    replace_file(folder / PAGE, _html(table, picture))
    return text


def as_json(table: Table) -> dict[str, Any]:
    """Every number of the study. What is not known is null."""
    return {
        "format": FORMAT,
        "name": table.name,
        "split": table.split,
        "seeds": list(table.seeds),
        "strategies": list(table.strategies),
        "tasks": list(table.tasks),
        "complete": table.complete,
        "cells": [
            {"strategy": strategy, "task": task, "shared": cell.shared, **dataclasses.asdict(cell.interval)}
            for (strategy, task), cell in table.cells.items()
        ],
        "differences": [dataclasses.asdict(item) for item in table.differences],
        "costs": [
            {"strategy": strategy, "task": task, **dataclasses.asdict(cost)}
            for (strategy, task), cost in table.costs.items()
        ],
        "runs": [_without_entries(dataclasses.asdict(result)) for result in table.results],
        "failures": [dataclasses.asdict(failure) for failure in table.failures],
        "totals": dataclasses.asdict(table.totals),
    }


def _without_entries(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "entries"}


def _html(table: Table, picture: Markup) -> str:
    environment = open_templates()
    environment.filters["visible"] = visible
    return environment.get_template("study.html.j2").render(table=table, words=words, picture=picture)
