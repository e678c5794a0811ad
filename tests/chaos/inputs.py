"""Settings that make no sense: each is refused by its name, before anything is made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.chaos.harness import Bench, Tally

WRONG = {
    "a table": "{ chaos = 1 }",
    "a list of tables": "[{ chaos = 1 }]",
    "a number that is none": "nan",
    "an unknown neighbour": "1",
    "a date": "1979-05-27",
}
"""What no field of a recipe takes, as TOML."""


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every field of a recipe by its path, sections among them, and whether it takes tables of its own making."""
    for name, info in model.model_fields.items():
        yield f"{prefix}{name}", "dict" in str(info.annotation)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from fields(info.annotation, f"{prefix}{name}.")


def settings(draw: random.Random, count: int) -> list[tuple[str, str]]:
    """(what is wrong, setting), drawn from every field and every wrong value."""
    from schemas.recipe import Recipe

    cases = [
        (way, f"{name}{'_' if 'neighbour' in way else ''}={value}")
        for name, tables in fields(Recipe)
        for way, value in WRONG.items()
        if not (tables and way == "a table")
    ]
    draw.shuffle(cases)
    return cases[:count]


def refused(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Give each setting to `mmgrpo plan`."""
    tally, run = Tally("settings"), bench.fresh("never")
    cases = settings(draw, faults)

    def work() -> list[list[Any]]:
        import contextlib
        import io

        from pipeline.cli import main

        found = []
        for _, setting in cases:
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                code = main(["plan", str(bench.recipe), "--run-dir", str(run), "--set", setting])
            found.append([code, said.getvalue()])
        return found

    for (way, setting), (code, said) in zip(cases, bench.ask(work), strict=True):
        tally.hit(way)
        name = setting.partition("=")[0]
        clear = code in {2, 3} and "Traceback" not in said and name.rstrip("_").rpartition(".")[2] in said
        tally.refused += clear
        tally.recovered += clear
        if not clear:
            tally.blame(f"{setting}: ended with {code}: {said[-300:]}")
    if Path(run).exists():
        tally.blame("a setting that was refused left a run folder")
    return tally


FAMILIES = {"settings": refused}
