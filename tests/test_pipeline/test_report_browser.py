"""The page as a browser shows it: headless Chromium, without network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.reporting.build import build_report
from schemas.canonical import canonical_json
from tests.test_pipeline.report_run import EVIL, Rows, whole_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
PHONE = 390
MEASURE = """
<!doctype html><title>measure</title>
<style>body {{ margin: 0 }} iframe {{ border: 0; width: {width}px; height: 900px }}</style>
<iframe id="page" srcdoc="{page}"></iframe><pre id="out"></pre>
<script>
window.onload = () => {{
  const page = document.getElementById("page").contentDocument;
  page.querySelectorAll("details").forEach((item) => {{ item.open = true; }});
  const all = [...page.querySelectorAll("*")];
  const wide = [...page.querySelectorAll("body *")].filter((item) => !item.parentElement.closest(".scroll, pre, svg")
    && item.getBoundingClientRect().right > {width} + 0.5).map((item) => item.tagName + "." + item.className);
  const found = {{
    scroll: page.documentElement.scrollWidth, wide,
    details: page.querySelectorAll("details[open]").length,
    scripts: page.querySelectorAll("script, img, iframe, object, embed, link, base").length,
    handlers: all.filter((item) => item.getAttributeNames().some((name) => name.startsWith("on"))).length,
    title: page.title, text: page.body.innerText.includes("<script>document.title='owned'</" + "script>"),
    pictures: [...page.querySelectorAll('svg[role="img"]')].map((item) => item.querySelector("title").textContent),
    headings: [...page.querySelectorAll("h2")].map((item) => item.textContent),
    policy: page.querySelector('meta[http-equiv="Content-Security-Policy"]').content,
  }};
  document.getElementById("out").textContent = JSON.stringify(found);
}};
</script>
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; install it: apt-get install -y chromium"),
]


def dom(address: Path, profile: Path, *flags: str) -> str:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=4000", *flags, "--dump-dom"]
    done = subprocess.run([*command, address.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def measured(page: str, width: int, tmp_path: Path) -> dict[str, object]:
    """What a script outside the page finds in it, at a width, with everything unfolded."""
    wrapper = tmp_path / "measure.html"
    wrapper.write_text(MEASURE.format(width=width, page=html.escape(page)))
    found = re.search(r'<pre id="out">(.*?)</pre>', dom(wrapper, tmp_path / "profile"), re.DOTALL)
    assert found is not None
    result: dict[str, object] = json.loads(html.unescape(found.group(1)))
    return result


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
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(whole_run(tmp_path_factory.mktemp("run"), iterations=2, change=inject))


def test_injected_markup_stays_text_when_a_browser_reads_the_page(page: Path, tmp_path: Path):
    rendered = dom(page, tmp_path / "profile")
    assert "<title>made-up: mmgrpo report</title>" in rendered
    assert "<script" not in rendered
    assert "<img" not in rendered
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in rendered


def test_the_browser_would_run_the_same_markup_unescaped(tmp_path: Path):
    # Without this, the test above could pass in a browser that runs no scripts at all.
    bare = tmp_path / "bare.html"
    bare.write_text(f"<!doctype html><title>safe</title><body>{EVIL}")
    assert "<title>owned</title>" in dom(bare, tmp_path / "profile")


@pytest.mark.parametrize("width", [320, PHONE, 1200])
def test_no_width_makes_the_page_scroll_sideways(page: Path, tmp_path: Path, width: int):
    found = measured(page.read_text(), width, tmp_path)
    assert found["wide"] == []
    assert found["scroll"] == width
    assert found["details"]


def test_the_page_has_its_sections_named_pictures_and_no_active_elements(page: Path, tmp_path: Path):
    found = measured(page.read_text(), PHONE, tmp_path)
    assert found["headings"] == [
        "Scores",
        "Rewards while training",
        "Groups",
        "Training",
        "Cost",
        "Sample rollouts",
        "Origin",
    ]
    pictures = found["pictures"]
    assert isinstance(pictures, list)
    assert len(pictures) > 8
    assert all(pictures)
    assert (found["scripts"], found["handlers"]) == (0, 0)
    assert found["text"] is True
    assert found["title"] == "made-up: mmgrpo report"
    assert str(found["policy"]).startswith("default-src 'none'")


def test_it_can_be_drawn_at_once(page: Path, tmp_path: Path):
    picture = tmp_path / "page.png"
    dom(page, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1200,2000")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
