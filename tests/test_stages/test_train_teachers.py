"""What the trainer makes of teachers' members: rho of an adapter's, likelihood in the student's prompt of others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stages.contract import Inputs
from tests.oracle_loss import Example
from tests.test_stages.loss_kit import (
    FIXED,
    Setting,
    assert_step,
    call_zoo,
    exact,
    gradients,
    make_setting,
    oracle_rows,
)
from tests.test_stages.train_kit import Call, run, write_artifacts

TAUGHT = (0, 5, 9)
"""Calls of the zoo that a teacher made; each in another group."""
STEP = FIXED | {"beta": 0.0, "rho_max": 1.5, "teacher_share": 1.0}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Data of the base, and an adapter to continue from."""
    return make_setting(tmp_path_factory.mktemp("start"), call_zoo())


def taught(**fields: Any) -> list[Call]:
    """The zoo with good members of a teacher."""
    calls = call_zoo()
    for index in TAUGHT:
        calls[index].source, calls[index].policy, calls[index].advantage = "teacher:t", "f" * 64, 0.5 + index / 10
        calls[index].fields = {"student_prompt_ids": calls[index].prompt, "transfer": "ok", **fields}
    return calls


def of_teacher(data: Setting) -> list[bool]:
    """Per row of the oracle, whether a teacher made it."""
    return [call.source != "student" for call in data.calls for _ in range(call.copies)]


def without_ratio(data: Setting, rows: list[Example]) -> list[Example]:
    """The oracle's rows with the teacher's as likelihood: rho is 1."""
    for row, its in zip(rows, of_teacher(data), strict=True):
        if its:
            assert row.old is not None
            row.sampling = row.old.tolist()
    return rows


def setting(start: Setting, folder: Path, calls: list[Call]) -> Setting:
    """Other data in the place of the start's."""
    inputs, base = write_artifacts(folder, calls, start.cache)
    inputs = Inputs({**inputs.artifacts, "previous": start.inputs["previous"]}, {"iteration": 1}, folder)
    return Setting(inputs, base, start.cache, calls)


def assert_trained(data: Setting, folder: Path, rows: list[Example], **fields: Any) -> dict[str, Any]:
    """One step of the stage is the hand-written one over these rows; returns metrics and what was left out."""
    metrics, out = run(data.inputs, data.cache, folder, 45, **STEP | fields)
    loss = pl.read_parquet(out.committed()["steps.parquet"])["loss"][0]
    assert_step(loss, gradients(out), exact(data.base, data.previous), rows, {"beta": 0.0, "rho_max": 1.5})
    return metrics | {"excluded": out.excluded}


def test_an_adapter_that_was_sent_the_students_prompt_is_corrected_by_rho(start: Setting, tmp_path: Path) -> None:
    data = setting(start, tmp_path / "data", taught())
    metrics = assert_trained(data, tmp_path / "o", oracle_rows(data))
    assert metrics["objective"] == "mmGRPO"
    assert metrics["sources"].keys() == {"student", "teacher:t"}
    again = assert_trained(data, tmp_path / "again", oracle_rows(data), behaviour="logged", teacher_mu="any_prompt")
    assert again["loss"] == metrics["loss"]


def test_what_was_logged_under_another_prompt_is_no_mu_unless_the_recipe_says_so(
    start: Setting, tmp_path: Path
) -> None:
    calls = taught()
    for index in TAUGHT:
        calls[index].fields["prompt_ids"] = [*calls[index].prompt, 7, 8, 9]
    data = setting(start, tmp_path / "data", calls)
    metrics = assert_trained(data, tmp_path / "any", oracle_rows(data), teacher_mu="any_prompt")
    assert metrics["likelihood_members"] == 0
    metrics = assert_trained(data, tmp_path / "same", without_ratio(data, oracle_rows(data)))
    assert metrics["likelihood_sources"] == {"teacher:t": sum(of_teacher(data))}
    assert metrics["objective"] == "mmGRPO and advantage-weighted likelihood"


def test_a_completion_known_as_text_is_likelihood_of_good_samples_at_the_students_temperature(
    start: Setting, tmp_path: Path
) -> None:
    calls = taught(prompt_ids=None, sampling_logprobs=None, temperature=0.3, student_temperature=1.0)
    for index in TAUGHT:
        calls[index].policy, calls[index].temperature = None, 1.0
    bad = calls[TAUGHT[2]]
    bad.advantage = -1.0
    data = setting(start, tmp_path / "data", calls)
    rows = without_ratio(data, oracle_rows(data))
    kept = [row for row, its in zip(rows, of_teacher(data), strict=True) if not its or row.advantage > 0]
    assert assert_trained(data, tmp_path / "o", kept)["excluded"] == {"likelihood_not_positive": bad.copies}
