"""The report's part about single rollouts: a bounded sample, browsed by a script, listed plainly without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.browsing.bounds import SAMPLE, Text
from pipeline.browsing.embed import Packer
from pipeline.browsing.sample import Choice, Pick, choose
from pipeline.browsing.sources import reading
from pipeline.browsing.tokens import Vocabulary
from pipeline.browsing.trajectory import Record, trajectories
from pipeline.reporting.opened import OpenRun, open_run
from pipeline.reporting.text import count, number, visible, words
from schemas.visible import plain

BYTES = 500_000
"""Of the data of all samples, as JSON."""
EXCERPT = 300
"""Characters of a completion in the plain list."""
KINDS = ("best", "worst", "failed", "drawn")
SCRIPTS = ("text", "tokens", "call", "detail", "list", "filters", "source", "browser")
"""The script's parts in their order; they are read as one."""


def rollout_section(run: Path) -> Markup:
    """The component as HTML, without a heading. It needs `style()` and `script()` in the same page.

    The same run gives the same bytes; they are at most some `BYTES` plus the plain list.

    Raises:
        DataError: naming the file, when run.json, a manifest or a table is damaged.
    """
    opened = open_run(run)
    with reading(run):
        choice = choose(opened)
    packer = Packer(BYTES)
    taken = [record for record in _records(opened, choice) if packer.add(record)]
    order = sorted(range(len(taken)), key=lambda place: _order(taken[place]))
    shown = [taken[place] for place in order]
    data = Markup(packer.json(order))  # noqa: S704 - script_json leaves nothing that could be markup
    return Markup(  # noqa: S704 - rendered by a template that escapes
        _templates()
        .get_template("section.html.j2")
        .render(records=shown, about=_about(choice, len(shown)), data=data, excerpt=_excerpt)
    )


def served_page(name: str) -> str:
    """The page of the local server for the run of a name: it gets everything else from there."""
    return _templates().get_template("served.html.j2").render(name=name)


@cache
def style() -> str:
    """The style of the component. Every class and variable in it begins with `rb-`."""
    return files("pipeline.browsing").joinpath("browser.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """The script of the component: it finds its elements by itself, and leaves no global name."""
    folder = files("pipeline.browsing").joinpath("script")
    parts = [folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


def _records(run: OpenRun, choice: Choice) -> list[Record]:
    """The records of the picks, most wanted first, each with its `kind`."""
    vocabulary = Vocabulary(run.recipe.model.base)
    by_item: dict[str, list[Pick]] = {}
    for pick in choice.picks:
        by_item.setdefault(str(pick.item.artifact.path), []).append(pick)
    found: dict[tuple[int | None, str], Record] = {}
    for picks in by_item.values():
        item, names = picks[0].item, [pick.rollout_id for pick in picks]
        found |= {
            (item.iteration, each["rollout_id"]): each for each in trajectories(run, item, names, SAMPLE, vocabulary)
        }
    return [found[pick.item.iteration, pick.rollout_id] | {"kind": pick.kind} for pick in choice.picks]


def _order(record: Record) -> tuple[int, int]:
    """By iteration and kind; within them as they were ranked."""
    return -1 if record["iteration"] is None else record["iteration"], KINDS.index(record["kind"])


def _about(choice: Choice, shown: int) -> str:
    """What the sample is, in words."""
    if not choice.total:
        return "No rollouts yet."
    if shown == choice.total:
        return f"All {count(shown)} rollouts of the run."
    return (
        f"{count(shown)} of {count(choice.total)} rollouts: the best, the worst, failed ones and some drawn by the "
        f"run's seed, of {_where(choice.iterations)}. Long texts are cut in the middle."
    )


def _where(iterations: Sequence[int | None]) -> str:
    """Iterations in words; None stands for the logged traces."""
    numbers = [str(iteration) for iteration in iterations if iteration is not None]
    named = [f"iteration{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"] if numbers else []
    return " and ".join(["the logged traces", *named] if None in iterations else named)


def _excerpt(text: Text | None) -> str:
    """The beginning of a text."""
    if text is None:
        return ""
    start, more = (text, False) if isinstance(text, str) else (text["head"], True)
    return start[:EXCERPT] + (" …" if more or len(start) > EXCERPT else "")


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipeline.browsing"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, "plain": plain, "number": number, "words": words}
    return environment
