"""diff and reproduce of tiny runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.comparing.diff import diff
from pipeline.reproducing.compare import _square
from pipeline.runfile import write_run
from schemas.groups import GROUPS
from tests.test_e2e.kit import TINY, artifact, mmgrpo, own_recipe, run, state
from tests.test_pipeline.audit_kit import copied, forge

SMALL = ("--set", "rollout.examples=4", "--set", "evaluate.samples=1", "--set", "run.iterations=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of one iteration."""
    folder = tmp_path_factory.mktemp("diff") / "run"
    assert run(TINY, folder, *SMALL) == 0
    return folder


@pytest.fixture(scope="module")
def other_seed(finished: Path) -> Path:
    """The same with another seed."""
    folder = finished.parent / "other"
    assert run(TINY, folder, *SMALL, "--set", "seed=1") == 0
    return folder


def test_a_run_does_not_differ_from_itself_nor_from_its_copy(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(finished, tmp_path / "copy")
    assert diff(finished, finished) == diff(finished, copy) == {}
    assert mmgrpo("diff", finished, copy) == 0
    told = "are the same: recipe, data, code, base, environment, artifacts, scores"
    assert capsys.readouterr().out.strip() == f"{finished} and {copy} {told}"
    assert mmgrpo("diff", finished, copy, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_two_seeds_differ_in_the_seed_and_part_where_it_is_first_used(
    finished: Path, other_seed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diff(finished, other_seed)
    assert found["recipe"] == {"seed": [0, 1]}
    assert "data" not in found
    assert "code" not in found
    parted = found["artifacts"]
    assert (parted["part_at"], parted["same_before"]) == ("scores on dev before training", 3)
    assert parted["why"] == ["seed 0 -> 1"]
    assert "iteration 0 · train" in parted["differ"]
    assert mmgrpo("diff", finished, other_seed) == 0
    told = capsys.readouterr().out
    assert "seed: 0 -> 1" in told
    assert "3 are the same, then they part at scores on dev before training: seed 0 -> 1" in told


def test_a_difference_turned_round_is_the_same_difference(finished: Path, other_seed: Path) -> None:
    there, back = diff(finished, other_seed), diff(other_seed, finished)
    assert there.keys() == back.keys()
    assert {name: pair[::-1] for name, pair in there["artifacts"]["differ"].items()} == back["artifacts"]["differ"]
    for name, about in there["scores"].items():
        assert about["difference"]["estimate"] == pytest.approx(-back["scores"][name]["difference"]["estimate"])


def test_changed_data_and_code_are_named_row_by_row_and_file_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "own")
    assert run(recipe, tmp_path / "a", "--iterations", "0") == 0
    examples = (recipe.parent / "examples.csv").read_text()
    (recipe.parent / "examples.csv").write_text(
        examples.replace("w0,train\n", "").replace("w1,train", "w1,dev") + "w20,dev\n"
    )
    program = next(recipe.parent.glob("*.py"))
    program.write_text(program.read_text() + "\n# changed\n")
    assert run(recipe, tmp_path / "b", "--iterations", "0") == 0
    found = diff(tmp_path / "a", tmp_path / "b")
    counts = {name: found["data"]["rows"][name] for name in ("added", "removed", "changed")}
    assert counts == {"added": 1, "removed": 1, "changed": 1}
    assert list(found["code"]) == [f"code {program.stem}"]
    assert "recipe" not in found
    assert mmgrpo("diff", tmp_path / "a", tmp_path / "b") == 0
    assert "examples: 1 added, 1 removed, 1 changed" in capsys.readouterr().out


def test_scores_that_only_one_run_has_are_no_scores_that_are_the_same(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(finished, tmp_path / "copy")
    write_run(copy, state(copy).model_copy(update={"evaluations": {}}))
    assert mmgrpo("diff", copy, finished) == 0
    told = capsys.readouterr().out
    assert "scores on dev before training: (none) -> 0." in told
    assert "scores" not in told.splitlines()[-1]


def test_what_is_no_run_is_said_so(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mmgrpo("diff", finished, tmp_path) == 3
    assert f"Is {tmp_path} a run folder?" in capsys.readouterr().err


def _told(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "reproduction.json").read_text())
    return document


def test_a_run_comes_out_again_bit_for_bit_and_is_left_as_it_was(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    folder = tmp_path / "again"
    assert mmgrpo("reproduce", finished, folder, "--exec", "progress=off") == 0
    out = capsys.readouterr().out
    assert f"{finished} comes out again, bit-identical: 5 jobs" in out
    jobs = {job["what"]: job["state"] for job in _told(folder)["jobs"]}
    assert {state for job, state in jobs.items() if "evaluate" not in job} == {"bit-identical"}
    assert {"iteration 0 · group", "iteration 0 · logprobs.old", "iteration 0 · train"} < jobs.keys()
    assert set(jobs.values()) <= {"bit-identical", "the same scores"}
    assert {path: path.read_bytes() for path in before} == before
    made, was = (
        next(place.glob("artifacts/train/*/adapter/adapter_model.safetensors")) for place in (folder, finished)
    )
    assert not made.samefile(was), "made again, not taken over"

    assert mmgrpo("reproduce", finished, folder, "--exec", "progress=off") == 0, "goes on where it was"
    assert mmgrpo("reproduce", finished, finished, "--exec", "progress=off") == 2
    assert "is there already" in capsys.readouterr().err


def test_the_recipe_is_that_of_the_run_not_the_file_of_now(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "own")
    assert run(recipe, tmp_path / "run", "--iterations", "1") == 0
    recipe.write_text("this is no recipe any more")
    assert mmgrpo("reproduce", tmp_path / "run", tmp_path / "again", "--exec", "progress=off") == 0
    assert _told(tmp_path / "again")["state"] == "bit-identical"


def test_a_program_whose_code_changed_is_refused_and_its_file_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "own")
    assert run(recipe, tmp_path / "run", "--iterations", "1") == 0
    program = next(recipe.parent.glob("*.py"))
    code = program.read_text()
    program.write_text(code + "\n# changed\n")
    command = ("reproduce", tmp_path / "run", tmp_path / "again", "--exec", "progress=off")
    assert mmgrpo(*command) == 2
    assert f"{program.stem} (changed)" in capsys.readouterr().err
    assert not (tmp_path / "again").exists(), "nothing half-written"
    assert mmgrpo(*command, "--no-evaluate") == 0, "groups and training need no program"
    recipe.parent.rename(tmp_path / "elsewhere")
    assert mmgrpo(*command[:2], tmp_path / "third", *command[3:]) == 2
    assert "--root names where it is now" in capsys.readouterr().err


def test_groups_that_were_changed_do_not_come_out_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(finished, tmp_path / "run")
    turned = pl.when(pl.int_range(pl.len()) == 0).then(-pl.col("advantage")).otherwise(pl.col("advantage"))
    forge(copy, artifact(copy, "group"), GROUPS, lambda rows: rows.with_columns(advantage=turned), lambda _: None)
    assert mmgrpo("verify", copy) == 0
    command = ("reproduce", copy, tmp_path / "again", "--no-evaluate", "--exec", "progress=off")
    assert mmgrpo(*command) == 3
    said = capsys.readouterr()
    assert "does not come out again: iteration 0 · group" in said.err
    assert "advantage differs in 1 row" in said.err
    assert "bit-identical     iteration 0 · logprobs.old" in said.out, "a difference stays with its stage"
    assert _told(tmp_path / "again")["state"] == "differs"


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None, max_examples=25)
def test_the_length_of_an_update_is_that_of_its_matrix(seed: int, rank: int, wide: int, high: int) -> None:
    import torch

    torch.manual_seed(seed)
    a, b = torch.randn(2, rank, wide, dtype=torch.float64), torch.randn(2, high, rank, dtype=torch.float64)
    dense = b[0] @ a[0] - b[1] @ a[1]
    found = _square([(a[0], b[0], 1.0), (a[1], b[1], -1.0)])
    assert found == pytest.approx(float((dense**2).sum()), rel=1e-9, abs=1e-9)


def test_a_damaged_run_is_not_reproduced_and_the_file_named(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(finished, tmp_path / "run")
    key = state(copy).iterations[0]["rollout"]
    path = copy / "artifacts" / "rollout" / key[:16] / "invocations.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert mmgrpo("reproduce", copy, tmp_path / "again", "--exec", "progress=off") == 3
    assert "invocations.parquet: its bytes changed" in capsys.readouterr().err
    assert mmgrpo("reproduce", finished, tmp_path / "other", "--iteration", "7", "--exec", "progress=off") == 2
    assert "no iteration 7" in capsys.readouterr().err
