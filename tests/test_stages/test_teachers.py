"""From a teacher's recorded call to the student's prompt: rendered as sent, parsed there, or left out with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import dspy
import pytest

from schemas.errors import RecipeError
from schemas.recipe_data import SamplingSection
from stages.engines.models import load_tokenizer, resolve_base
from stages.engines.texts import encode_chat, encode_completion
from stages.programs.dspy_program import dspy_program
from stages.programs.load import Program
from stages.programs.rendering import render
from stages.programs.teachers import identify_teacher, program_of
from stages.programs.transfer import Transfer
from tests.test_stages.programs_kit import CharEngine, job, load_source, recipe_of, run_jobs, session_of

LABEL = "[[ ## label ## ]]\n{}\n\n[[ ## completed ## ]]"


class Typed(dspy.Module):
    """A predictor with typed fields, and one whose instructions are chosen at run time."""

    def __init__(self, instructions: str = "Classify.", adapter: Any = None) -> None:
        super().__init__()
        self.adapter = adapter
        fields = {
            "x": (str, dspy.InputField()),
            "seen": (list[str], dspy.InputField()),
            "depth": (int, dspy.InputField()),
            "label": (Literal["a", "b"], dspy.OutputField()),
        }
        self.classify = dspy.Predict(dspy.Signature(fields, instructions))

    def forward(self, x: str) -> Any:
        return self.classify(x=x, seen=["one", "two, three"], depth=3)


class Changing(Typed):
    def forward(self, x: str) -> Any:
        other = self.classify.signature.with_instructions(f"Classify {x}.")
        return self.classify(x=x, seen=[], depth=0, signature=other)


def made(module: Any) -> Program:
    return dspy_program(module, None, lambda example, output, calls: 1.0)


def called(program: Program, text: str) -> list[dict[str, Any]]:
    """The calls of one run in which every completion is this text."""
    return run_jobs(program, [job()], session_of(CharEngine(lambda *_: text), parse_retries=0))[0].invocations


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(resolve_base("tiny-random", Path(), tmp_path_factory.mktemp("cache")))


def transfer(teacher: Program, student: Program, tokenizer: Any, *, own: bool = True) -> Transfer:
    origin = {"tokenizer": "t", "template": "c"}
    taught, learned = SamplingSection(temperature=0.5), SamplingSection(temperature=1.0)
    return Transfer(teacher, student, own, tokenizer, origin, taught, learned)


def test_a_call_is_rendered_as_it_was_sent_typed_inputs_and_demos_included() -> None:
    module = Typed()
    module.classify.demos = [{"x": "demo", "seen": ["never"], "depth": 1, "label": "b"}]
    program = made(module)
    (call,) = called(program, LABEL.format("a"))
    rendered = render(program, call)
    assert rendered is not None
    assert rendered.messages == call["messages"]
    assert "demo" in rendered.messages
    assert rendered.reads_like(call)
    assert rendered.outputs == '{"label":"a"}'


def test_the_student_is_asked_with_its_own_instructions_and_the_same_inputs(tokenizer: Any) -> None:
    teacher, student = made(Typed("Think hard.")), made(Typed("Classify."))
    (call,) = called(teacher, LABEL.format("b"))
    (own,) = called(student, LABEL.format("b"))
    found = transfer(teacher, student, tokenizer)(call)
    assert found["messages"] == call["messages"] != found["student_messages"] == own["messages"]
    assert found["student_prompt_ids"] == list(encode_chat(tokenizer, json.loads(own["messages"])))
    assert (found["transfer"], found["student_temperature"]) == ("ok", 1.0)


@pytest.mark.parametrize(
    ("teacher", "student", "text", "expected"),
    [
        (Changing("Think."), Typed(), LABEL.format("a"), "not_rendered"),
        (Typed("Think.", dspy.JSONAdapter()), Typed(), '{"label": "a"}', "not_parsed"),
        (Typed("Think."), Typed("Classify.", dspy.JSONAdapter()), LABEL.format("a"), "not_parsed"),
        (Typed("Think."), Typed(), LABEL.format("neither"), "ok"),
    ],
    ids=["prompt of the moment", "JSON for fields", "fields for JSON", "parses nowhere: a failure like any"],
)
def test_what_cannot_be_trained_in_the_students_prompt_says_why(
    tokenizer: Any, teacher: Any, student: Any, text: str, expected: str
) -> None:
    teacher, student = made(teacher), made(student)
    (call,) = called(teacher, text)
    found = transfer(teacher, student, tokenizer)(call)
    assert found["transfer"] == expected
    assert (found["student_messages"] is None) == (expected == "not_rendered")


def test_text_is_encoded_only_where_its_tokens_give_it_back(tokenizer: Any) -> None:
    ids = encode_completion(tokenizer, "Abc d.", ended=True)
    assert ids is not None
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Abc d."
    cut = encode_completion(tokenizer, "Abc d.", ended=False)
    assert cut == ids[:-1]
    assert encode_completion(tokenizer, f"a {tokenizer.eos_token} b", ended=True) is None
    program = made(Typed())
    (call,) = called(program, LABEL.format("a"))
    text = {"completion_ids": None, "completion": f"x{tokenizer.eos_token}", "prompt_ids": None}
    found = transfer(program, program, tokenizer, own=False)(call | text)
    assert (found["transfer"], found["completion_ids"]) == ("not_encoded", None)


def test_a_temperature_that_the_program_asked_for_is_the_students_too(tokenizer: Any) -> None:
    program = made(Typed())
    (call,) = called(program, LABEL.format("a"))
    move = transfer(program, program, tokenizer, own=False)
    assert move(call | {"temperature": 0.5})["student_temperature"] == 1.0
    assert move(call | {"temperature": 0.2})["student_temperature"] == 0.2


def test_calls_of_other_lms_and_unanswered_ones_stay_as_they_are(tokenizer: Any) -> None:
    program = made(Typed())
    (call,) = called(program, LABEL.format("a"))
    move = transfer(program, program, tokenizer)
    for changed in ({"trainable": False}, {"completion": None}):
        assert move(call | changed) == call | changed


ONE = """
import dspy

class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("x -> y")

    def forward(self, x):
        return self.ask(x=x)

made = Program()

def program():
    return made

def metric(example, output, calls):
    return 1.0
"""
STATE = {"traces": [], "train": [], "demos": [{"x": "1", "y": "2"}], "lm": None}


def test_a_factory_that_returns_one_object_is_refused_as_its_prompts_would_become_the_students(tmp_path: Path) -> None:
    signature = {"instructions": "Other.", "fields": [{"prefix": "X:", "description": "${x}"}] * 2}
    (tmp_path / "other.json").write_text(json.dumps({"ask": STATE | {"signature": signature}}))
    teachers = {"t": {"rollouts": 1, "state": "other.json"}}
    student = load_source(tmp_path, ONE, teachers=teachers)
    recipe = recipe_of(teachers=teachers)
    assert program_of(recipe, "t").program.state == "other.json"
    with pytest.raises(RecipeError, match="returns one and the same object every time"):
        identify_teacher(recipe, "t", tmp_path, student, resolve_base("tiny-random", tmp_path, tmp_path / "cache"))
