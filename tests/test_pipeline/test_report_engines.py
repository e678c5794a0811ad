"""What a report and the terminal say of the engines that sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pipeline.outcome import score_line
from pipeline.reporting.build import build_report
from pipeline.reporting.collect import collect
from pipeline.reporting.data_training import Step
from pipeline.reporting.engines import engine_gaps
from tests.test_pipeline.report_run import Rows, RunWriter, make_step, whole_run

SVG = "{http://www.w3.org/2000/svg}"
OURS, THEIRS = "transformers-5.24.0/bfloat16", "vllm-0.32.0/bfloat16"


def scored_by(folder: Path, first: str | None, last: str | None) -> tuple[Path, str, dict[str, Any]]:
    """A run of one iteration that got better, and what its report says."""
    writer = RunWriter(folder, iterations=1)
    writer.add_setup()
    writer.add_scores(0, [0.0] * 20, engine=first)
    writer.add_rollout()
    writer.add_group()
    writer.add_train()
    writer.add_scores(1, [1.0] * 20, engine=last)
    run = writer.write()
    return run, build_report(run).read_text(), json.loads((run / "report.json").read_text())


def test_a_change_between_scores_of_two_engines_is_marked_wherever_it_is_told(tmp_path: Path):
    run, page, numbers = scored_by(tmp_path, OURS, THEIRS)
    assert numbers["verdict"]["level"] == "warning"
    assert numbers["verdict"]["text"].startswith("Better: ")
    assert "Different engines sampled them" in numbers["verdict"]["text"]
    assert f"{OURS} (before training), {THEIRS} (after iteration 0)" in numbers["verdict"]["text"]
    assert any("was scored with different engines" in note["text"] for note in numbers["notes"])
    assert [list(row["engines"]) for row in numbers["dev"]["policies"]] == [[OURS], [THEIRS]]
    assert "Sampled by</th>" in page
    line = score_line(run, "dev", 1)
    assert f"(which {OURS} sampled, this {THEIRS}: engines alone may differ)" in line
    assert "engines" not in score_line(run, "dev", 0)


@pytest.mark.parametrize(("first", "last"), [(OURS, OURS), (None, THEIRS), (None, None)])
def test_one_engine_or_one_that_is_not_known_marks_nothing(tmp_path: Path, first: str | None, last: str | None):
    run, page, numbers = scored_by(tmp_path, first, last)
    assert numbers["verdict"]["level"] == "good"
    assert not any("engines" in note["text"] for note in [numbers["verdict"], *numbers["notes"]])
    assert "Sampled by</th>" not in page
    assert "engines" not in score_line(run, "dev", 1)


def test_what_sampled_the_rollouts_is_counted_from_the_calls(tmp_path: Path):
    how = {"engine": OURS, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 64, "adapter": "ad" * 32}

    def change(_: Rows, calls: Rows) -> None:
        for call in calls:
            call.update(how | ({"engine": THEIRS, "logprob_kind": None} if call["module"] == "plan" else {}))

    run = whole_run(tmp_path, iterations=1, change=change)
    rows = {row.engine: row for row in collect(run).sampled}
    assert rows.keys() == {OURS, THEIRS}
    assert (rows[THEIRS].calls, rows[THEIRS].logprob_kind, rows[OURS].logprob_kind) == (24, None, "processed")
    assert {name: getattr(rows[OURS], name) for name in how} == how
    page = build_report(run).read_text()
    assert "What sampled the rollouts" in page
    assert f'<td class="text">{THEIRS}</td><td class="text">none</td>' in page


def test_the_gap_of_an_iteration_is_a_mean_by_tokens_and_the_largest_of_its_steps():
    rows = [make_step(step) | {"completion_tokens": 100 * (step + 1)} for step in range(2)]
    rows[0] |= {"mismatch_mean": 0.002, "mismatch_p99": 0.05, "mismatch_max": 0.1, "rho_cut": 0.3}
    rows[1] |= {"mismatch_mean": 0.005, "mismatch_p99": 0.03, "mismatch_max": 0.4, "rho_cut": None}
    (gap,) = engine_gaps([Step(4, row["step"], "shared", row) for row in rows])
    assert (gap.iteration, gap.completion_tokens, gap.p99, gap.largest) == (4, 300, 0.05, 0.4)
    assert gap.mean == pytest.approx(0.004)
    assert gap.rho_cut == pytest.approx(0.3), "a step without the figure does not count"


def test_an_iteration_without_logged_probabilities_has_no_gap():
    unknown = dict.fromkeys(("mismatch_mean", "mismatch_p99", "mismatch_max", "mismatch_ess", "rho_cut"))
    (gap,) = engine_gaps([Step(0, 0, "shared", make_step(0) | unknown)])
    assert (gap.mean, gap.p99, gap.largest, gap.ess, gap.rho_cut) == (None,) * 5


def test_the_gap_is_plotted_by_iteration_beside_a_table_and_stands_in_the_numbers(tmp_path: Path):
    run = whole_run(tmp_path, iterations=3)
    page = build_report(run).read_text()
    start = page.index("<h3>Engine and trainer</h3>")
    part = page[start : page.index("<table", start)]
    titles = [ET.fromstring(svg + "</svg>").findtext("title") for svg in _pictures(part)]
    assert titles == [
        "Engine's against the trainer's log-probability of a token, nats: mean, 99 % of tokens, by iteration",
        "Tokens whose rho was cut, share, by iteration",
    ]
    assert 'aria-label="Engine and trainer by iteration"' in page
    gaps = json.loads((run / "report.json").read_text())["engine_gaps"]
    assert [gap["iteration"] for gap in gaps] == [0, 1, 2]
    assert gaps[2]["p99"] == pytest.approx(0.025)


def _pictures(html: str) -> list[str]:
    return ["<svg" + piece.split("</svg>")[0] for piece in html.split("<svg")[1:]]


def test_calls_sampled_with_top_p_or_top_k_are_told(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    writer.add_rollout()
    writer.add_group()
    writer.add_train(rows=40, narrowed_rows=30)
    page, numbers = build_report(writer.write()).read_text(), json.loads((tmp_path / "report.json").read_text())
    assert any(
        "30 of 40 calls trained on were sampled with top_p or top_k" in note["text"] for note in numbers["notes"]
    )
    assert (numbers["iterations"][0]["rows"], numbers["iterations"][0]["narrowed_rows"]) == (40, 30)
    assert "sampled with top_p or top_k" in page


def test_what_training_left_out_stands_with_what_it_means(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    writer.add_rollout()
    writer.add_group()
    left_out = {"ids_do_not_decode": 2}
    writer.iterations[-1]["train"] = writer.artifact(
        "train", "t", {}, metrics={"trained": False, "reason": "none"}, excluded=left_out
    )
    page = build_report(writer.write()).read_text()
    assert "the recorded ids do not give back the text that the program saw" in page
