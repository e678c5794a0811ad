"""All rollouts, filtered and paged: the answers are those of a loop over the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.browsing.filters import Filters
from pipeline.browsing.query import PAGE, facets, page_of
from pipeline.reporting.opened import OpenRun
from schemas.errors import RecipeError
from tests.test_pipeline.browsing_kit import HARM, opened
from tests.test_pipeline.report_run import Rows, RunWriter

Made = tuple[OpenRun, list[tuple[int, dict[str, Any], Rows]]]
ODD = ["a.*b", "100 %", "(", "Ärger", "\\d", "tab\there", HARM]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    writer = RunWriter(tmp_path_factory.mktemp("run"), iterations=2, examples=10, rollouts=8)
    writer.add_setup()
    rows: list[tuple[int, dict[str, Any], Rows]] = []

    def odd(rollouts: Rows, calls: Rows) -> None:
        for place, call in enumerate(calls[::5]):
            call["completion"] = ODD[place % len(ODD)]
            call["module"] = "odd.module" if place % 2 else call["module"]

    for iteration in range(2):
        writer.add_rollout(odd)
        rollouts, calls = writer.made
        rows += [
            (iteration, row, [call for call in calls if call["rollout_id"] == row["rollout_id"]]) for row in rollouts
        ]
    return opened(writer.write()), rows


def by_hand(rows: list[tuple[int, dict[str, Any], Rows]], inputs: dict[str, str], filters: Filters) -> set[str]:
    def fits(iteration: int, row: dict[str, Any], calls: Rows) -> bool:
        reward, text = row["reward"], (filters.q or "").lower()
        texts = [row["rollout_id"], row["example_id"], row["output"], row["error"], inputs[row["example_id"]]]
        texts += [call["completion"] for call in calls]
        return (
            filters.iteration in {None, str(iteration)}
            and filters.status in {None, row["status"]}
            and (filters.module is None or any(call["module"] == filters.module for call in calls))
            and (filters.reward_min is None or (reward is not None and reward >= filters.reward_min))
            and (filters.reward_max is None or (reward is not None and reward <= filters.reward_max))
            and any(text in found.lower() for found in texts if found is not None)
        )

    return {row["rollout_id"] for iteration, row, calls in rows if fits(iteration, row, calls)}


FILTERS = st.builds(
    Filters,
    iteration=st.sampled_from([None, None, "0", "1", "7", "logged"]),
    module=st.sampled_from([None, None, "act", "odd.module", "never"]),
    status=st.sampled_from([None, None, "ok", "parse_failed"]),
    reward_min=st.sampled_from([None, None, 0.0, 0.4]),
    reward_max=st.sampled_from([None, None, 0.0, 0.5]),
    q=st.sampled_from([None, None, *ODD, "QUESTION 3", "plan 1", "nowhere"]),
    sort=st.sampled_from(["order", "best", "worst"]),
)


@settings(max_examples=40, deadline=None)
@given(filters=FILTERS)
def test_filters_give_what_a_loop_over_all_rows_gives(made: Any, filters: Filters):
    run, rows = made
    examples = {row["example_id"] for _, row, _ in rows}
    inputs = {name: json.dumps({"question": f"question {place}"}) for place, name in enumerate(_example_order(run))}
    assert examples <= set(inputs)
    found: list[dict[str, Any]] = []
    page = 1
    while True:
        told = page_of(run, filters, page)
        found += told["rows"]
        if page >= told["pages"]:
            break
        page += 1
    names = [row["rollout_id"] for row in found]
    assert len(names) == len(set(names)) == told["total"]
    assert set(names) == by_hand(rows, inputs, filters)
    rewards = [row["reward"] for row in found]
    known = [reward for reward in rewards if reward is not None]
    if filters.sort != "order":
        assert known == sorted(known, reverse=filters.sort == "best")
        assert rewards[len(known) :] == [None] * (len(rewards) - len(known))


def _example_order(run: OpenRun) -> list[str]:
    from pipeline.browsing.sources import scan
    from schemas.examples import EXAMPLES

    artifact = run.store.open("examples", run.state.setup["examples"])
    names: list[str] = scan(artifact, EXAMPLES).collect()["example_id"].to_list()
    return names


def test_a_page_beyond_the_last_is_the_last_and_rows_say_what_the_list_shows(made: Any):
    run, rows = made
    last = page_of(run, Filters(), 10**8)
    assert (last["page"], last["pages"], last["total"]) == (-(-len(rows) // PAGE), -(-len(rows) // PAGE), len(rows))
    first = page_of(run, Filters(), 1)["rows"][0]
    calls = next(calls for _, row, calls in rows if row["rollout_id"] == first["rollout_id"])
    assert first["calls_made"] == len(calls)
    assert "question" in first["about"]
    assert first["iteration"] == 0


def test_facets_are_what_the_rows_hold(made: Any):
    run, rows = made
    told = facets(run)
    assert told["iterations"] == [0, 1]
    assert told["modules"] == sorted({call["module"] for _, _, calls in rows for call in calls})
    assert told["statuses"] == sorted({row["status"] for _, row, _ in rows})
    rewards = [row["reward"] for _, row, _ in rows if row["reward"] is not None]
    assert (told["low"], told["high"], told["total"]) == (min(rewards), max(rewards), len(rows))


def test_a_run_without_rollouts_has_an_empty_page(tmp_path: Path):
    writer = RunWriter(tmp_path)
    writer.add_setup()
    run = opened(writer.write())
    assert page_of(run, Filters(), 1) == {"rows": [], "total": 0, "page": 1, "pages": 1}
    assert facets(run)["total"] == 0


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"iteration": "-1"}, "iteration '-1': expected a number or 'logged'"),
        ({"iteration": "../0"}, "iteration"),
        ({"status": "great"}, "expected one of ok, parse_failed"),
        ({"sort": "random"}, "expected one of order, best, worst"),
        ({"reward_min": "much"}, "reward_min 'much': expected a number"),
        ({"reward_max": "nan"}, "reward_max"),
        ({"q": "x" * 201}, "expected at most 200"),
    ],
)
def test_filters_that_cannot_be_meant_are_refused_by_name(given_: dict[str, str], said: str):
    with pytest.raises(RecipeError, match=said):
        Filters.read(given_)
