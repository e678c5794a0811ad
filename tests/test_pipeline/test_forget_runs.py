"""Which folders are looked through for what forgotten traces reached, and how a saved state is known again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.forget import Wanted, forget, runs_below
from pipeline.progress import Reporter
from pipeline.reached import _inputs, _state_digest
from schemas.errors import RecipeError
from schemas.manifest import Manifest
from stages.contract import Artifact

STATE = {"hop": {"demos": [{"question": "of a forgotten trace"}]}}


def test_runs_are_found_at_any_depth_and_not_among_artifacts(tmp_path: Path) -> None:
    runs = ("one", "study/seed-0/grpo", "study/seed-1/grpo", "one/again")
    for name in (*runs, "one/artifacts/train/abc", "one/.kept"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    assert runs_below(tmp_path) == sorted(tmp_path / name for name in runs)
    assert runs_below(tmp_path / "study" / "seed-0") == [tmp_path / "study/seed-0/grpo"]


def test_a_folder_without_runs_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"there is no run\.json in it or below it"):
        forget(Wanted(("a",)), tmp_path / "snapshots", [tmp_path], Reporter("off"))


@pytest.mark.parametrize("params", [{"teacher": {"program": {"state": STATE}}}, {"identity": {"state": STATE}}])
def test_a_state_that_a_teacher_or_a_run_loaded_is_among_its_inputs_whatever_saved_it(
    params: dict[str, object],
) -> None:
    manifest = Manifest.model_construct(payload={"inputs": {"base": "b"}, "params": params})
    saved = {**STATE, "metadata": {"dependency_versions": {"dspy": "3"}}}
    assert set(_inputs(Artifact(Path("a"), manifest))) == {"b", _state_digest(saved)}
