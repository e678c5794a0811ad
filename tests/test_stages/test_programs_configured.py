"""Which DSPy adapter a program runs in, where a process loads several that configure their own."""

from __future__ import annotations

from pathlib import Path

import dspy
import pytest

from pipeline.recipes import recipe_from
from stages.programs.load import Program, load_program

MADE = """
import dspy

def program():
    {inside}
    return dspy.Predict("q -> y")

def metric(example, output, calls):
    return 1.0
"""


def load(folder: Path, name: str) -> Program:
    recipe = {
        "name": "any",
        "model": {"base": "tiny-random"},
        "program": {"factory": f"{name}:program", "metric": f"{name}:metric"},
        "examples": {"path": "none.csv", "inputs": ["q"], "labels": []},
    }
    return load_program(recipe_from(recipe, "a test"), folder)


def write(folder: Path, name: str, before: str = "", inside: str = "pass") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(f"{before}\n{MADE.format(inside=inside)}")


@pytest.mark.parametrize("where", ["when imported", "when made"])
def test_a_program_keeps_the_adapter_that_it_configures_and_leaves_it_to_no_other(tmp_path: Path, where: str) -> None:
    sets = "import dspy; dspy.configure(adapter=dspy.JSONAdapter())"
    name = f"speaks_json_{where.replace(' ', '_')}"
    write(tmp_path / "one", name, **({"before": sets} if where == "when imported" else {"inside": sets}))
    write(tmp_path / "other", f"after_{name}")
    outside = dspy.settings.adapter
    for _ in range(2):  # a module is imported once
        assert isinstance(load(tmp_path / "one", name).adapter, dspy.JSONAdapter)
        assert dspy.settings.adapter is outside
        assert load(tmp_path / "other", f"after_{name}").adapter is outside


def test_programs_of_one_folder_keep_their_own_adapters(tmp_path: Path) -> None:
    write(tmp_path, "beside_both")
    write(tmp_path, "beside_json", before="import beside_both, dspy; dspy.configure(adapter=dspy.JSONAdapter())")
    write(tmp_path, "beside_plain", before="import beside_both")
    for _ in range(2):
        assert isinstance(load(tmp_path, "beside_json").adapter, dspy.JSONAdapter)
        assert load(tmp_path, "beside_plain").adapter is dspy.settings.adapter


def test_programs_share_what_a_module_configured_that_both_import(tmp_path: Path) -> None:
    write(tmp_path, "sharing_common", before="import dspy; dspy.configure(adapter=dspy.XMLAdapter())")
    write(tmp_path, "sharing_one", before="import sharing_common")
    write(tmp_path, "sharing_two", before="import sharing_common")
    for name in ("sharing_one", "sharing_two", "sharing_one"):
        assert isinstance(load(tmp_path, name).adapter, dspy.XMLAdapter)
