"""What the report and the terminal say of a policy whose evaluation runs failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.outcome import score_line
from pipeline.reporting.build import build_report
from pipeline.reporting.collect import collect
from pipeline.reporting.data import Report
from pipeline.reporting.failures import ERROR_LENGTH
from tests.test_pipeline.report_run import EVIL, RunWriter, written

METRIC = ("metric_error", "ValueError: no judge")
GOOD: list[float | None] = [1.0] * 20
POOR: list[float | None] = [0.0] * 20
BROKEN: list[float | None] = [None] * 15 + [1.0] * 5


def scored(folder: Path, *scores: list[float | None], failure: tuple[str, str] = METRIC) -> Path:
    """A run whose policies have these scores."""
    writer = RunWriter(folder, iterations=max(len(scores) - 1, 1))
    writer.add_setup()
    for position, values in enumerate(scores):
        if position:
            writer.add_rollout()
            writer.add_group()
            writer.add_train()
        writer.add_scores(position, values, failure=failure)
    return writer.write()


def warnings(report: Report) -> list[str]:
    return [note.text for note in report.notes if note.level == "warning" and note.text.startswith("Scoring")]


@pytest.mark.parametrize("status", ["metric_error", "engine_error", "timeout"])
@pytest.mark.parametrize(("scores", "which"), [((BROKEN, GOOD), "first"), ((GOOD, BROKEN), "last")])
def test_runs_that_the_machine_or_the_metric_failed_leave_the_verdict_open(
    tmp_path: Path, status: str, scores: tuple[list[float | None], ...], which: str
):
    run = scored(tmp_path, *scores, failure=(status, "broken"))
    report = collect(run)
    assert report.verdict.level == "warning"
    assert report.verdict.text.startswith(f"Cannot say: 15 of 20 runs of the {which} policy ended in {status}, ")
    artifact = report.dev.policies[0 if which == "first" else -1].artifact
    assert (run / artifact / "scores.parquet").is_file()
    assert f"delete {artifact} in the run folder and run again" in report.verdict.text
    page = build_report(run).read_text()
    assert "Better" not in page
    assert "Worse" not in page
    assert report.answers[0].value == "cannot say"


@pytest.mark.parametrize("status", ["parse_failed", "program_error", "context_overflow"])
def test_failures_of_the_model_or_the_program_count_in_the_verdict(tmp_path: Path, status: str):
    run = scored(tmp_path, BROKEN, GOOD, failure=(status, "its own"))
    assert collect(run).verdict.text.startswith("Better: the dev score rose from 0.250")
    assert collect(run).answers[0].value == "+0.750"


def test_a_broken_policy_between_the_two_compared_leaves_the_verdict_alone(tmp_path: Path):
    report = collect(scored(tmp_path, POOR, BROKEN, GOOD))
    assert report.verdict.level == "good"
    assert warnings(report) == [
        "Scoring after iteration 0 on dev: 15 of 20 runs failed (metric_error 15); each counts as the failure score."
    ]


def test_the_first_policy_is_warned_of_too(tmp_path: Path):
    report = collect(scored(tmp_path, BROKEN, GOOD, failure=("parse_failed", "no answer")))
    assert warnings(report) == [
        "Scoring before training on dev: 15 of 20 runs failed (parse_failed 15); each counts as the failure score."
    ]


def test_consecutive_policies_share_a_note(tmp_path: Path):
    report = collect(scored(tmp_path, BROKEN, BROKEN, BROKEN, GOOD, BROKEN))
    first, second = warnings(report)
    assert first.startswith("Scoring 3 policies (before training to after iteration 1) on dev: 45 of 60 runs failed (")
    assert second.startswith("Scoring after iteration 3 on dev: 15 of 20 runs failed")


def test_policies_that_fail_by_turns_do_not_fill_the_page(tmp_path: Path):
    (only,) = warnings(collect(scored(tmp_path, *[BROKEN, GOOD] * 7)))
    assert only.startswith("Scoring 7 policies (before training to after iteration 11) on dev: 105 of 140 runs failed")


def test_one_metric_error_is_worth_saying_and_one_parse_failure_is_not(tmp_path: Path):
    one: list[float | None] = [None, *[1.0] * 19]
    assert len(warnings(collect(scored(tmp_path / "metric", one)))) == 1
    assert warnings(collect(scored(tmp_path / "parse", one, failure=("parse_failed", "no answer")))) == []


def test_errors_of_evaluation_runs_show_all_their_lines_bounded_and_escaped(tmp_path: Path):
    error = f"AdapterParseError: failed to parse\n\nLM Response: {EVIL}\nExpected: [answer]\n" + "x" * 1000
    run = scored(tmp_path, BROKEN, failure=("parse_failed", error))
    (failure,) = collect(run).failures
    assert (failure.split, failure.status, failure.count, failure.last_seen) == (
        "dev",
        "parse_failed",
        15,
        "before training",
    )
    assert len(failure.error) == ERROR_LENGTH
    page = build_report(run).read_text()
    assert "AdapterParseError: failed to parse\nLM Response: &lt;script&gt;" in page
    assert "Expected: [answer]" in page
    assert "<script" not in written(page)


def test_errors_that_quote_the_model_are_counted_by_their_first_line(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()

    def quote(rollouts: list[dict[str, object]], calls: list[dict[str, object]]) -> None:
        for index, row in enumerate(rollouts[:5]):
            row |= {"status": "parse_failed", "error": f"cannot parse\nLM Response: {index}", "reward": None}

    writer.add_rollout(quote)
    (failure,) = collect(writer.write()).failures
    assert (failure.split, failure.count, failure.error) == (None, 5, "cannot parse\nLM Response: 0")


def test_the_score_line_tells_failed_runs_by_status(tmp_path: Path):
    run = scored(tmp_path, BROKEN, GOOD, failure=("parse_failed", "no answer"))
    assert score_line(run, "dev", 0).endswith(", 15 of 20 runs failed (parse_failed 15)")
    assert "+0.750" in score_line(run, "dev", 1)
    assert "failed" not in score_line(run, "dev", 1)


def test_the_score_line_does_not_compare_to_a_start_that_the_metric_failed(tmp_path: Path):
    run = scored(tmp_path, BROKEN, GOOD)
    assert score_line(run, "dev", 0).endswith("], 15 of 20 runs failed (metric_error 15)")
    assert score_line(run, "dev", 1) == (
        "dev score after iteration 0: 1.000 [1.000, 1.000], not comparable to the start, where runs failed "
        "(metric_error 15)"
    )


def test_the_chart_and_the_table_number_policies_alike(tmp_path: Path):
    page = build_report(scored(tmp_path, POOR, GOOD, GOOD)).read_text()
    assert "iterations trained" not in page
    assert ">policy (0: before training, n: after iteration n-1)</text>" in page
    assert "0: before training <code>" in page
    assert "2: after iteration 1 <code>" in page
