"""The browser that pages are tested with: whether it sees, presses and refuses what a person's browser would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_pipeline.chromium import Browser

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><meta charset="utf-8"><title>t</title>
<style>body { background: white } @media (prefers-color-scheme: dark) { body { background: black } }</style>
<button onclick="document.title = 'pressed'">first</button> <input>
<div style="overflow: auto"><p style="width: 3000px">inside a box</p></div>
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_keys_and_clicks_reach_the_page(browser: Browser, file: Path):
    page = browser.open(file)
    page.press("Tab", "Enter")
    assert page.value("document.title") == "pressed"
    page.press("Tab")
    page.type("some text")
    page.press("x", "Backspace", "y")
    assert page.value("document.querySelector('input').value") == "some texty"
    page.value("document.title = 'again'")
    page.click("button")
    assert page.value("document.title") == "pressed"
    page.close()


def test_colours_widths_and_scripts_are_those_that_were_asked_for(browser: Browser, file: Path, tmp_path: Path):
    page = browser.open(file, width=360, dark=True, scripts=False)
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.value(f"[innerWidth, {colour}]") == [360, "rgb(0, 0, 0)"]
    page.click("button")
    assert page.value("document.title") == "t", "scripts are off"
    page.media()
    assert page.value(colour) == "rgb(255, 255, 255)"
    page.screenshot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page.close()


def test_what_sticks_out_is_told_and_what_scrolls_in_a_box_is_not(browser: Browser, file: Path, tmp_path: Path):
    page = browser.open(file, width=360)
    assert page.sideways() == []
    page.value("document.body.append(Object.assign(document.createElement('pre'), {textContent: 'x'.repeat(900)}))")
    assert page.sideways() == []  # a block is as wide as the page; its text overflows it
    page.value("document.querySelector('pre').style.width = '900px'")
    assert len(page.sideways()) == 1
    page.close()


def test_addresses_that_a_page_asks_for_and_what_its_policy_refuses_are_heard(browser: Browser, tmp_path: Path):
    path = tmp_path / "loud.html"
    refuse = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
    path.write_text(f"<!doctype html>{refuse}<script>document.title='owned'</script><img src='other.png'>")
    page = browser.open(path)
    assert page.value("document.title") != "owned"
    assert any("Content Security Policy" in text for text in page.complaints())
    assert page.requests()[0] == path.as_uri()
    page.close()
