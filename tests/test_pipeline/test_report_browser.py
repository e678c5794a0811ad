"""The page as a browser shows it: headless Chromium, without network."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.reporting.build import build_report
from schemas.canonical import canonical_json
from tests.test_pipeline.chromium import Browser
from tests.test_pipeline.report_run import EVIL, Rows, RunWriter, whole_run

pytestmark = pytest.mark.browser

SECTIONS = ["next", "scores", "compared", "flips", "rewards", "groups", "training", "cost", "samples", "origin"]
TABLE = '[aria-label="Iterations compared"]'
COLUMN = """
[...document.querySelectorAll('[aria-label="Iterations compared"] tbody tr')]
  .map((row) => row.cells[0].textContent.trim().split(" ")[0])
"""


def inject(rollouts: Rows, calls: Rows) -> None:
    """Markup in every place that a model or a user can write to, and words too long for any screen."""
    for rollout in rollouts:
        rollout["output"] = canonical_json(EVIL)
        rollout["error"] = f"{EVIL} {'w' * 500}" if rollout["status"] != "ok" else None
    for call in calls:
        call["completion"] = f"{EVIL} {'x' * 900} {EVIL}"
        call["messages"] = canonical_json([{"role": "user", "content": f"</pre>{EVIL}{'y' * 700}"}])
        call["module"] = f"a.very.long.module.path.{'z' * 60}.{call['module']}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(whole_run(tmp_path_factory.mktemp("run"), iterations=3, change=inject))


def test_injected_markup_stays_text_when_a_browser_reads_the_page(browser: Browser, report: Path):
    page = browser.open(report)
    assert page.value("document.title") == "made-up: mmgrpo report"
    assert page.value("document.querySelectorAll('img, iframe, object, embed, link, base').length") == 0
    assert page.value("[...document.scripts].map((script) => script.type)") == ["application/json", "", ""]
    handlers = (
        "[...document.querySelectorAll('*')].filter((e) => e.getAttributeNames().some((n) => n.startsWith('on')))"
    )
    assert page.value(f"{handlers}.length") == 0
    assert page.value("document.body.textContent.includes(\"<script>document.title='owned'</\" + 'script>')")
    assert (page.requests(), page.complaints()) == ([report.as_uri()], [])
    page.close()


def test_markup_that_got_into_the_page_unescaped_would_still_not_run(browser: Browser, report: Path, tmp_path: Path):
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text().replace("<main>", f"<main>{EVIL}"))
    page = browser.open(broken)
    assert page.value("document.title") == "made-up: mmgrpo report"
    assert any("Content Security Policy" in text for text in page.complaints())
    assert page.value("document.querySelectorAll('th .sort').length") > 0, "its own script runs"
    page.close()
    bare = tmp_path / "bare.html"  # without this, the above could hold in a browser that runs no scripts at all
    bare.write_text(f"<!doctype html><title>safe</title><body>{EVIL}")
    page = browser.open(bare)
    assert page.value("document.title") == "owned"
    page.close()


@pytest.mark.parametrize("width", [320, 360, 1280])
def test_no_width_makes_the_page_scroll_sideways(browser: Browser, report: Path, width: int):
    page = browser.open(report, width=width, touch=width < 1000)
    page.value("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    assert page.sideways() == []
    assert page.value("document.documentElement.scrollWidth") == width
    page.close()


def test_six_answers_stand_on_the_first_screen_with_links_to_their_sections(browser: Browser, report: Path):
    page = browser.open(report, width=1280, height=900)
    questions = page.value("[...document.querySelectorAll('.answer h2')].map((item) => item.textContent)")
    assert questions == [
        "Did it get better?",
        "Is that real?",
        "What did it cost?",
        "What data made it?",
        "What went wrong in the failed rollouts?",
        "What to do next?",
    ]
    assert (
        page.value(
            "Math.max(...[...document.querySelectorAll('.answer')].map((e) => e.getBoundingClientRect().bottom))"
        )
        < 900
    )
    targets = page.value(
        "[...document.querySelectorAll('.answer a, nav a')].map((item) => item.getAttribute('href').slice(1))"
    )
    assert page.value(f"{targets}.every((id) => document.getElementById(id))")
    assert (
        page.value("[...document.querySelectorAll('main section')].map((e) => e.getAttribute('aria-labelledby'))")
        == SECTIONS
    )
    page.close()


def test_every_picture_and_every_table_that_scrolls_has_a_name(browser: Browser, report: Path):
    page = browser.open(report)
    titles = page.value(
        "[...document.querySelectorAll('svg[role=img]')].map((item) => item.querySelector('title').textContent)"
    )
    assert len(titles) > 8
    assert all(titles)
    assert page.value(
        "[...document.querySelectorAll('.scroll')].every((e) => e.getAttribute('aria-label') && e.tabIndex === 0)"
    )
    page.close()


def test_a_table_sorts_by_keyboard_and_says_how(browser: Browser, report: Path):
    page = browser.open(report)
    assert page.value(COLUMN) == ["start", "0", "1", "2"]
    head = "document.querySelector('[aria-label=\"Iterations compared\"] th:nth-child(2)')"
    page.value(f"{head}.querySelector('button').focus()")
    page.press("Enter")
    assert page.value(f"{head}.getAttribute('aria-sort')") == "ascending"
    rising = page.value(COLUMN)
    page.press(" ")
    assert page.value(f"{head}.getAttribute('aria-sort')") == "descending"
    assert page.value(COLUMN) == rising[::-1]
    page.press("Enter")
    assert page.value(f"{head}.getAttribute('aria-sort')") is None
    assert page.value(COLUMN) == ["start", "0", "1", "2"]
    page.press("Tab")
    assert "95 % interval" in page.focused().lower()
    page.close()


def test_what_is_not_there_sorts_last_whichever_way(browser: Browser, report: Path):
    page = browser.open(report)
    for times in (1, 2):  # the first row has no reward
        page.click(f"{TABLE} th:nth-child(8) button")
        assert page.value(COLUMN)[-1] == "start", times
    page.close()


def test_flipped_examples_filter_by_kind_and_by_text(browser: Browser, report: Path):
    page = browser.open(report)
    rows = "[...document.querySelectorAll('#flips ~ [data-filter] tbody tr')]"
    shown = f"{rows}.filter((row) => !row.hidden).map((row) => row.dataset.kind)"
    everything = page.value(shown)
    assert set(everything) == {"gained", "lost", "back again"}
    page.click("#flips ~ [data-filter] .filters button:nth-of-type(3)")
    assert page.value("document.querySelector('.filters [aria-pressed=true]').textContent").startswith("gained")
    assert set(page.value(shown)) == {"gained"}
    page.click(".filters input")
    page.type("no example has this")
    assert page.value(shown) == []
    assert page.value("document.querySelector('.filters [role=status]').textContent") == f"0 of {len(everything)} rows"
    page.close()


def test_the_page_is_whole_without_scripts(browser: Browser, report: Path):
    page = browser.open(report, scripts=False)
    assert page.value("document.querySelectorAll('button, input').length") == 0
    assert page.value(COLUMN) == ["start", "0", "1", "2"]
    page.close()


def test_dark_colours_and_paper_are_provided_for(browser: Browser, report: Path):
    page = browser.open(report)
    colours = "[document.body, document.querySelector('.answer')].map((e) => getComputedStyle(e).backgroundColor)"
    light = page.value(colours)
    page.media(dark=True)
    dark = page.value(colours)
    assert not set(light) & set(dark)
    page.media(paper=True)
    assert page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.value("getComputedStyle(document.querySelector('.scroll')).maxHeight") == "none"
    page.close()


def test_a_link_to_something_folded_unfolds_it(browser: Browser, report: Path):
    page = browser.open(report)
    page.value("document.querySelector('details table').id = 'inside'")
    assert not page.value("document.getElementById('inside').closest('details').open")
    page.value("location.hash = '#inside'")
    page.wait("document.getElementById('inside').closest('details').open")
    page.close()


def test_the_keyboard_meets_a_way_past_the_first_screen_then_the_answers(browser: Browser, report: Path):
    page = browser.open(report)
    page.press("Tab")
    assert page.focused().startswith("Skip to the scores")
    assert page.value("document.activeElement.getBoundingClientRect().left") >= 0, "and it is seen"
    page.press("Tab")
    assert page.focused().startswith("Did it get better?")
    page.press("Enter")
    page.wait("location.hash === '#scores'")
    page.close()


def test_a_part_that_is_not_there_has_no_link_to_it(browser: Browser, tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=1)
    page = browser.open(build_report(writer.write()))
    links = page.value("[...document.querySelectorAll('a')].map((item) => item.getAttribute('href').slice(1))")
    assert page.value(f"{links}.filter((id) => !document.getElementById(id))") == []
    assert page.complaints() == []
    page.close()
