"""The browser of rollouts in a real one: filters, keyboard, a phone, harmful text; in a page and from the server."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.browsing.section import rollout_section, script, style
from pipeline.browsing.server import ReportServer
from pipeline.reporting.build import build_report
from tests.test_pipeline.browsing_kit import harm, with_tokens
from tests.test_pipeline.chromium import Browser, Page
from tests.test_pipeline.report_run import Rows, whole_run

pytestmark = pytest.mark.browser

READY = "document.querySelector('.rb-app') && !document.querySelector('.rb-app').hidden"
ROWS = "[...document.querySelectorAll('.rb-row')]"


def page_of(run: Path, folder: Path) -> Path:
    """The component in a page whose policy lets its own script run and no other."""
    allowed = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    path = folder / "page.html"
    path.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rollouts</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style()}</style></head>'
        f"<body>{rollout_section(run)}<script>{script()}</script></body></html>"
    )
    return path


def change(rollouts: Rows, calls: Rows) -> None:
    """The last iteration's: tokens for all, and one rollout that is the best and says what no other does."""
    with_tokens(calls)
    rollouts[0]["reward"] = 2.0
    calls[0]["completion"] = "plan that nobody else makes"
    with_tokens(calls[:1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("run"), iterations=3, change=change)


@pytest.fixture(scope="module")
def file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(run, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harm")
    return whole_run(folder, iterations=1, change=harm)


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[str]:
    build_report(run)
    with ReportServer(run) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server.address
        server.shutdown()


def opened(browser: Browser, what: Path | str, **options: int | bool) -> Page:
    page = browser.open(what, **options)  # type: ignore[arg-type]
    page.wait(READY)
    return page


def choose(page: Page, name: str, value: str) -> None:
    """Set a field as a person would, and wait until the list has followed."""
    page.value(
        f"(() => {{ const field = document.querySelector('.rb-filters [name={name}]'); field.value = {value!r};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    page.value("new Promise((done) => setTimeout(() => done(true), 300))")  # typing is waited for
    page.wait("!document.querySelector('.rb').hasAttribute('aria-busy')")


def unfold(page: Page) -> None:
    page.value("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    page.wait("[...document.querySelectorAll('.rb-call details')].every((item) => item.querySelector('pre'))")


@pytest.mark.parametrize("where", ["page", "server"])
def test_filters_leave_what_fits_and_say_how_many(browser: Browser, file: Path, served: str, where: str):
    page = opened(browser, file if where == "page" else served)
    everything = page.value(f"{ROWS}.length")
    assert everything > 15
    choose(page, "status", "parse_failed")
    assert page.value(f"{ROWS}.every((row) => row.textContent.includes('parse failed'))")
    assert page.value("document.querySelector('.rb-status').textContent") == f"{page.value(f'{ROWS}.length')} rollouts"
    choose(page, "iteration", "2")
    assert page.value(f"{ROWS}.length") == 1
    choose(page, "status", "")
    choose(page, "iteration", "")
    choose(page, "reward_min", "1.5")
    assert page.value(f"{ROWS}.map((row) => row.querySelector('b').textContent)") == ["reward 2.000"]
    choose(page, "q", "Nobody ELSE")
    choose(page, "reward_min", "")
    assert page.value(f"{ROWS}.length") == 1
    choose(page, "q", "no such text anywhere")
    assert page.value("document.querySelector('.rb-status').textContent") == "No rollout fits these filters."
    page.click(".rb-filters [type=reset]")
    page.wait(f"{ROWS}.length === {everything}")
    choose(page, "sort", "worst")
    rewards = page.value(f"{ROWS}.map((row) => row.querySelector('b').textContent)")
    known = [reward for reward in rewards if reward != "no reward"]
    assert known == sorted(known)
    assert rewards[len(known) :] == ["no reward"] * (len(rewards) - len(known))
    assert page.complaints() == []
    page.close()


@pytest.mark.parametrize("where", ["page", "server"])
def test_everything_is_reached_by_keyboard(browser: Browser, file: Path, served: str, where: str):
    page = opened(browser, file if where == "page" else served)
    for _ in range(20):
        page.press("Tab")
        if page.value("document.activeElement.matches('.rb-list')"):
            break
    assert page.value("document.activeElement.matches('.rb-list')")
    page.press("ArrowDown", "ArrowDown", "End", "Home", "ArrowDown")
    assert page.value(f"{ROWS}.findIndex((row) => row.getAttribute('aria-selected') === 'true')") == 1
    assert page.value(
        "document.activeElement.getAttribute('aria-activedescendant') === document.querySelectorAll('.rb-row')[1].id"
    )
    page.wait("document.querySelector('.rb-detail h3')")
    page.press("Enter")
    page.wait("document.activeElement.matches('.rb-detail h3')")
    assert page.focused().startswith("Rollout ")
    for _ in range(12):
        page.press("Tab")
        if page.value("document.activeElement.matches('.rb-step')"):
            break
    page.press("ArrowRight")
    assert page.value("document.activeElement === document.querySelectorAll('.rb-step')[1]")
    page.press("Enter")
    assert page.value("document.activeElement === document.querySelectorAll('.rb-call')[1]")
    page.press("Escape")
    assert page.value("document.activeElement.matches('.rb-list')")
    assert page.value(f"{ROWS}.findIndex((row) => row.getAttribute('aria-selected') === 'true')") == 1
    page.close()


@pytest.mark.parametrize("where", ["page", "server"])
def test_a_rollout_is_a_row_of_calls_with_prompts_completions_and_what_became_of_them(
    browser: Browser, file: Path, served: str, where: str
):
    page = opened(browser, file if where == "page" else served)
    choose(page, "q", "nobody else")
    page.click(".rb-row")
    page.wait("document.querySelector('.rb-detail h3')")
    text = page.value("document.querySelector('.rb-detail').innerText")
    assert "Reward parts" in text
    assert "question 0" in text
    names = "[...document.querySelectorAll('.rb-step')].map((step) => step.querySelector('span').textContent)"
    assert page.value(names)[:2] == [
        "plan 0",
        "act 0",
    ]
    assert page.value("document.querySelector('.rb-completion').textContent") == "plan that nobody else makes"
    page.click(".rb-call summary")
    page.wait("document.querySelector('.rb-call details pre')")
    assert "Do plan." in page.value("document.querySelector('.rb-call details').innerText")
    assert "at position 0 and 1 copy: reward" in page.value("document.querySelector('.rb-fates').innerText")
    page.close()


def test_boxes_that_scroll_are_stops_for_tab_and_others_are_not(browser: Browser, file: Path):
    page = opened(browser, file)
    page.click(".rb-row")
    page.wait("document.querySelector('.rb-detail h3')")
    assert page.value("document.querySelectorAll('.rb-detail pre[tabindex]').length") == 0
    page.value("document.styleSheets[0].insertRule('.rb pre.rb-completion, .rb pre { max-height: 1rem !important }')")
    page.value("document.querySelectorAll('.rb-row')[1].click()")
    page.wait("document.querySelectorAll('.rb-detail pre[tabindex]').length > 2")
    page.close()


def test_tokens_are_shaded_by_either_figure_and_never_by_colour_alone(browser: Browser, file: Path):
    page = opened(browser, file)
    choose(page, "q", "nobody else")
    page.click(".rb-row")
    page.wait("document.querySelector('.rb-detail h3')")
    first = "[...document.querySelector('.rb-completion').querySelectorAll('.rb-tok')]"
    assert page.value(f"{first}[2].title").startswith("log-probability \u22123.05, 4.7\u00a0%; advantage ")
    look = "(({textDecorationStyle: style, textDecorationLine: line}) => style + line)(getComputedStyle(token))"
    looks = f"{first}.slice(0, 4).map((token) => {look})"
    shades = f"new Set({first}.map((token) => getComputedStyle(token).backgroundColor)).size"
    assert page.value(looks) == ["solidnone", "dottedunderline", "dashedunderline", "dashedunderline"]
    assert page.value(shades) == 3
    assert "least likely:" in page.value("document.querySelector('.rb-call').innerText")
    page.click(".rb-mode input[value=advantage]")
    sign = page.value("document.querySelector('.rb-call .rb-right').textContent")
    assert page.value(looks) == [f"{'wavy' if chr(0x2212) in sign else 'solid'}underline"] * 4
    assert page.value(shades) == 1
    assert "Advantage of the call" in page.value("document.querySelector('.rb-legend').innerText")
    assert page.value("document.activeElement.value") == "advantage"
    page.press("ArrowRight")
    assert page.value("document.querySelector('.rb-mode input[value=nothing]').checked")
    assert page.value(looks) == ["solidnone"] * 4
    page.close()


@pytest.mark.parametrize("width", [320, 360, 700, 1280])
def test_no_width_makes_the_page_scroll_sideways(browser: Browser, harmful: Path, tmp_path: Path, width: int):
    page = opened(browser, page_of(harmful, tmp_path), width=width, touch=width < 700)
    page.click(".rb-row")
    page.wait("document.querySelector('.rb-detail h3')")
    unfold(page)
    assert page.sideways() == []
    assert page.value("document.documentElement.scrollWidth") == width
    page.close()


def test_harmful_text_stays_text(browser: Browser, harmful: Path, tmp_path: Path):
    page = opened(browser, page_of(harmful, tmp_path))
    for place in range(page.value(f"{ROWS}.length")):
        page.value(f"{ROWS}[{place}].click()")
        page.wait(
            f"document.querySelector('.rb-detail h3') && {ROWS}[{place}].getAttribute('aria-selected') === 'true'"
        )
    unfold(page)
    assert page.value("document.title") == "rollouts"
    assert page.value("document.querySelectorAll('.rb img, .rb iframe, .rb script:not([type])').length") == 0
    text = page.value("document.querySelector('.rb-detail').innerText")
    assert "</script><!--<script><script>document.title='owned'</script><img src=x" in text
    assert "[U+2028][U+2029]\u241b[31mred\u2407 &lt;b&gt;" in text
    handlers = "item.getAttributeNames().some((name) => name.startsWith('on'))"
    assert not page.value(f"[...document.querySelectorAll('.rb *')].some((item) => {handlers})")
    assert page.complaints() == []
    assert all(address.startswith("file:") for address in page.requests())
    page.close()


def test_harmful_text_from_the_server_stays_text(browser: Browser, harmful: Path):
    with ReportServer(harmful) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        page = opened(browser, server.address)
        page.click(".rb-row")
        page.wait("document.querySelector('.rb-detail h3')")
        assert page.value("document.title") == "made-up: rollouts"
        assert page.value("document.querySelectorAll('img, iframe').length") == 0
        assert "document.title='owned'" in page.value("document.querySelector('.rb-detail').innerText")
        assert page.complaints() == []
        server.shutdown()
        page.close()


def test_without_scripts_the_samples_are_a_plain_list(browser: Browser, file: Path):
    page = browser.open(file, scripts=False, width=360)
    assert page.value("document.querySelector('.rb-app').hidden")
    assert page.value("document.querySelectorAll('.rb-plain > li').length") > 15
    assert "plan" in page.value("document.querySelector('.rb-plain').textContent")
    assert page.sideways() == []
    page.close()


def test_the_token_leaves_the_address_and_a_reload_still_works(browser: Browser, served: str):
    page = opened(browser, served)
    assert page.value("location.search") == ""
    page.go(page.value("location.href"))
    page.wait(READY)
    assert page.value("document.cookie") == ""
    assert page.value(f"{ROWS}.length") == 50
    page.click("header a")
    page.wait("document.title.includes('report')")
    page.close()


def test_pages_turn_and_the_list_keeps_the_focus(browser: Browser, served: str):
    page = opened(browser, served, width=360, touch=True)
    assert "page 1 of 2" in page.value("document.querySelector('.rb-pager').textContent")
    page.value("[...document.querySelectorAll('.rb-pager button')].find((item) => item.textContent === 'Next').click()")
    page.wait("document.querySelector('.rb-pager').textContent.includes('page 2 of 2')")
    page.wait("document.activeElement.matches('.rb-list')")
    assert page.value(f"{ROWS}.length") == 22
    assert page.sideways() == []
    page.close()


def test_a_server_that_has_ended_is_told_in_words(browser: Browser, run: Path):
    with ReportServer(run) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        page = opened(browser, server.address)
        server.shutdown()
        thread.join()
    page.click(".rb-row")
    page.wait("document.querySelector('.rb-status').textContent.startsWith('This did not work')")
    assert page.value(f"{ROWS}.length") > 0, "what was listed stays"
    page.close()
