"""What trackers are told: each step by its number in the run, known figures only, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from pipeline.recipes import load_execution
from schemas.errors import RecipeError
from schemas.execution import Execution
from stages import train
from tests.test_stages.train_kit import LocalOut, as_previous, make_calls, recipe, run, with_logprobs, write_artifacts

SECRET = "a-key-that-nobody-may-read"
FIELDS: dict[str, Any] = {"epochs": 2, "beta": 0.0, "module_norms": True}


class Recorder(TrainerCallback):
    """Stands for an integration whose package is not needed."""

    told: ClassVar[list[tuple[int, dict[str, float]]]] = []
    settings: ClassVar[list[str]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.settings.append(args.to_json_string())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.told.append((state.global_step, dict(logs)))


def trained(folder: Path, *trackers: str, iteration: int = 0, previous: LocalOut | None = None) -> LocalOut:
    cache = folder / "cache"
    inputs, _ = write_artifacts(folder / "data", make_calls(), cache)
    if previous is not None:
        inputs = as_previous(previous, inputs, folder / f"previous-{iteration}")
    how = recipe(**FIELDS)
    execution = Execution.model_validate(
        {"device": "cpu", "threads": 1, "cache": str(cache), "report_to": trackers, "report_dir": str(folder / "t")}
    )
    out = LocalOut(folder / f"out-{iteration}")
    train.run(with_logprobs(inputs, how, cache, folder / f"scored-{iteration}"), how, execution, out)
    return out


def test_each_step_is_told_once_by_its_number_in_the_run_and_no_key_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Recorder)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    Recorder.told.clear()
    first = trained(tmp_path, "trackio")
    trained(tmp_path, "trackio", iteration=1, previous=first)
    assert [step for step, _ in Recorder.told] == [0, 1, 2, 3]
    rows = pl.read_parquet(first.committed()["steps.parquet"]).to_dicts()
    for (_, told), row in zip(Recorder.told[:2], rows, strict=True):
        known = {name for name, value in row.items() if isinstance(value, (int, float)) and name != "step"}
        assert known <= set(told)
        assert told["loss"] == row["loss"]
        assert told["grad_norm/m"] == pytest.approx(row["grad_norm"], rel=1e-5)
        assert not any(value is None for value in told.values())
    assert '"run_name": "t, iteration 1"' in Recorder.settings[-1]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert files
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
    assert SECRET not in "".join(Recorder.settings)


def test_reporting_changes_nothing_of_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Recorder)
    told = trained(tmp_path, "trackio")
    inputs, _ = write_artifacts(tmp_path / "data", make_calls(), tmp_path / "cache")
    _, silent = run(inputs, tmp_path / "cache", tmp_path / "silent", **FIELDS)
    for name, path in silent.committed().items():
        assert told.committed()[name].read_bytes() == path.read_bytes(), name


def test_a_tracker_that_is_not_installed_or_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.recipes.distribution", _nothing_is_installed)
    with pytest.raises(RecipeError, match=r"'mlflow', whose package is not installed: pip install mlflow"):
        load_execution(None, ["report_to=mlflow"])
    with pytest.raises(
        RecipeError, match=r"report_to\.1: Input should be 'tensorboard', 'wandb', 'mlflow' or 'trackio'"
    ):
        load_execution(None, ["report_to=wandb,comet"])
    assert load_execution(None, []).report_to == ()


def _nothing_is_installed(name: str) -> None:
    from importlib.metadata import PackageNotFoundError

    raise PackageNotFoundError(name)


@pytest.mark.tensorboard
def test_tensorboard_has_every_step_of_two_iterations(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = trained(tmp_path, "tensorboard")
    trained(tmp_path, "tensorboard", iteration=1, previous=first)
    events = EventAccumulator(str(tmp_path / "t" / "tensorboard" / "t-shared"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 1, 2, 3]
    rows = pl.read_parquet(first.committed()["steps.parquet"])
    assert [event.value for event in events.Scalars("train/loss")][:2] == pytest.approx(rows["loss"].to_list())
    assert "train/grad_norm/m" in events.Tags()["scalars"]
