"""What the first screen says, and the sections behind it: decisions, slices, drift, costs, the size of it all."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.release import records
from pipeline.reporting.answers import cost, real
from pipeline.reporting.build import build_report
from pipeline.reporting.collect import collect
from pipeline.reporting.findings import verdict
from pipeline.reporting.text import ABSENT
from schemas.decisions import Evidence
from schemas.examples import EXAMPLES
from stages.statistics import Interval
from tests.test_pipeline.report_run import EVIL, RunWriter, whole_run, written

KEYS = ["better", "real", "cost", "data", "failures", "next"]


def reported(run: Path) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The page, the numbers, and the answers by key."""
    page = build_report(run).read_text()
    numbers = json.loads((run / "report.json").read_text())
    return page, numbers, {answer["key"]: answer for answer in numbers["answers"]}


def test_of_one_example_no_interval_is_told(tmp_path: Path):
    dev = collect(whole_run(tmp_path, iterations=2)).dev
    one = Interval(-0.6, None, None, 1)
    spoken = dataclasses.replace(dev, policies=tuple(dataclasses.replace(row, to_first=one) for row in dev.policies))
    assert verdict(spoken).text.endswith("on one example, which tells no spread.")
    told = real(spoken, None, 0, None).text
    assert told.startswith("One dev example tells no spread")
    assert "which includes 0" not in told


def test_page_and_numbers_give_the_same_six_answers_each_with_its_section(tmp_path: Path):
    page, numbers, answers = reported(whole_run(tmp_path, iterations=2))
    assert [answer["key"] for answer in numbers["answers"]] == KEYS
    for answer in answers.values():
        assert f'href="#{answer["section"]}"' in page
        assert f'id="{answer["section"]}"' in page
    assert answers["better"]["value"].startswith("+")
    assert "100 dev examples" in answers["real"]["text"] or "101 dev examples" in answers["real"]["text"]
    assert "On test, opened once: +0.500" in answers["real"]["text"]
    assert "p =" in answers["real"]["text"]
    assert "of the time went into rollout" in answers["cost"]["text"]
    assert answers["data"]["value"] == "48 rollouts"
    train = next(box for box in numbers["chain"]["boxes"] if box["name"] == "iterations/1/train")
    assert train["digest"][:12] in answers["data"]["text"]
    assert answers["failures"]["value"] == "4.2 %"
    assert "Most often: completion lacks answer (2 times)" in answers["failures"]["text"]


@pytest.mark.parametrize("stages", [0, 1, 2, 3])
def test_a_run_at_any_point_has_all_six_answers(tmp_path: Path, stages: int):
    writer = RunWriter(tmp_path, iterations=2)
    if stages:
        writer.add_setup()
    for add in (writer.add_rollout, writer.add_group)[: max(0, stages - 1)]:
        add()
    _, _, answers = reported(writer.write())
    assert list(answers) == KEYS
    assert answers["next"]["value"] == "Go on"
    assert answers["next"]["command"] == "mmgrpo run RECIPE"
    assert answers["real"]["text"] == "Two scores are needed to say."


def test_a_decision_of_the_gate_stands_on_the_first_screen_and_in_the_table(tmp_path: Path):
    run = whole_run(tmp_path, iterations=2)
    policies = json.loads((run / "run.json").read_text())["policies"]
    _decide(run, policies[1], 1, "kept", "the lower bound -0.02 is not above 0")
    _decide(run, policies[2], 2, "released", "the lower bound +0.12 is above 0")
    page, numbers, answers = reported(run)
    assert answers["real"]["value"] == "released"
    assert "Gate: the lower bound +0.12 is above 0. Spent so far: 0.0608 of alpha = 0.05." in answers["real"]["text"]
    assert [row["gate"] for row in numbers["compared"]] == [ABSENT, "kept", "released"]
    assert numbers["gate"]["released"] == policies[2]
    assert 'aria-label="Decisions"' in page
    assert numbers["advice"][0]["title"] == "Export the adapter"


@pytest.mark.parametrize(
    ("facts", "value", "level"),
    [
        ({"kind": "rollback"}, "rolled back", "warning"),
        ({"kind": "release", "forced": True, "lower": -0.1}, "released by force", "warning"),
        ({"kind": "gate", "lower": 0.1}, "released", "good"),
        ({"kind": "gate", "lower": -0.1}, "released", "good"),  # by the rule `always`: the interval alone is good
    ],
)
def test_only_what_evidence_released_is_called_so_without_a_warning(
    tmp_path: Path, facts: dict[str, Any], value: str, level: str
):
    run = whole_run(tmp_path, iterations=2)
    _decide(run, json.loads((run / "run.json").read_text())["policies"][2], 2, "released", "so it was")
    found = collect(run)
    assert found.gate is not None
    last = dataclasses.replace(found.gate.decisions[-1], **facts)
    gate = dataclasses.replace(found.gate, decisions=(last,))
    told = real(found.dev, None, 0, gate)
    assert (told.value, told.level) == (value, level)


def test_a_decision_on_an_earlier_policy_names_it_and_a_ledger_of_several_runs_is_told(tmp_path: Path):
    run = whole_run(tmp_path, iterations=2)
    policy = json.loads((run / "run.json").read_text())["policies"][1]
    _decide(run, policy, 2, "kept", "not above 0")
    told = real(collect(run).dev, None, 0, collect(run).gate).text
    assert (
        f"Gate, on policy {policy[:12]}: not above 0. Spent so far: 0.0304 of alpha = 0.05, by this run alone" in told
    )


def _decide(run: Path, policy: str, position: int, verdict: Any, reason: str) -> None:
    made = records.decisions(run)
    evidence = Evidence(
        ledger="looks.jsonl",
        look="a",
        k=position,
        alpha=0.05,
        alpha_k=0.0304,
        split="dev",
        against="base",
        scores="k",
        against_scores="k0",
        n=101,
        score=0.8,
        against_score=0.4,
        estimate=0.4,
        lower=0.12,
        p=0.001,
        low=0.3,
        high=0.5,
        sign_flip_p=0.001,
        mcnemar_p=None,
        improved=True,
    )
    place = {"policy": policy, "position": position, "adapter": "key", "prompts": None, "scores": "digest"}
    before = {"previous": "base", "previous_adapter": None, "reason": reason, "evidence": evidence}
    records.write(run, made, kind="gate", verdict=verdict, **place, **before)


def test_damaged_decisions_are_named_and_the_old_report_stays(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    _decide(run, "p", 1, "kept", "no")
    before = build_report(run).read_bytes()
    path = run / "decisions" / "0001.json"
    path.write_text(path.read_text().replace("0.0304", "0.0404"))
    with pytest.raises(Exception, match=r"0001\.json"):
        build_report(run)
    assert (run / "report.html").read_bytes() == before


def test_slices_of_the_newest_policy_stand_worst_first(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    rows = [
        {
            "example_id": f"{index:016x}",
            "split": "dev",
            "inputs": json.dumps({"question": EVIL}),
            "labels": "{}",
            "metadata": json.dumps({"topic": EVIL if index % 2 else "easy"}),
        }
        for index in range(80)
    ]
    writer.setup["examples"] = writer.artifact("examples", "dev", {"examples.parquet": (EXAMPLES, rows)})
    writer.add_scores(0, [0.5] * 80)
    writer.add_rollout()
    writer.add_group()
    writer.add_train()
    writer.add_scores(1, [1.0 if index % 2 == 0 else 0.0 for index in range(80)])
    page, numbers, _ = reported(writer.write())
    found = [(row["value"], row["score"]["estimate"], row["score"]["n"]) for row in numbers["gate"]["slices"]]
    assert found == [(EVIL, 0.0, 40), ("easy", 1.0, 40)]
    assert 'aria-label="Slices"' in page
    assert all(row["inputs"].startswith("<script>") for row in numbers["flips"]["shown"])
    assert "<script" not in written(page)


def _drift(kl: float, alarms: list[str]) -> dict[str, Any]:
    own = {"calls": 10, "kl_to_base": kl, "entropy": 1.5, "completion_tokens": 12.5, "length_cut_share": 0.1}
    own |= {"parse_failure_share": 0.2, "top_completion_share": 0.5, "top_completion_share_gain": 0.25}
    canaries = {"n": 16, "same_share": 0.75, "mean_kl": 0.02, "changed": ["capital", EVIL]}
    return own | {"by_module": {"plan": own, EVIL: own}, "canaries": canaries, "alarms": alarms}


def test_drift_is_drawn_and_its_alarms_come_before_everything_that_went_well(tmp_path: Path):
    run = whole_run(tmp_path, iterations=1)
    writer = RunWriter(run, iterations=1)
    state = json.loads((run / "run.json").read_text())
    told = "KL to the base is 3 nats per token, the limit 1"
    keys = {
        policy: writer.artifact("drift", policy, {}, metrics=_drift(kl, alarms), params={"policy": policy})
        for policy, kl, alarms in zip(state["policies"], (0.0, 3.0), ([], [told]), strict=True)
    }
    writer.setup, writer.iterations, writer.evaluations = state["setup"], state["iterations"], state["evaluations"]
    writer.state = {"drifts": {"dev": keys}}
    page, numbers, answers = reported(writer.write())
    assert answers["next"]["value"] == "Look at the drift"
    assert [row["kl_to_base"] for row in numbers["drift"]["rows"] if row["module"] is None] == [0.0, 3.0]
    assert len(numbers["drift"]["rows"]) == 6
    assert told in page
    assert "KL to the base, nats per token" in page
    assert 'aria-label="Canaries by policy"' in page
    assert "<script" not in written(page)


def test_a_run_without_drift_or_decisions_shows_neither_section(tmp_path: Path):
    page, numbers, _ = reported(whole_run(tmp_path, iterations=1))
    assert numbers["drift"] is None
    assert 'id="drift"' not in page
    assert 'id="gate"' not in page


def test_money_stands_beside_the_time_where_it_is_known_and_is_never_made_up(tmp_path: Path):
    found = collect(whole_run(tmp_path, iterations=1)).ledger
    assert found.total.spent.money is None
    assert cost(found).value == "1 min 5 s"
    spent = dataclasses.replace(found.total.spent, money=12.5)
    priced = dataclasses.replace(found, currency="EUR", total=dataclasses.replace(found.total, spent=spent))
    assert cost(priced).value == "1 min 5 s · 12.50 EUR"


def test_fifty_iterations_of_many_rollouts_stay_below_two_megabytes(tmp_path: Path):
    writer = RunWriter(tmp_path, iterations=50, examples=10, rollouts=8)
    writer.add_setup()
    draw = random.Random(5)
    for position in range(51):
        if position:
            writer.add_rollout()
            writer.add_group()
            writer.add_train(steps=4)
        writer.add_scores(position, [float(draw.random() < 0.5) for _ in range(300)])
    writer.recipe = writer.recipe.model_copy(
        update={"evaluate": writer.recipe.evaluate.model_copy(update={"bootstrap": 50})}
    )
    page, numbers, _ = reported(writer.write())
    assert len(numbers["compared"]) == 51
    assert len(page.encode()) < 2_000_000
    assert (tmp_path / "report.json").stat().st_size < 2_000_000
