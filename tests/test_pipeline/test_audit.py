"""verify --deep: forgeries whose digests all fit are found by what they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.audit.check import Check, Run
from pipeline.audit.deep import CHECKS
from pipeline.audit.tables import rows_differ
from pipeline.graph import open_graph
from pipeline.jobs import stage_of
from pipeline.store import Store
from pipeline.verify import Verification, verify
from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.policies import POLICIES
from schemas.rollouts import ROLLOUTS
from schemas.scores import SCORES
from schemas.table import TableSpec
from schemas.training import BATCH_PLAN, LOGPROBS, STEPS, TRAINED
from stages import group
from stages.contract import Artifact
from tests.test_e2e.kit import TINY, artifact, mmgrpo, run, state
from tests.test_pipeline.audit_kit import copied, forge

SMALL = ("--set", "rollout.examples=4", "--set", "evaluate.samples=1", "--set", "group.k=4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run of two iterations. Tests copy it before they change anything."""
    folder = tmp_path_factory.mktemp("audit") / "run"
    assert run(TINY, folder, *SMALL) == 0
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return copied(finished, tmp_path / "run")


def test_a_run_as_it_came_out_is_computed_anew_without_a_difference(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("verify", finished, "--deep") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "groups made again from their rollouts are the same: 2 of 2" in lines
    assert "batch plans made again from the groups are the same: 2 of 2" in lines
    assert "scores are the means of their rows: 3 of 3" in lines
    assert not any("not looked at" in line for line in lines)


def _scores(folder: Path) -> Artifact:
    run_file = state(folder)
    key = run_file.evaluations["dev"][run_file.policies[-1]]
    return Store(folder / "artifacts").open("evaluate", key)


def _of(name: str) -> Callable[[Path], Artifact]:
    return lambda folder: Store(folder / "artifacts").open(stage_of(name), state(folder).iterations[1][name])


def _first(name: str, value: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """The first row's value changed."""
    first = pl.int_range(pl.len()) == 0
    return lambda rows: rows.with_columns(pl.when(first).then(value).otherwise(pl.col(name)).alias(name))


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda metrics: metrics.__setitem__(name, value)


def _nothing(metrics: dict[str, Any]) -> None:
    """Figures stay."""


def _order(rows: pl.DataFrame) -> pl.DataFrame:
    """The steps of two groups exchanged."""
    names = rows["group_id"].to_list()
    names[0], names[-1] = names[-1], names[0]
    examples = rows["example_id"].to_list()
    examples[0], examples[-1] = examples[-1], examples[0]
    return rows.with_columns(pl.Series("group_id", names), pl.Series("example_id", examples))


FORGERIES: dict[str, tuple[Callable[[Path], Artifact], TableSpec | None, Any, Any, str]] = {
    "an advantage with its sign turned": (
        _of("group"), GROUPS, _first("advantage", -pl.col("advantage")), _nothing, "advantage differs in 1 row",
    ),
    "a reward": (_of("group"), GROUPS, _first("reward", pl.col("reward") + 0.25), _nothing, "reward differs"),
    "a member dropped": (
        _of("group"), GROUPS, lambda rows: rows[1:], lambda m: m.update(members=m["members"] - 1), "1 row missing",
    ),
    "another reason for leaving a call out": (
        _of("group"), EXCLUDED, _first("reason", pl.lit("stale")), _nothing, "reason differs",
    ),
    "a summary": (_of("group"), SUMMARY, _first("members", pl.col("members") + 1), _nothing, "members differs"),
    "how many groups there are": (_of("group"), None, None, _set("groups", 1), "groups is 1, made again"),
    "the order of the steps": (_of("train"), BATCH_PLAN, _order, _nothing, "differs in"),
    "a member that was not trained on": (_of("train"), TRAINED, lambda rows: rows[1:], _nothing, "1 row missing"),
    "the loss of a step": (_of("train"), STEPS, _first("loss", pl.col("loss") - 1), _nothing, "loss is"),
    "the mean loss": (_of("train"), None, None, _set("loss", -3.0), "loss is -3.0, made again"),
    "where a policy came from": (
        _of("train"), POLICIES,
        lambda rows: rows.with_columns(parent=pl.when(pl.col("iteration") == 2).then(pl.lit(rows["policy"][0]))
                                       .otherwise(pl.col("parent"))),
        _nothing, "parent of policy",
    ),
    "log-probabilities of another policy": (
        _of("logprobs.old"), LOGPROBS, _first("policy", pl.lit("e" * 64)), _nothing, "of another policy",
    ),
    "log-probabilities left out": (_of("logprobs.old"), LOGPROBS, lambda rows: rows[1:], _nothing, "rows is"),
    "the mean reward": (_of("rollout"), None, None, _set("mean_reward", 0.99), "mean_reward is 0.99"),
    "the policy that a rollout says sampled it": (
        _of("rollout"), ROLLOUTS, _first("policy", pl.lit("e" * 64)), _nothing, "another policy",
    ),
    "the mean score": (_scores, None, None, _set("mean", 0.99), "mean is 0.99, made again"),
    "a score": (_scores, SCORES, _first("score", pl.lit(1.0)), _nothing, "mean is"),
    "an example that was not scored": (
        _scores, SCORES, lambda rows: rows.filter(pl.col("example_id") != rows["example_id"][0]),
        lambda metrics: metrics.update(n=metrics["n"] - 1), "another number of rows",
    ),
}  # fmt: skip


WHERE = {"group": "groups", "train": ("plans", "figures", "policies"), "logprobs": "figures"}
WHERE |= {"rollout": "figures", "evaluate": "figures"}
"""The modules that check what a stage makes."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_that_no_digest_gives_away_is_found_and_its_file_named(copy: Path, name: str) -> None:
    find, spec, rows, metrics, says = FORGERIES[name]
    stage = find(copy).manifest.stage
    forge(copy, find(copy), spec, rows, metrics)
    assert verify(copy).problems == (), "every digest fits"
    audited = Run(open_graph(copy), state(copy).recipe)
    checks = [check(audited) for check in CHECKS if check.__module__.endswith(WHERE[stage])]
    problems = [problem for check in checks for problem in check.problems]
    lines = [problem for problem in problems if says in problem]
    assert lines, problems
    assert all(f"{stage}/" in line for line in lines)


def test_all_that_is_wrong_is_named_not_the_first_alone_and_the_exit_code_is_3(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge(copy, artifact(copy, "group", 1), GROUPS, _first("advantage", -pl.col("advantage")), _nothing)
    forge(copy, _scores(copy), None, None, _set("mean", 0.99))
    assert mmgrpo("verify", copy, "--deep") == 3
    said = capsys.readouterr()
    assert "advantage differs in 1 row" in said.err
    assert "mean is 0.99, made again" in said.err
    assert "groups made again from their rollouts are the same: 1 of 2" in said.out


def test_groups_of_another_version_of_the_stage_are_said_to_be_not_comparable(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group, "VERSION", group.VERSION + 1)
    assert mmgrpo("verify", finished, "--deep") == 0
    told = capsys.readouterr().out
    assert "groups made again from their rollouts are the same: 0 of 0, 2 not looked at" in told
    assert f"made by version {group.VERSION - 1} of the stage group, and this release has version" in told


def test_what_came_of_a_damaged_artifact_is_not_judged_and_the_damage_is_named(copy: Path) -> None:
    path = artifact(copy, "rollout", 1).file("rollouts.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = verify(copy, deep=True)
    assert [problem for problem in found.problems if str(path) in problem]
    assert all("rollout/" in problem for problem in found.problems)
    assert _check(found, "groups made again").looked == 1


def _check(found: Verification, beginning: str) -> Check:
    return next(check for check in found.checks if check.what.startswith(beginning))


def test_artifacts_of_an_earlier_recipe_are_computed_anew_too(copy: Path) -> None:
    assert run(TINY, copy, *SMALL, "--set", "group.eps=0.5", "--set", "run.iterations=1") == 0
    found = verify(copy, deep=True)
    assert found.problems == ()
    assert _check(found, "groups made again").looked == 3
    assert not any(check.skipped for check in found.checks)


def test_a_base_that_is_not_here_leaves_the_plans_unjudged_and_says_so(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from schemas.errors import RecipeError

    def gone(*_: object) -> None:
        raise RecipeError("model.base 'tiny-random': no such folder")

    monkeypatch.setattr("stages.training.build.checked_base", gone)
    found = _check(verify(copy, deep=True), "batch plans")
    assert (found.looked, len(found.skipped)) == (0, 2)
    assert "no such folder" in found.skipped[0]


def test_deep_on_one_artifact_says_to_name_the_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mmgrpo("verify", artifact(finished, "group").path, "--deep") == 2
    assert "name the run's folder" in capsys.readouterr().err


ROW = st.tuples(st.integers(0, 3), st.sampled_from([None, 0.0, 1.0]))
ROWS = st.lists(ROW, max_size=5, unique_by=lambda row: row[0])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, ROWS)
def test_two_tables_differ_in_words_if_and_only_if_they_differ(
    left: list[tuple[int, float | None]], right: list[tuple[int, float | None]]
) -> None:
    schema = {"key": pl.Int64, "value": pl.Float64}
    frames = [pl.DataFrame(rows, schema=schema, orient="row") for rows in (left, right)]
    assert bool(rows_differ(frames[0], frames[1], ["key"])) == (left != right)
