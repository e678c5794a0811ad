"""The part of the page about single rollouts: which ones it holds, how much it may weigh, and that it is inert."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.browsing import section
from pipeline.browsing.sample import ITERATIONS, PER_KIND, ROLLOUTS_SHOWN, choose
from pipeline.browsing.section import BYTES, rollout_section, script, style
from tests.test_pipeline.browsing_kit import HARM, harm, opened
from tests.test_pipeline.report_run import Rows, RunWriter, whole_run


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" class="rb-data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_the_best_the_worst_and_the_failed_of_every_iteration_are_there(tmp_path: Path):
    data = data_of(rollout_section(whole_run(tmp_path)))
    for iteration in range(3):
        own = [record for record in data["records"] if record["iteration"] == iteration]
        kinds = [record["kind"] for record in own]
        assert set(kinds) >= {"best", "worst", "failed"}
        best = [record["reward"] for record in own if record["kind"] == "best"]
        worst = [record["reward"] for record in own if record["kind"] == "worst"]
        assert (len(best), len(worst)) == (PER_KIND, PER_KIND)
        assert max(worst) <= min(best)
        assert all(record["status"] == "parse_failed" for record in own if record["kind"] == "failed")


def test_every_module_has_a_sample_even_one_that_was_called_once(tmp_path: Path):
    writer = RunWriter(tmp_path, examples=20, rollouts=10)
    writer.add_setup()

    def rare(rollouts: Rows, calls: Rows) -> None:
        calls[-1]["module"] = "seldom"

    writer.add_rollout(rare)
    picks = choose(opened(writer.write())).picks
    assert "seldom" in {
        call["module"] for call in writer.made[1] if call["rollout_id"] in {pick.rollout_id for pick in picks}
    }


def test_kinds_of_failure_take_turns(tmp_path: Path):
    writer = RunWriter(tmp_path, examples=12, rollouts=4)
    writer.add_setup()

    def failing(rollouts: Rows, calls: Rows) -> None:
        for row in rollouts[:-1]:
            row |= {"status": "parse_failed", "reward": None, "reward_parts": None, "error": "lacks answer"}
        rollouts[-1] |= {"status": "timeout", "reward": None, "reward_parts": None, "error": "60 s are over"}

    writer.add_rollout(failing)
    data = data_of(rollout_section(writer.write()))
    assert {record["status"] for record in data["records"]} == {"parse_failed", "timeout"}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path):
    run = whole_run(tmp_path)
    assert rollout_section(run) == rollout_section(run)


def test_a_long_run_is_sampled_from_its_first_its_last_and_iterations_between(tmp_path: Path):
    html = rollout_section(whole_run(tmp_path, iterations=20))
    data = data_of(html)
    iterations = {record["iteration"] for record in data["records"]}
    assert {0, 19} <= iterations
    assert len(iterations) == ITERATIONS
    assert len(data["records"]) <= ROLLOUTS_SHOWN
    assert f"{len(data['records'])} of 480 rollouts" in html


def test_the_page_never_holds_more_than_its_bytes(tmp_path: Path):
    def long(rollouts: Rows, calls: Rows) -> None:
        for number, call in enumerate(calls):
            call["completion"] = f"{number} " * 400_000
            call["messages"] = json.dumps(
                [{"role": "user", "content": f"{number} {place} " * 5000} for place in range(9)]
            )

    data = rollout_section(whole_run(tmp_path, iterations=1, change=long))
    assert len(data_of(data)["records"]) > 5
    assert len(data) < BYTES + 80_000


def test_what_does_not_fit_is_left_out_and_the_text_says_how_many_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(section, "BYTES", 9_000)
    html = rollout_section(whole_run(tmp_path, iterations=1))
    records = data_of(html)["records"]
    assert 0 < len(records) < 24
    assert f"{len(records)} of 24 rollouts: the best, the worst" in html


def test_a_run_without_rollouts_says_so(tmp_path: Path):
    writer = RunWriter(tmp_path)
    writer.add_setup()
    html = rollout_section(writer.write())
    assert "No rollouts yet." in html
    assert data_of(html)["records"] == []


def test_harmful_text_adds_no_element_with_or_without_the_script(tmp_path: Path):
    html = rollout_section(whole_run(tmp_path, iterations=1, change=harm))
    assert html.count("<script") == html.count("</script>") == 1
    assert "<img" not in html
    assert "\x1b" not in html
    assert any(HARM in record["calls"][0]["completion"] for record in data_of(html)["records"])


def test_script_and_style_can_stand_in_a_page_and_call_for_nothing_from_outside():
    assert "</script" not in script().lower()
    assert "<!--" not in script()
    assert "</style" not in style().lower()
    assert "url(" not in style()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script())
    assert not re.search(r"https?://", script() + style())


def test_classes_and_variables_of_the_style_are_its_own():
    rules = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
    assert all(name == "rb" or name.startswith("rb-") for name in re.findall(r"\.([a-z][\w-]*)", rules))
    assert all(name.startswith("--rb-") for name in re.findall(r"--[a-z-]+", rules))
