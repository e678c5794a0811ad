"""What `auto` in a recipe becomes: the machine's choice at first, then the run's own, on whatever machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.choices import load_state
from pipeline.recipes import LoadedRecipe, load_recipe
from pipeline.runfile import write_run
from pipeline.settle import settle
from schemas.execution import Execution
from stages.engines import precision
from stages.train import recipe_slice
from tests.test_e2e.kit import ROOT

SHIPPED = ROOT / "data" / "banking77_8" / "recipe.toml"


def on_a_machine(monkeypatch: pytest.MonkeyPatch, fast: str) -> None:
    monkeypatch.setattr(precision, "fast_dtype", lambda device: fast)


def settled(folder: Path, *settings: str) -> tuple[LoadedRecipe, list[str]]:
    return settle(load_recipe(SHIPPED, list(settings)), Execution(), folder)


def test_a_new_run_takes_what_the_machine_computes_fast_and_keys_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fast in ("float32", "bfloat16"):
        on_a_machine(monkeypatch, fast)
        loaded, notes = settled(tmp_path)
        assert (loaded.recipe.model.dtype, loaded.recipe.train.precision, notes) == (fast, fast, [])
        found = recipe_slice(loaded.recipe)
        assert (found["model"]["dtype"], found["train"]["precision"]) == (fast, fast)


def test_a_run_goes_on_as_it_began_on_another_machine_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_machine(monkeypatch, "bfloat16")
    first = settled(tmp_path)[0].recipe
    write_run(tmp_path, load_state(tmp_path, first))
    on_a_machine(monkeypatch, "float32")
    loaded, notes = settled(tmp_path)
    assert loaded.recipe == first
    assert [note.split(" = ")[0] for note in notes] == ["model.dtype", "train.precision"]
    assert "bfloat16, as this run began with, although this machine is faster in float32" in notes[0]
    loaded, notes = settled(tmp_path, "train.precision=float32")
    assert (loaded.recipe.model.dtype, loaded.recipe.train.precision) == ("bfloat16", "float32")
    assert len(notes) == 1


def test_what_the_recipe_says_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, "float32")
    loaded, notes = settled(tmp_path, "model.dtype=bfloat16", "train.precision=bfloat16")
    assert (loaded.recipe.model.dtype, loaded.recipe.train.precision, notes) == ("bfloat16", "bfloat16", [])


@pytest.mark.parametrize(
    ("able", "fast"),
    [({"avx2": True}, "float32"), ({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16")],
)
def test_a_cpu_with_units_for_bfloat16_uses_them(
    able: dict[str, bool], fast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert precision.fast_dtype("cpu") == fast
