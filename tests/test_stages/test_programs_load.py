"""Loading a program by import path, and what identifies it."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from schemas.canonical import canonical_json, digest
from schemas.errors import RecipeError
from stages.programs.load import load_program, program_identity
from tests.test_stages.programs_kit import CharEngine, job, load_source, recipe_of, run_jobs, session_of

SOURCE = """
from helper import shout

def program(**args):
    def run(inputs, call):
        return shout(call("m", [{"role": "user", "content": inputs["x"]}]).text)
    return run

def metric(example, output, calls):
    return 1.0
"""
HELPER = "def shout(text):\n    return text + '!'\n"


def write(folder: Path, **sources: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def test_a_program_in_the_recipes_folder_is_found_and_run(tmp_path):
    program = load_program(recipe_of(), write(tmp_path, prog=SOURCE, helper=HELPER))
    assert sys.path[-1] == str(tmp_path)
    runs = run_jobs(program, [job()], session_of(CharEngine(lambda *_: "hi")))
    assert runs[0].outcome.output == '"hi!"'


def test_a_factory_that_asks_for_root_is_given_the_recipes_folder(tmp_path):
    source = "def program(root):\n    return lambda inputs, call: str(root)\ndef metric(*_): return 1.0\n"
    runs = run_jobs(
        load_program(recipe_of(), write(tmp_path, prog=source)), [job()], session_of(CharEngine(lambda *_: "hi"))
    )
    assert runs[0].outcome.output == f'"{tmp_path.resolve()}"'


@pytest.mark.parametrize("name", ["schemas", "stages", "pipeline"])
def test_a_folder_that_shadows_our_packages_is_refused(tmp_path, name):
    write(tmp_path, prog=SOURCE, helper=HELPER)
    (tmp_path / name).mkdir()
    (tmp_path / name / "anything.py").write_text("")
    with pytest.raises(RecipeError, match=f"has the name of a package of mmgrpo \\('{name}'\\).*Rename"):
        load_program(recipe_of(), tmp_path)
    (tmp_path / name / "anything.py").unlink()
    (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(RecipeError, match="Rename"):
        load_program(recipe_of(), tmp_path)


def test_a_data_folder_of_that_name_is_no_shadow(tmp_path):
    write(tmp_path, prog=SOURCE, helper=HELPER)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "data.csv").write_text("")
    assert callable(load_program(recipe_of(), tmp_path).invoke)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("nowhere:program", "there is no module 'nowhere', neither in the recipe's folder .* Expected .*nowhere.py"),
        ("prog:programme", "prog has no 'programme'. It has broken, direct, metric"),
        ("prog.program", "no import path; expected 'package.module:function'"),
        ("prog:NUMBER", "is a int, expected a function"),
        ("prog:broken", "with program.args failed: ValueError: no \\(at prog:"),
        ("prog:nothing", "returned a NoneType, expected a DSPy module or a callable"),
        ("prog:direct", "cannot be called as program\\(inputs, call\\)"),
        ("collections:OrderedDict", "returned a OrderedDict"),
    ],
)
def test_a_factory_that_cannot_be_used_says_why(tmp_path, factory, said):
    extra = (
        "NUMBER = 3\ndef broken(): raise ValueError('no')\ndef nothing(): return None\n"
        "def direct(): return lambda inputs: 1\n"
    )
    write(tmp_path, prog=SOURCE + extra, helper=HELPER)
    with pytest.raises(RecipeError, match=said):
        load_program(recipe_of(factory), tmp_path)


def test_a_module_that_fails_to_import_says_where(tmp_path):
    write(tmp_path, prog="import missing_thing\n")
    with pytest.raises(RecipeError, match="needs the module 'missing_thing', which is not installed"):
        load_program(recipe_of(), tmp_path)
    write(tmp_path, prog="x = 1\ny = x / 0\n")
    with pytest.raises(RecipeError, match=r"failed with ZeroDivisionError.*at prog:2"):
        load_program(recipe_of(), tmp_path)


def test_a_missing_metric_is_named(tmp_path):
    write(tmp_path, prog=SOURCE, helper=HELPER)
    with pytest.raises(RecipeError, match=r"program\.metric 'prog:score': prog has no 'score'"):
        load_program(recipe_of(metric="prog:score"), tmp_path)


def test_a_program_hidden_by_another_module_is_refused(tmp_path):
    write(tmp_path, string=SOURCE, helper=HELPER)
    with pytest.raises(RecipeError, match="is hidden by another module of that name"):
        load_program(recipe_of("string:program", "string:metric"), tmp_path)


def test_two_recipes_with_a_program_of_one_name_get_their_own(tmp_path):
    one = write(tmp_path / "one", prog=SOURCE, helper=HELPER)
    two = write(tmp_path / "two", prog=SOURCE, helper=HELPER.replace("!", "?"))
    for folder, output in ((one, '"hi!"'), (two, '"hi?"'), (one, '"hi!"')):
        program = load_program(recipe_of(), folder)
        assert run_jobs(program, [job()], session_of(CharEngine(lambda *_: "hi")))[0].outcome.output == output


def test_the_identity_covers_every_file_that_the_program_imports(tmp_path):
    source = SOURCE.replace("    def run", "    import lazy\n    def run").replace(
        "from helper", "import json\nfrom helper"
    )
    write(tmp_path, prog=source, helper=HELPER, lazy="from pack.inner import thing\n", unused="")
    write(tmp_path / "pack", __init__="", inner="from . import sibling\nthing = 1\n", sibling="")
    identity = program_identity(recipe_of(), tmp_path)
    assert sorted(identity["code"]) == ["helper", "lazy", "pack", "pack.inner", "pack.sibling", "prog"]
    assert str(tmp_path) not in canonical_json(identity)


def test_a_changed_helper_changes_the_identity_and_an_equal_copy_does_not(tmp_path):
    one = write(tmp_path / "one", prog=SOURCE, helper=HELPER)
    two = write(tmp_path / "two", prog=SOURCE, helper=HELPER)
    first = digest(program_identity(recipe_of(), one))
    assert digest(program_identity(recipe_of(), two)) == first
    write(two, helper=HELPER + "# changed\n")
    assert digest(program_identity(recipe_of(), two)) != first
    assert digest(program_identity(recipe_of(program={"args": {"k": 1}}), one)) != first


def test_a_shipped_program_counts_as_code_and_the_rest_of_ours_does_not(tmp_path):
    recipe = recipe_of("pipeline.tasks.tiny:program", "pipeline.tasks.tiny:metric")
    identity = program_identity(recipe, tmp_path)
    assert "pipeline.tasks.tiny" in identity["code"]
    assert all(name.startswith("pipeline.tasks.") for name in identity["code"])
    assert identity["modules"] == ["plan", "step"]


def test_extra_code_is_digested_by_relative_name(tmp_path):
    write(tmp_path, prog=SOURCE, helper=HELPER)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.txt").write_text("a")
    identity = program_identity(recipe_of(program={"code": ["prompts"]}), tmp_path)
    assert list(identity["files"]) == ["prompts/a.txt"]
    with pytest.raises(RecipeError, match="no file or folder 'nope'"):
        program_identity(recipe_of(program={"code": ["nope"]}), tmp_path)
    with pytest.raises(RecipeError, match="leaves the recipe's folder"):
        program_identity(recipe_of(program={"code": ["../x"]}), tmp_path)


def test_a_plain_program_loads_a_saved_state_where_it_can(tmp_path):
    (tmp_path / "state.json").write_text('{"prompt": "say", "metadata": {"dependency_versions": {}}}')
    source = """
class Program:
    def load_state(self, state): self.state = state
    def __call__(self, inputs, call): return self.state
def program(): return Program()
def metric(example, output, calls): return 1
"""
    program = load_source(tmp_path, source, program={"state": "state.json"})
    assert program.state == {"prompt": "say"}
    assert run_jobs(program, [job()], session_of(CharEngine(lambda *_: "")))[0].outcome.output == '{"prompt":"say"}'
    with pytest.raises(RecipeError, match="no file at"):
        load_program(recipe_of(program={"state": "other.json"}), tmp_path)


def test_a_module_that_ends_the_process_is_a_recipe_error_and_no_silent_success(tmp_path):
    with pytest.raises(RecipeError, match=r"importing 'prog' ends the process.*__main__"):
        load_source(tmp_path, "import sys\nsys.exit(0)\n")


def test_a_factory_that_ends_the_process_is_a_recipe_error(tmp_path):
    with pytest.raises(RecipeError, match=r"program.args failed: SystemExit: 0"):
        load_source(tmp_path, "def program():\n    raise SystemExit(0)\ndef metric(example, output, calls): ...\n")


@pytest.mark.parametrize("value", [float("nan"), date(2026, 1, 1), {"a": [float("inf")]}])
@pytest.mark.parametrize("field", ["args", "metric_args"])
def test_arguments_that_no_identity_can_hold_are_refused(tmp_path, field, value):
    with pytest.raises(RecipeError, match=rf"program.{field}: \$.x"):
        load_program(recipe_of(program={field: {"x": value}}), write(tmp_path, prog=SOURCE, helper=HELPER))


@pytest.mark.parametrize("source", ["def (:\n", "x = 1\0\n"])
def test_a_helper_that_is_imported_late_and_is_no_python_is_named(tmp_path, source):
    late = SOURCE.replace("def run(inputs, call):\n", "def run(inputs, call):\n        import lazy\n")
    write(tmp_path, prog=late, helper=HELPER, lazy=source)
    with pytest.raises(RecipeError, match=r"lazy.py.*not Python"):
        program_identity(recipe_of(), tmp_path)
