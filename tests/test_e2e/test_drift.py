"""Drift through the command line: behind every evaluation, alone, with limits, and switched off again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.drifting import alarms
from pipeline.partial import TELEMETRY_FILE, PartialArtifact
from pipeline.store import Store
from schemas.drift import CANARIES
from schemas.parquet import read_rows
from stages.contract import Artifact
from tests.test_e2e.kit import keys, mmgrpo, own_recipe, run, state

SECTIONS = '\n[canaries]\npath = "prompts.jsonl"\nmax_new_tokens = 6\n'
LINE = '{"id": "%s", "messages": [{"role": "user", "content": "say %s"}]}\n'


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with canaries."""
    recipe = own_recipe(tmp_path_factory.mktemp("drift") / "own")
    (recipe.parent / "prompts.jsonl").write_text("".join(LINE % (name, name) for name in "abc"))
    recipe.write_text(recipe.read_text() + SECTIONS)
    return recipe


@pytest.fixture(scope="module")
def finished(own: Path) -> Path:
    assert run(own, own.parent / "run") == 0
    return own.parent / "run"


def drifts(folder: Path) -> list[Artifact]:
    """Of the run's policies, in order."""
    made = state(folder)
    store = Store(folder / "artifacts")
    return [store.open("drift", made.drifts["dev"][policy]) for policy in made.policies]


def test_every_scored_policy_is_looked_at_and_compared_with_the_base(finished: Path) -> None:
    base, *others = drifts(finished)
    assert len(others) == 1
    assert sorted(base.manifest.payload["inputs"]) == ["base", "evaluate"]
    assert base.manifest.metrics["kl_to_base"] == 0.0
    for one in others:
        assert sorted(one.manifest.payload["inputs"]) == ["adapter", "base", "base.drift", "base.evaluate", "evaluate"]
        assert one.manifest.metrics["kl_to_base"] > 0
        assert one.manifest.metrics["base"] == {
            name: value for name, value in base.manifest.metrics["base"].items() if name in one.manifest.metrics["base"]
        }
        assert len(read_rows(one.file("canaries.parquet"), CANARIES)) == 3
        assert json.loads(one.file(TELEMETRY_FILE).read_bytes())["completion_tokens"] >= 3  # the canaries are paid for
    assert mmgrpo("verify", finished) == 0
    assert [alarms(finished, policy) for policy in state(finished).policies] == [[], []]


def test_a_limit_makes_the_drift_anew_and_nothing_else_and_is_told(
    own: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, limit = tmp_path / "run", ("--set", "drift.max_kl=1e-9")
    shutil.copytree(finished, folder)
    before = keys(folder)
    capsys.readouterr()
    assert mmgrpo("plan", own, "--run-dir", folder, *limit) == 0
    plan = capsys.readouterr().out
    assert "drift.max_kl None -> 1e-09" in plan
    assert "2 of " in plan.splitlines()[-1]
    assert alarms(folder, state(folder).policies[1]) == []

    assert mmgrpo("run", own, "--run-dir", folder, *limit, "--exec", "progress=plain") == 0
    assert "ALARM: KL to the base is" in capsys.readouterr().err
    after = keys(folder)
    assert after["iterations"] == before["iterations"]
    assert state(folder).evaluations == state(finished).evaluations
    assert state(folder).drifts != state(finished).drifts
    base, trained = state(folder).policies
    assert alarms(folder, base) == []
    assert any("above drift.max_kl (1e-09)" in alarm for alarm in alarms(folder, trained))
    assert mmgrpo("verify", folder) == 0


def test_a_limit_that_was_not_looked_at_is_an_alarm(finished: Path, tmp_path: Path) -> None:
    from pipeline import runfile

    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    made = state(folder)
    recipe = made.recipe | {"drift": made.recipe["drift"] | {"max_kl": 1.0}}
    runfile.write_run(folder, made.model_copy(update={"drifts": {}, "recipe": recipe}))
    assert len(alarms(folder, made.policies[1])) == 1
    assert "was not measured" in alarms(folder, made.policies[1])[0]
    runfile.write_run(folder, made.model_copy(update={"recipe": recipe}))  # measured, with no limit or another
    assert "drift.max_kl is another than this policy was looked at with" in alarms(folder, made.policies[1])[0]


def test_switched_off_it_leaves_the_run_and_the_scores_stay(own: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    off = ("--set", "evaluate.drift=false", "--exec", "progress=off")
    assert mmgrpo("run", own, "--run-dir", folder, *off) == 0
    assert state(folder).drifts == {}
    assert state(folder).evaluations == state(finished).evaluations
    assert mmgrpo("verify", folder) == 0
    assert run(own, folder) == 0
    assert state(folder).drifts == state(finished).drifts


def test_alone_it_needs_the_scores_and_says_how_to_get_them(
    own: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, quiet = tmp_path / "run", ("--exec", "progress=off")
    for stage in ("rollout", "group", "logprobs", "train"):
        assert mmgrpo("stage", stage, own, "--run-dir", folder, *quiet) == 0
    capsys.readouterr()
    assert mmgrpo("stage", "drift", own, "--run-dir", folder, *quiet) == 3
    assert "mmgrpo stage evaluate RECIPE --iteration 0" in capsys.readouterr().err
    assert mmgrpo("stage", "evaluate", own, "--run-dir", folder, *quiet) == 0
    assert mmgrpo("stage", "drift", own, "--run-dir", folder, *quiet, "--set", "evaluate.drift=false") == 0
    assert "the recipe needs none" in capsys.readouterr().out
    assert mmgrpo("stage", "drift", own, "--run-dir", folder, *quiet) == 0
    assert len(state(folder).drifts["dev"]) == 2
    assert mmgrpo("stage", "drift", own, "--run-dir", folder, *quiet) == 0
    assert "is up to date" in capsys.readouterr().out
    assert mmgrpo("verify", folder) == 0


@pytest.mark.parametrize("harm", ["gone", "no canary"])
def test_canaries_are_looked_at_before_anything_is_made(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    shutil.copytree(own.parent, tmp_path / "own", ignore=shutil.ignore_patterns("run*"))
    file = tmp_path / "own" / "prompts.jsonl"
    file.unlink() if harm == "gone" else file.write_text("hello\n")
    code = mmgrpo("run", tmp_path / "own" / own.name, "--run-dir", tmp_path / "run", "--exec", "progress=off")
    assert code == (2 if harm == "gone" else 3)
    assert str(file) in capsys.readouterr().err
    assert not (tmp_path / "run" / "artifacts").exists()


def test_another_text_of_a_canary_asks_every_policy_anew(own: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(own.parent, tmp_path / "own", ignore=shutil.ignore_patterns("*.lock"))
    folder, recipe = tmp_path / "own" / "run", tmp_path / "own" / own.name
    (tmp_path / "own" / "prompts.jsonl").write_text(LINE % ("a", "something else"))
    assert run(recipe, folder) == 0
    assert state(folder).evaluations == state(finished).evaluations
    asked = [read_rows(one.file("canaries.parquet"), CANARIES) for one in drifts(folder)]
    assert [[json.loads(row["messages"])[0]["content"] for row in rows] for rows in asked] == [
        ["say something else"]
    ] * 2


def test_killed_between_its_two_tables_it_ends_like_one_that_nobody_disturbed(
    own: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "artifacts" / "drift")
    commit = PartialArtifact.commit_shard

    def killed(out: PartialArtifact, name: str, file: Path) -> None:
        if name == "canaries.parquet":
            raise KeyboardInterrupt
        commit(out, name, file)

    with monkeypatch.context() as patch:
        patch.setattr(PartialArtifact, "commit_shard", killed)
        assert run(own, folder) == 130
    assert len(list((folder / "artifacts" / "drift").glob(".*.partial"))) == 1
    assert run(own, folder) == 0
    assert [one.digest for one in drifts(folder)] == [one.digest for one in drifts(finished)]
    assert mmgrpo("verify", folder) == 0


def test_a_run_file_of_a_release_without_drift_is_still_what_it_says(finished: Path) -> None:
    made = state(finished).model_copy(update={"drifts": {}})
    document = made.model_dump(mode="json", exclude={"digest", "drifts"})
    from schemas.canonical import digest

    assert made.own_digest() == digest(document)
