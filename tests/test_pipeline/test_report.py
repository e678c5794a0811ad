from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.browsing.section import script
from pipeline.reporting.build import build_report
from pipeline.reporting.collect import collect
from pipeline.reporting.scripts import inline, own_script
from schemas.canonical import canonical_json, digest
from schemas.errors import DataError
from schemas.groups import GROUPS
from schemas.parquet import read_rows
from stages.statistics import bootstrap_seed, mean_interval, paired_interval
from tests.test_pipeline.report_run import EVIL, Rows, RunWriter, call_row, rollout_row, whole_run, written


def page_and_numbers(run: Path) -> tuple[str, dict[str, Any]]:
    page = build_report(run).read_text()
    return page, json.loads((run / "report.json").read_text())


def started(folder: Path, **sizes: int) -> RunWriter:
    writer = RunWriter(folder, **sizes)
    writer.add_setup()
    return writer


def test_page_and_json_hold_the_scores_with_their_intervals(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    before, after = [0.0] * 12 + [1.0] * 8, [0.0] * 4 + [1.0] * 16
    writer.add_scores(0, [*before])
    writer.add_rollout()
    writer.add_group()
    writer.add_train()
    writer.add_scores(1, [*after])
    page, numbers = page_and_numbers(writer.write())
    seed = bootstrap_seed(writer.recipe.seed)
    expected = mean_interval(after, seed, 2000)
    change = paired_interval(*({f"{i:03d}": v for i, v in enumerate(x)} for x in (after, before)), seed, 2000)
    last = numbers["dev"]["policies"][1]
    assert last["score"] == {"estimate": 0.8, "low": expected.low, "high": expected.high, "n": 20, "level": 0.95}
    assert last["to_first"]["estimate"] == pytest.approx(0.4)
    assert (last["to_first"]["low"], last["to_first"]["high"]) == (change.low, change.high)
    assert f"[{expected.low:.3f}, {expected.high:.3f}]" in page
    assert "Better: the dev score rose from 0.400 (before training) to 0.800 (after iteration 0), by +0.400" in page
    assert numbers["verdict"]["level"] == "good"


def test_failed_runs_of_the_score_count_as_the_failure_score(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    writer.add_scores(0, [1.0, 1.0, None, None])
    _, numbers = page_and_numbers(writer.write())
    score = numbers["dev"]["policies"][0]
    assert (score["score"]["estimate"], score["rows"], score["failed"]) == (0.5, 4, 2)
    assert any("2 of 4 runs failed" in note["text"] for note in numbers["notes"])


def test_parts_of_the_metric_stand_beside_the_score(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    writer.add_scores(0, [1.0, 0.0], quality=0.625, leak_age=0.25)
    page, numbers = page_and_numbers(writer.write())
    assert numbers["dev"]["policies"][0]["parts"] == {"leak_age": 0.25, "quality": 0.625}
    assert "leak age</th>" in page
    assert "<td>0.625</td>" in page


def test_the_test_split_appears_only_once_it_was_opened(tmp_path: Path):
    opened, _ = page_and_numbers(whole_run(tmp_path / "a"))
    assert "(held out)" in opened
    assert "opened once" in opened
    writer = started(tmp_path / "b")
    writer.add_scores(0, [1.0, 0.0])
    closed, numbers = page_and_numbers(writer.write())
    assert "(held out)" not in closed
    assert "opened 0 times" in closed
    assert numbers["test"] is None


def test_groups_copies_and_flat_groups_are_counted_from_the_tables(tmp_path: Path):
    report = collect(whole_run(tmp_path, iterations=1))
    stats = report.iterations[0].groups
    assert stats is not None
    # Six examples, plan once and act up to three times; one example is flat in all four positions of its calls.
    assert stats.flat_dropped == 4
    assert stats.flat_kept == 0
    assert stats.copies == {"fill": stats.groups}
    assert sum(stats.sizes.values()) == stats.groups
    assert sum(size * count for size, count in stats.sizes.items()) == stats.members
    assert stats.flat_share == pytest.approx(4 / (4 + stats.groups))


def test_the_pull_of_a_module_is_the_sum_of_its_weighted_advantages_and_stands_on_the_page(tmp_path: Path):
    folder = whole_run(tmp_path, iterations=1)
    stats = collect(folder).iterations[0].groups
    assert stats is not None
    path = next((folder / "artifacts" / "group").glob("*/groups.parquet"))
    expected: dict[str, float] = {}
    for row in read_rows(path, GROUPS):
        expected[row["module"]] = expected.get(row["module"], 0.0) + abs(row["weight"] * row["advantage"])
    assert stats.pull == pytest.approx(expected)
    assert all(pull > 0 for pull in expected.values())
    assert "Pull of each module" in build_report(folder).read_text()


def test_rewards_stand_by_module_and_call(tmp_path: Path):
    report = collect(whole_run(tmp_path, iterations=1))
    rewards = {(row.module, row.invocation_index): row for row in report.module_rewards}
    assert set(rewards) == {("plan", 0), ("act", 0), ("act", 1), ("act", 2)}
    every = report.iterations[0].rollouts
    assert every is not None
    assert rewards["plan", 0].rollouts == every.rollouts == 24
    assert rewards["plan", 0].mean_reward == pytest.approx(every.mean_reward)
    assert rewards["act", 2].rollouts < rewards["act", 1].rollouts < 24
    assert (rewards["act", 0].parse_failed, rewards["act", 0].without_reward) == (1, 1)


def test_what_did_not_parse_at_first_stands_beside_what_never_did(tmp_path: Path):
    def retry(rollouts: Rows, calls: Rows) -> None:
        name = rollouts[1]["rollout_id"]
        first = next(call for call in calls if call["rollout_id"] == name and call["module"] == "plan")
        first["parse_status"] = "failed"
        calls.append({**first, "call_index": 9, "attempt": 1, "parse_status": "ok"})

    folder = whole_run(tmp_path, iterations=1, change=retry)
    report = collect(folder)
    plan = next(row for row in report.module_rewards if row.module == "plan")
    assert (plan.rollouts, plan.first_failed, plan.parse_failed) == (24, 1, 0)
    assert report.dev.policies[0].first_valid == 0.75
    page = build_report(folder).read_text()
    assert "Not parsed at first" in page
    assert "<td>75" in page


def test_exclusions_and_failures_are_listed_by_reason(tmp_path: Path):
    page, numbers = page_and_numbers(whole_run(tmp_path, iterations=2))
    reasons = {(row["stage"], row["iteration"], row["reason"]) for row in numbers["exclusions"]}
    assert ("examples", None, "duplicate") in reasons
    assert ("group", 1, "flat_group") in reasons
    assert "all rewards of the group are equal within min_spread" in page
    way = {"status": "parse_failed", "error": "completion lacks answer"}
    assert numbers["failures"] == [
        {**way, "split": None, "count": 2, "last_seen": "iteration 1"},
        {**way, "split": "dev", "count": 3, "last_seen": "after iteration 1"},
    ]
    assert page.index("Why evaluation runs failed") < page.index("Why rollouts failed")


def test_costs_are_summed_per_stage_and_missing_telemetry_is_said_not_made_zero(tmp_path: Path):
    writer = started(tmp_path, iterations=2)
    for _ in range(2):
        writer.add_rollout()
    writer.iterations[1]["group"] = writer.artifact("group", "silent", {})
    page, numbers = page_and_numbers(writer.write())
    costs = {row["stage"]: row for row in numbers["costs"]}
    assert costs["rollout"]["figures"]["seconds"] == 60.0
    assert costs["rollout"]["figures"]["completion_tokens"] == 2401.0
    assert (costs["group"]["figures"], costs["group"]["without_telemetry"]) == ({}, 1)
    assert numbers["seconds"] == pytest.approx(62.6)
    assert "(1 without figures)" in page


def test_steps_keep_their_order_and_figures_that_are_not_finite_are_reported(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    writer.add_rollout()
    from schemas.training import STEPS
    from tests.test_pipeline.report_run import make_step

    rows = [make_step(0), {**make_step(1), "loss": float("nan"), "ess": 0.05}, make_step(2)]
    writer.iterations[0]["train"] = writer.artifact(
        "train", "nan", {"steps.parquet": (STEPS, rows)}, metrics={"trained": True, "policy": writer.policies[1]}
    )
    page, numbers = page_and_numbers(writer.write())
    assert [step["figures"]["loss"] for step in numbers["steps"]] == [0.5, None, 0.4]
    assert numbers["step_means"][0]["figures"]["loss"] == pytest.approx(0.45)
    assert "loss was not finite in 1 of 3 steps." in page
    assert "effective sample size fell below 0.1 in 1 step." in page


@pytest.mark.parametrize("stages", [0, 1, 2, 3])
def test_an_unfinished_run_has_a_report_that_says_what_it_lacks(tmp_path: Path, stages: int):
    writer = started(tmp_path, iterations=2)
    for add in (writer.add_rollout, writer.add_group, writer.add_train)[:stages]:
        add()
    page, numbers = page_and_numbers(writer.write())
    done = (
        "1 of the recipe&#39;s 2 iterations is done" if stages == 3 else "0 of the recipe&#39;s 2 iterations are done"
    )
    assert done in page
    assert numbers["notes"][0]["level"] == "plain"
    assert "No policy has been scored on dev yet." in page
    lacking = [list(iteration["missing"]) for iteration in numbers["iterations"]]
    assert lacking == [[], [["group", "train"]], [["train"]], [[]]][stages]
    if 0 < stages < 3:
        assert "Iteration 0 lacks" in page


def test_a_run_that_has_only_just_begun_has_a_report(tmp_path: Path):
    writer = RunWriter(tmp_path)
    page, numbers = page_and_numbers(writer.write())
    assert "No rollouts yet." in page
    assert numbers["seconds"] is None


def test_an_artifact_that_run_json_names_but_is_not_there_is_missing_not_an_error(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    writer.add_rollout()
    writer.iterations[0]["group"] = digest("never made")
    _, numbers = page_and_numbers(writer.write())
    assert numbers["iterations"][0]["missing"] == ["group", "train"]
    assert [row["digest"] for row in numbers["artifacts"] if row["stage"] == "group"] == [None]


def test_the_reasons_why_a_run_ended_or_trained_nothing_are_told(tmp_path: Path):
    writer = started(tmp_path, iterations=3)
    writer.add_scores(0, [0.0, 1.0])
    writer.add_rollout()
    writer.add_group()
    key = writer.artifact("train", "none", {}, metrics={"trained": False, "reason": "all groups are flat"})
    writer.iterations[0]["train"] = key
    writer.policies[1] = writer.policies[0]
    writer.state["ended"] = "iteration 0: all groups are flat"
    page, numbers = page_and_numbers(writer.write())
    assert "The run ended after 1 iteration: iteration 0: all groups are flat." in page
    assert "Iteration 0 trained nothing: all groups are flat." in page
    assert "The policy did not change" in page
    assert numbers["steps"] == []


def test_a_reason_shared_by_many_iterations_is_told_once(tmp_path: Path):
    writer = started(tmp_path, iterations=8)
    for index in range(8):
        note = "all groups are flat" if index != 3 else "no rollout has a reward"
        writer.iterations.append(
            {"train": writer.artifact("train", f"idle {index}", {}, metrics={"trained": False, "reason": note})}
        )
    page, numbers = page_and_numbers(writer.write())
    assert sum("trained nothing" in note["text"] for note in numbers["notes"]) == 2
    assert "7 iterations (0 to 7) trained nothing: all groups are flat." in page
    assert "Iteration 3 trained nothing: no rollout has a reward." in page


def test_scores_on_different_examples_are_not_compared(tmp_path: Path):
    writer = started(tmp_path, iterations=1)
    writer.add_scores(0, [0.0] * 10)
    writer.add_rollout()
    writer.add_group()
    writer.add_train()
    writer.add_scores(1, [1.0] * 12)
    page, numbers = page_and_numbers(writer.write())
    assert "the two cannot be compared" in page
    assert numbers["dev"]["policies"][1]["to_first"] is None


def test_thousands_of_rollouts_do_not_make_the_page_heavy(tmp_path: Path):
    writer = started(tmp_path, iterations=1)

    def many(rollouts: Rows, calls: Rows) -> None:
        for index in range(5000):
            name = digest(["many", index])[:20]
            rollouts.append(rollout_row(name, 0, "p", f"example {index:016x}", 0, index / 5000, failed=False))
            calls.append(call_row(name, 0, "plan", 0, "word " * 100))

    writer.add_rollout(many)
    page, numbers = page_and_numbers(writer.write())
    assert numbers["iterations"][0]["rollouts"]["rollouts"] == 5024
    assert len(page) < 200_000


def test_the_same_run_gives_the_same_bytes_and_leaves_no_other_files(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    before = {path.name for path in run.iterdir()}
    build_report(run)
    first = (run / "report.html").read_bytes(), (run / "report.json").read_bytes()
    build_report(run)
    assert first == ((run / "report.html").read_bytes(), (run / "report.json").read_bytes())
    assert {path.name for path in run.iterdir()} - before == {"report.html", "report.json"}


def test_model_output_is_escaped_wherever_it_stands(tmp_path: Path):
    def inject(rollouts: Rows, calls: Rows) -> None:
        for rollout in rollouts:
            rollout["output"] = canonical_json({EVIL: EVIL})
            rollout["error"] = EVIL if rollout["status"] != "ok" else None
            rollout["reward_parts"] = canonical_json({EVIL: 1.0})
        for call in calls:
            call["module"] = f"{call['module']}{EVIL}"
            call["completion"] = EVIL
            call["messages"] = canonical_json([{"role": EVIL, "content": [{"text": EVIL}]}])

    run = whole_run(tmp_path, iterations=2, change=inject)
    page = written(page_and_numbers(run)[0])
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "[U+202E]" in page
    assert (run / "report.json").read_text().isascii()


def test_the_page_asks_for_nothing_and_allows_nothing(tmp_path: Path):
    page, _ = page_and_numbers(whole_run(tmp_path, iterations=1))
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    assert html.unescape(found.group(1)) == inline([own_script(), script()]).policy
    assert html.unescape(found.group(1)).startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert written(page).count("<script") == 0
    assert "http://" not in page
    assert "https://" not in page
    assert "<link" not in page
    assert 'src="' not in page


def test_a_folder_without_a_run_is_refused_by_name_and_nothing_is_written(tmp_path: Path):
    with pytest.raises(DataError, match=r"run\.json: no such file"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_table_is_named_and_the_old_report_stays(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    page = build_report(run).read_bytes()
    table = next((run / "artifacts" / "rollout").glob("*/rollouts.parquet"))
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(DataError, match=r"rollouts\.parquet"):
        build_report(run)
    assert (run / "report.html").read_bytes() == page


def test_data_of_each_age_and_module_are_added_up_by_iteration(tmp_path: Path) -> None:
    numbers = json.loads((build_report(whole_run(tmp_path)).parent / "report.json").read_text())
    first, unknown = (row for row in numbers["ages"] if row["iteration"] == 1)
    assert (first["age"], first["members"], first["completion_tokens"]) == (0, 20, 300)
    assert first["kl_k1"] == pytest.approx(0.0025), "steps 2 and 3"
    assert first["ratio_histogram"] == [0] * 6 + [300] + [0] * 6
    assert (unknown["age"], unknown["ess"], unknown["rho_histogram"]) == (None, None, None)
    assert numbers["module_training"][0]["grad_norm"] == 1.5


def test_likelihood_without_a_behaviour_policy_is_called_by_its_name(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    writer.add_rollout()
    writer.add_group()
    writer.add_train(objective="advantage-weighted likelihood", likelihood_members=20)
    report = collect(writer.write())
    assert report.iterations[0].objective == "advantage-weighted likelihood"
    said = [note.text for note in report.notes if note.level == "warning"]
    assert any("20 members without a known behaviour policy trained as advantage-weighted" in text for text in said)
