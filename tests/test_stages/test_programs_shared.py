"""Whether a worker on another machine sees what the machine sees that shares its work out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.errors import DataError
from stages.programs.load import load_program
from stages.programs.shared import Same
from stages.programs.sources import code_digests
from tests.test_stages.programs_kit import Bench, CharEngine, recipe_of

SOURCE = """
def program():
    return lambda inputs, call: call("ask", [{"role": "user", "content": inputs["x"]}]).text

def metric(example, output, calls):
    return 1.0
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "prog.py").write_text(SOURCE)
    made = Bench(tmp_path, CharEngine(lambda prompt, request: "x"), monkeypatch)
    made.examples(train=1)
    return made


def test_a_folder_that_is_not_there_is_named_and_what_must_be_shared_is_said(bench: Bench, tmp_path: Path) -> None:
    same = Same(bench.inputs(), recipe_of())
    same()
    (tmp_path / "artifacts" / "program").rename(tmp_path / "elsewhere")
    told = r"artifacts/program is not there on .*where the run folder is an address, so must \$MMGRPO_CACHE"
    with pytest.raises(DataError, match=told):
        same()


def test_other_bytes_of_the_program_are_refused_by_the_name_of_their_module(bench: Bench, tmp_path: Path) -> None:
    recipe = recipe_of()
    load_program(recipe, tmp_path)
    same = Same(bench.inputs(), recipe)
    recorded = bench.inputs()["program"].file("program.json")
    recorded.write_text(json.dumps({"code": code_digests(["prog"]), "files": {}}))
    same.code()
    recorded.write_text(json.dumps({"code": {"prog": "other"}, "files": {}}))
    with pytest.raises(DataError, match=r"the program is another one on .*other bytes in prog.* Install the same code"):
        same.code()
