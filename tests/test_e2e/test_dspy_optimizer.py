"""`MMGRPO(…).compile(…)`: mmGRPO as one of DSPy's optimizers, alone and inside `dspy.BetterTogether`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
import pytest

from pipeline.dspy_optimizer import MMGRPO
from pipeline.store import Store
from schemas.errors import DataError, RecipeError
from schemas.parquet import read_rows
from schemas.rollouts import INVOCATIONS
from stages.programs.live import identity_of
from stages.programs.plain_adapter import PlainAdapter
from stages.programs.served_lm import served_by
from tests.test_e2e.kit import ROOT, artifact, mmgrpo, state
from tests.test_pipeline.capture_kit import ChatServer

RECIPE: dict[str, Any] = {
    "name": "optimizer",
    "model": {"base": "tiny-random", "dtype": "float32", "context": 2048},
    "rollout": {"examples": 4, "rollouts": 4, "parse_retries": 1, "sampling": {"max_new_tokens": 8}},
    "adapter": {"r": 2},
    "train": {"learning_rate": 1e-2, "precision": "float32"},
    "evaluate": {"sampling": {"temperature": 1.0, "max_new_tokens": 8}, "parse_retries": 0, "bootstrap": 200},
}
QUIET = {"progress": "off"}


class Two(dspy.Module):
    """A program of two modules, one of which asks another for a number of its own."""

    def __init__(self, suffix: str = "") -> None:
        super().__init__()
        self.suffix = suffix
        self.think = dspy.Predict("word -> thought")
        self.say = dspy.Predict("word, thought -> answer")

    def forward(self, word: str) -> dspy.Prediction:
        return self.say(word=word + self.suffix, thought=self.think(word=word).thought)


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
    assert example.inputs().keys() == ["word"]
    return sum(c.islower() for c in prediction.answer) / len(prediction.answer)


def examples(count: int = 8, start: int = 0) -> list[dspy.Example]:
    found = range(start, start + count)
    return [dspy.Example(word=f"w{index}", answer=f"a{index}").with_inputs("word") for index in found]


@pytest.fixture(autouse=True)
def plainly() -> Any:
    with dspy.context(adapter=PlainAdapter()):
        yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[MMGRPO, dspy.Module]:
    folder = tmp_path_factory.mktemp("optimizer") / "run"
    optimizer = MMGRPO(metric=metric, recipe=RECIPE, run_dir=folder, execution=QUIET)
    with dspy.context(adapter=PlainAdapter()):
        return optimizer, optimizer.compile(Two(), trainset=examples(), valset=examples(4, 8))


def test_the_compiled_program_answers_with_the_new_adapter(compiled: tuple[MMGRPO, dspy.Module]) -> None:
    optimizer, program = compiled
    adapter = artifact(optimizer.run_dir, "train").path / "adapter"
    for predictor in program.predictors():
        served = served_by(predictor.lm)
        assert served is not None
        assert served.adapter == str(adapter)
    answer = program(word="w99").answer
    assert isinstance(answer, str)
    assert answer
    assert program.think.lm.model.endswith(state(optimizer.run_dir).policies[-1][:12])
    base = Two()
    base.set_lm(optimizer.lm())
    assert base(word="w99").answer
    assert program._compiled


def test_the_run_folder_is_one_like_any_other(compiled: tuple[MMGRPO, dspy.Module]) -> None:
    optimizer, _ = compiled
    assert mmgrpo("verify", optimizer.run_dir) == 0
    assert mmgrpo("report", optimizer.run_dir) == 0
    rows = read_rows(artifact(optimizer.run_dir, "rollout").file("invocations.parquet"), INVOCATIONS)
    assert {row["module"] for row in rows} == {"think", "say"}
    assert all(row["fidelity"] == "exact" for row in rows)


def test_compiling_the_same_again_trains_nothing_and_another_program_does(
    compiled: tuple[MMGRPO, dspy.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, program = compiled
    before = Store(optimizer.run_dir / "artifacts").all()
    shuffled = [*reversed(examples())]
    again = optimizer.compile(Two(), trainset=shuffled, valset=examples(4, 8))
    assert Store(optimizer.run_dir / "artifacts").all() == before
    assert served_by(again.say.lm) == served_by(program.say.lm)
    assert identity_of(Two(), metric) == identity_of(Two(), metric)
    assert identity_of(Two("!"), metric) != identity_of(Two(), metric)
    told = Two()
    told.say.signature = told.say.signature.with_instructions("Say it.")
    assert identity_of(told, metric) != identity_of(Two(), metric)
    assert set(identity_of(Two(), metric)["code"]) >= {__name__}


def test_with_serve_the_program_asks_the_endpoint_that_was_given_the_adapters(
    compiled: tuple[MMGRPO, dspy.Module],
) -> None:
    optimizer, _ = compiled
    server, given = ChatServer(), dict[str, Path]()

    def serve(adapters: Mapping[str, Path]) -> dict[str, dspy.LM]:
        given.update(adapters)
        lm = dspy.LM("openai/shared", api_base=server.url, api_key="none", cache=False)
        return dict.fromkeys(adapters, lm)

    elsewhere = MMGRPO(metric=metric, recipe=RECIPE, run_dir=optimizer.run_dir, execution=QUIET, serve=serve)
    try:
        program = elsewhere.compile(Two(), trainset=examples(), valset=examples(4, 8))  # trained already
        answer = program(word="w99").answer
    finally:
        server.close()
    assert given == {"*": artifact(optimizer.run_dir, "train").path / "adapter"}
    assert [asked["model"] for asked in server.seen] == ["shared", "shared"]
    assert "w99" in server.seen[0]["messages"][-1]["content"]
    assert answer.startswith("re: ")


def test_the_compiled_program_is_saved_and_loaded(compiled: tuple[MMGRPO, dspy.Module], tmp_path: Path) -> None:
    _, program = compiled
    program.save(tmp_path / "program.json")
    other = Two()
    other.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    assert served_by(other.say.lm) == served_by(program.say.lm)
    assert other(word="w1").answer


def test_better_together_composes_it_with_a_prompt_optimizer(tmp_path: Path) -> None:
    optimizer = MMGRPO(metric=metric, recipe=RECIPE, run_dir=tmp_path / "run", execution=QUIET)
    student = Two()
    student.set_lm(optimizer.lm())
    together = dspy.BetterTogether(
        metric=metric, p=dspy.BootstrapFewShot(metric=None, max_bootstrapped_demos=2, max_labeled_demos=2), w=optimizer
    )
    # Without a validation set it returns what the last step gave, whatever a random model scores.
    with dspy.context(lm=optimizer.lm()):  # BootstrapFewShot takes the LMs off the program that it bootstraps from
        found = together.compile(student, trainset=examples(), strategy="p -> w", valset_ratio=0.0, seed=0)
    assert not found.flag_compilation_error_occurred
    adapter = artifact(tmp_path / "run", "train").path / "adapter"
    for predictor in found.predictors():
        assert predictor.demos
        served = served_by(predictor.lm)
        assert served is not None
        assert served.adapter == str(adapter)
    rows = read_rows(artifact(tmp_path / "run", "rollout").file("invocations.parquet"), INVOCATIONS)
    shown = {row["module"]: json.loads(row["messages"]) for row in rows}
    for module in ("think", "say"):
        demo = next(demo for demo in found.named_predictors() if demo[0] == module)[1].demos[0]
        assert demo["augmented"]
        user, assistant = (message["content"] for message in shown[module][1:3])
        assert demo["word"] in user
        assert demo["thought" if module == "think" else "answer"].strip() == assistant.strip()
    assert found(word="w5").answer


def test_better_together_scores_on_its_own_validation_set_too(tmp_path: Path) -> None:
    optimizer = MMGRPO(metric=metric, recipe=RECIPE, run_dir=tmp_path / "run", execution=QUIET)
    student = Two()
    student.set_lm(optimizer.lm())
    together = dspy.BetterTogether(metric=metric, w=optimizer)
    found = together.compile(student, trainset=examples(), valset=examples(4, 8), strategy="w", seed=0)
    assert not found.flag_compilation_error_occurred
    assert sorted(candidate["strategy"] for candidate in found.candidate_programs) == ["", "w"]
    assert all(candidate["score"] is not None for candidate in found.candidate_programs)


def test_a_program_that_is_trained_already_is_not_trained_anew_in_silence(
    compiled: tuple[MMGRPO, dspy.Module],
) -> None:
    optimizer, program = compiled
    with pytest.raises(RecipeError, match="runs on an adapter that mmgrpo trained already"):
        optimizer.compile(program, trainset=examples(), valset=examples(4, 8))


def test_what_cannot_be_taken_is_refused_with_what_to_do(tmp_path: Path) -> None:
    optimizer = MMGRPO(metric=metric, recipe=RECIPE, run_dir=tmp_path / "run", execution=QUIET)
    with pytest.raises(RecipeError, match="name teachers in the recipe"):
        optimizer.compile(Two(), trainset=examples(), teacher=Two())
    with pytest.raises(DataError, match="the trainset is empty"):
        optimizer.compile(Two(), trainset=[])
    with pytest.raises(DataError, match=r"trainset\[0\]: it has no input keys"):
        optimizer.compile(Two(), trainset=[dspy.Example(word="w")])
    with pytest.raises(DataError, match="Give a valset"):
        optimizer.compile(Two(), trainset=examples(1))
    other = Two()
    other.say.lm = dspy.LM("openai/gpt-5", api_key="none")
    with pytest.raises(RecipeError, match=r"'say' has an LM of its own \(openai/gpt-5\)"):
        optimizer.compile(other, trainset=examples())
    with pytest.raises(RecipeError, match=r"leave out \[program\]"):
        MMGRPO(metric=metric, recipe={**RECIPE, "program": {}})
    with pytest.raises(RecipeError, match="lerning_rate: unknown key"):
        MMGRPO(metric=metric, recipe={**RECIPE, "train": {"lerning_rate": 1}})


def test_a_run_of_a_live_program_says_so_on_the_command_line(
    compiled: tuple[MMGRPO, dspy.Module], tmp_path: Path
) -> None:
    optimizer, _ = compiled
    recipe = json.loads((optimizer.run_dir / "run.json").read_text())["recipe"]
    code = (
        "import json, sys; from pathlib import Path; from schemas.recipe import Recipe\n"
        "from stages.programs.load import load_program\n"
        "load_program(Recipe.model_validate(json.load(open(sys.argv[1]))), Path(sys.argv[2]))"
    )
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    command = [sys.executable, "-c", code, str(tmp_path / "recipe.json"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "is an object of the Python program that called MMGRPO.compile" in done.stderr
