"""What the local server answers: the page, its style and script, and the rollouts as JSON.

Nothing that a client sends becomes a part of a path: what it names is looked up among what the run has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote

from pipeline.browsing.bounds import SAMPLE, WHOLE
from pipeline.browsing.embed import Packer, script_json
from pipeline.browsing.filters import Filters
from pipeline.browsing.live import Live
from pipeline.browsing.query import facets, page_of
from pipeline.browsing.section import script, served_page, style
from pipeline.browsing.sources import rolled
from pipeline.browsing.trajectory import trajectories
from pipeline.reporting.build import PAGE
from schemas.errors import MmgrpoError, RecipeError

HTML, CSS, JAVASCRIPT, JSON, TEXT = "text/html", "text/css", "text/javascript", "application/json", "text/plain"
ROLLOUT = "/api/rollout/"
LARGEST = 16_000_000
"""Bytes of a rollout."""
PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
CLOSED = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; {CLOSED}",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Of every answer; a page has a policy of its own."""


@dataclass(frozen=True)
class Answer:
    """A response: its body is sent as UTF-8."""

    body: str
    kind: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(live: Live, path: str, query: Mapping[str, str]) -> Answer:
    """The answer to a GET that was let in."""
    try:
        if path in PAGES:
            return PAGES[path](live, query)
        if path.startswith(ROLLOUT):
            return _rollout(live, unquote(path.removeprefix(ROLLOUT)), query.get("artifact"))
    except RecipeError as error:
        return Answer(str(error), status=HTTPStatus.BAD_REQUEST)
    except MmgrpoError as error:
        return Answer(str(error), status=HTTPStatus.INTERNAL_SERVER_ERROR)
    return Answer("There is no such page.", status=HTTPStatus.NOT_FOUND)


def _rollouts(live: Live, query: Mapping[str, str]) -> Answer:
    page = query.get("page", "1")
    if not (page.isdecimal() and page.isascii() and len(page) < 10):
        raise RecipeError(f"page '{page[:50]}': expected a number from 1 on")
    return Answer(script_json(page_of(live.run(), Filters.read(query), int(page))), JSON)


def _rollout(live: Live, name: str, artifact: str | None) -> Answer:
    """A rollout in the form in which the report's page holds its sample: `records`, and the `texts` that they share."""
    run = live.run()
    for item in rolled(run):
        if artifact not in {None, item.artifact.digest}:
            continue
        # One that is too large for any browser is told as briefly as a sample.
        for bounds in (WHOLE, SAMPLE):
            packer = Packer(LARGEST)
            found = trajectories(run, item, [name], bounds, live.vocabulary)
            if found and packer.add(found[0]):
                return Answer(packer.json([0]), JSON)
    return Answer("The run has no such rollout.", status=HTTPStatus.NOT_FOUND)


def _page(live: Live, _: Mapping[str, str]) -> Answer:
    headers = {"Content-Security-Policy": PAGE_POLICY + CLOSED}
    return Answer(served_page(live.run().state.name), HTML, headers=headers)


def _facets(live: Live, _: Mapping[str, str]) -> Answer:
    return Answer(script_json(facets(live.run())), JSON)


def _report(live: Live, _: Mapping[str, str]) -> Answer:
    """The report as it was last written; its own policy names its scripts."""
    try:
        page = (live.folder / PAGE).read_text(encoding="utf-8")
    except OSError:
        return Answer("There is no report.html yet: `mmgrpo report` writes it.", status=HTTPStatus.NOT_FOUND)
    return Answer(page, HTML, headers={"Content-Security-Policy": CLOSED})


PAGES: dict[str, Callable[[Live, Mapping[str, str]], Answer]] = {
    "/": _page,
    "/report": _report,
    "/browser.css": lambda *_: Answer(style(), CSS),
    "/browser.js": lambda *_: Answer(script(), JAVASCRIPT),
    "/api/facets": _facets,
    "/api/rollouts": _rollouts,
}
