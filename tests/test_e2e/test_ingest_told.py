"""What an ingest says where the recipe leaves something open that the logs hold, and where nothing comes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_e2e.kit import mmgrpo, own_recipe
from tests.test_e2e.test_snapshots import written
from tests.test_e2e.test_traces import traces


def scored(folder: Path, *names: str) -> Path:
    """Scores beside the traces, two different ones of each name for the first trace."""
    values = [(number, name, number % 2) for name in names for number in range(1, 5)] + [(1, names[0], 0.25)]
    rows = [{"trace_id": f"{number:032x}", "name": name, "score": value} for number, name, value in values]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "scores.jsonl"


def told(folder: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    recipe, spans = own_recipe(folder / "a"), written(traces(4), folder / "spans.json")
    options = [word for setting in settings for word in ("--set", setting)]
    quiet = ("--snapshots", folder / "s", "--exec", "progress=off")
    assert mmgrpo("ingest", recipe, spans, scored(folder, "helpful", "polite"), *quiet, *options) == 0
    return capsys.readouterr().out


def test_scores_are_named_and_which_of_them_is_the_reward_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(tmp_path, capsys)
    assert "rollouts without a reward: several_scores 4" in said
    assert 'which score is the reward? [ingest] reward = "NAME"' in said
    assert "helpful = 1.0, polite = 1.0" in said


def test_a_reward_that_no_rollout_has_is_named_beside_those_that_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = told(tmp_path, capsys, "ingest.reward=helpfull")
    assert (
        "[ingest] reward names helpfull, which no rollout has as a score; they have evaluation, helpful, polite" in said
    )


def test_where_people_do_not_agree_their_mean_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(tmp_path, capsys, "ingest.reward=helpful")
    assert "contradicting_scores 1" in said
    assert '[ingest] repeated = "mean"' in said
    assert "[ingest]" not in told(tmp_path, capsys, "ingest.reward=helpful", "ingest.repeated=mean")


def test_traces_that_no_module_is_known_for_leave_nothing_behind_and_say_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces(4)
    for _, call in every:
        call["attributes"] = [item for item in call["attributes"] if item["key"] != "mmgrpo.module"]
    spans = written(every, tmp_path / "spans.json")
    assert mmgrpo("ingest", recipe, spans, "--snapshots", tmp_path / "s", "--exec", "progress=off") == 3
    said = capsys.readouterr().err
    assert "all_calls_left_out 4; calls left out: no_module 4. The same command with --suggest-modules" in said
    left = [path for path in (tmp_path / "s").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_the_place_that_is_printed_can_be_named_in_a_recipe_that_lies_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, spans = own_recipe(Path("a")), written(traces(4), Path("spans.json"))
    assert mmgrpo("ingest", recipe, spans, "--exec", "progress=off") == 0
    place = Path(capsys.readouterr().out.split("Snapshot: ")[1].split()[0])
    assert place.is_absolute()
    assert (place / "manifest.json").exists()
