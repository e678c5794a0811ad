"""The prompts stage: what its optimizers find, from which examples, with which calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.canonical import digest
from schemas.errors import DataError, RecipeError, StageError
from schemas.examples import EXAMPLES
from schemas.parquet import read_rows, write_table
from schemas.recipe import Recipe
from schemas.recipe_prompts import PromptsSection
from stages.engines.interface import Adapter, Request
from stages.programs.load import load_program
from stages.prompting import checks
from tests.test_stages.programs_kit import CharEngine, FolderOut
from tests.test_stages.prompts_kit import PLAIN, PROGRAM, answer, bench, files, optimize, recipe, trials

ADAPTER = Adapter(Path("nowhere"), "a1")
OPTIMIZERS = ["mipro", "bootstrap", "gepa"]


def found(out: FolderOut) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((out.folder / "state.json").read_bytes())
    return {name: part for name, part in state.items() if name != "metadata"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_ends_with_prompts_that_score_at_least_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    made, out = bench(tmp_path / "a", monkeypatch), FolderOut(tmp_path / "out")
    metrics = optimize(made, recipe(optimizer=optimizer, metric_calls=60), out)
    assert metrics["score"] >= metrics["score_before"]
    assert metrics["changed"] == (trials(out)[0]["state"] != digest(found(out)))
    assert {"mipro": 5, "bootstrap": 2, "gepa": metrics["trials"]}[optimizer] == len(trials(out))
    demos = {name: len(part["demos"]) for name, part in found(out).items()}
    assert demos == metrics["demos"]
    if optimizer == "bootstrap":
        assert metrics["score"] > metrics["score_before"]
        assert min(demos.values()) > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_threads_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    from schemas.execution import Execution
    from stages import prompts

    made, chosen = bench(tmp_path / "a", monkeypatch), recipe(optimizer=optimizer, metric_calls=40)
    outs = [FolderOut(tmp_path / f"out{threads}") for threads in (1, 7)]
    for threads, out in zip((1, 7), outs, strict=True):
        prompts.run(made.inputs(iteration=0), chosen, Execution(concurrency=threads), out)
    assert files(outs[0]) == files(outs[1])
    assert set(files(outs[0])) == {"state.json", "trials.parquet"}


def test_every_trial_is_scored_with_the_same_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = bench(tmp_path / "a", monkeypatch), FolderOut(tmp_path / "out")
    optimize(made, recipe(trials=12), out)
    scores: dict[str, set[float]] = {}
    for row in trials(out):
        scores.setdefault(row["state"], set()).add(row["score"])
    assert len(scores) < len(trials(out)), "no state was tried twice: raise the number of trials"
    assert all(len(found) == 1 for found in scores.values())


def test_only_train_examples_are_seen_and_all_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts_sent: list[str] = []

    def listening(prompt: str, request: Request) -> str:
        prompts_sent.append(prompt)
        return answer(prompt, request)

    made, out = bench(tmp_path / "a", monkeypatch, CharEngine(listening)), CountingOut(tmp_path / "out")
    metrics = optimize(made, recipe(examples=10, validation=0.7), out)
    assert (metrics["train_examples"], metrics["validation_examples"]) == (3, 7)
    assert out.excluded == {"beyond prompts.examples": 2}
    assert any("train" in prompt for prompt in prompts_sent)
    assert not any("dev0" in prompt or "dev1" in prompt for prompt in prompts_sent)


class CountingOut(FolderOut):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.excluded: dict[str, int] = {}

    def exclude(self, reason: str, count: int = 1) -> None:
        self.excluded[reason] = self.excluded.get(reason, 0) + count


def test_large_validation_sets_are_scored_in_minibatches_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = bench(tmp_path / "a", monkeypatch, n=70), FolderOut(tmp_path / "out")
    metrics = optimize(made, recipe(minibatch=10, validation=0.8), out)
    rows = trials(out)
    assert metrics["validation_examples"] == 56
    assert {row["examples"] for row in rows if row["kind"] == "minibatch"} == {10}
    assert {row["examples"] for row in rows if row["kind"] == "full"} == {56}
    assert rows[0]["kind"] == "full"
    assert metrics["score"] == max(row["score"] for row in rows if row["kind"] == "full")


def test_the_frozen_state_loads_into_the_program_and_with_dspy_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = bench(tmp_path / "a", monkeypatch), FolderOut(tmp_path / "out")
    chosen = recipe(optimizer="bootstrap")
    optimize(made, chosen, out)
    frozen = load_program(chosen, made.root, out.folder / "state.json")
    assert frozen.state == found(out)
    other = load_program(chosen, made.root).module
    other.load(out.folder / "state.json")
    assert other.dump_state() == found(out)


def test_the_proposer_is_shown_the_source_of_the_program_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def listening(prompt: str, request: Request) -> str:
        shown.append(prompt)
        return answer(prompt, request)

    made = bench(tmp_path / "a", monkeypatch, CharEngine(listening))
    optimize(made, recipe(), FolderOut(tmp_path / "out"))
    code = [prompt for prompt in shown if "pseudo-code" in prompt]
    assert code
    assert all("The source of Two." in prompt for prompt in code)
    assert not any("RecordedPredict" in prompt or "ServedProgram" in prompt for prompt in shown)


def test_a_proposer_of_its_own_writes_the_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def listening(prompt: str, request: Request) -> str:
        if prompt.startswith(("Use the information", "Below is some", "Given several", "Given a series")):
            asked.append(request)
        return answer(prompt, request)

    made = bench(tmp_path / "a", monkeypatch, CharEngine(listening))
    made.adapter("p1", {"*": "a1"})
    monkeypatch.setattr("stages.programs.shards.policy_adapters", lambda inputs: {"*": ADAPTER})
    document = recipe().model_dump()
    document["lms"] = {"writer": {"kind": "base", "max_new_tokens": 99}}
    document["prompts"]["proposer"] = "writer"
    optimize(made, Recipe.model_validate(document), FolderOut(tmp_path / "out"))
    assert asked
    assert {request.adapter for request in asked} == {None}
    assert {request.sampling.max_new_tokens for request in asked} == {99}


def test_an_lm_of_a_predictors_own_stays_through_every_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = PROGRAM.replace(
        "    def forward",
        "        from stages.programs.dspy_engine import program_lm\n"
        '        self.say.lm = program_lm("other")\n\n    def forward',
    )
    lengths: set[int] = set()

    def listening(prompt: str, request: Request) -> str:
        if "produce the fields `y`" in prompt:
            lengths.add(request.sampling.max_new_tokens)
        return answer(prompt, request)

    made = bench(tmp_path / "a", monkeypatch, CharEngine(listening), source=source)
    document = recipe(optimizer="bootstrap").model_dump()
    document["lms"] = {"other": {"kind": "base", "max_new_tokens": 77}}
    optimize(made, Recipe.model_validate(document), FolderOut(tmp_path / "out"))
    assert lengths == {77}


def test_plain_callables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(tmp_path / "a", monkeypatch, source=PLAIN)
    with pytest.raises(RecipeError, match=r"'prog:program' makes a plain callable.*dspy.Module"):
        optimize(made, recipe(), FolderOut(tmp_path / "out"))


def test_an_optimizer_that_is_not_installed_is_refused_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"optuna, which is not installed: pip install -e '.\[prompts\]'"):
        checks.check_installed(PromptsSection(optimizer="mipro"))


def test_examples_whose_ids_are_keyed_are_scored_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = bench(tmp_path / "a", monkeypatch), FolderOut(tmp_path / "out")
    path = made.root / "artifacts" / "examples" / "examples.parquet"
    rows = read_rows(path, EXAMPLES)
    write_table([row | {"example_id": f"keyed{index}"} for index, row in enumerate(rows)], path, EXAMPLES)
    metrics = optimize(made, recipe(optimizer="bootstrap"), out)
    assert metrics["score"] > metrics["score_before"]


def test_one_example_is_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(tmp_path / "a", monkeypatch, n=1)
    with pytest.raises(DataError, match="has 1 example"):
        optimize(made, recipe(), FolderOut(tmp_path / "out"))


def test_a_metric_that_always_fails_ends_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PROGRAM.replace("return float(", "raise KeyError('gold')\n    return float(")
    made = bench(tmp_path / "a", monkeypatch, source=source)
    with pytest.raises(StageError, match=r"the metric failed in all .* runs.*KeyError: 'gold'"):
        optimize(made, recipe(optimizer="bootstrap"), FolderOut(tmp_path / "out"))


def test_tries_of_the_metric_that_came_to_nothing_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_once = """
    from pathlib import Path
    with Path(__file__).with_name("tried").open("a+") as file:
        file.seek(0)
        if example.x + "\\n" not in file.readlines():
            file.write(example.x + "\\n")
            raise OSError("the judge is away")
    return float("""
    source = PROGRAM.replace("\n    return float(", failing_once)
    made = bench(tmp_path / "a", monkeypatch, source=source)
    metrics = optimize(made, recipe(optimizer="bootstrap"), FolderOut(tmp_path / "out"))
    tried = (tmp_path / "a" / "tried").read_text().split()
    assert metrics["metric_retries"] == len(tried) == len(set(tried)) > 0
    assert "metric_error" not in metrics["statuses"]


def test_a_fault_while_a_trial_is_written_down_ends_the_stage_before_the_rest_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CharEngine(answer)
    asked = []
    generate = engine.generate

    def counted(requests: list[Request]) -> Any:
        asked.extend(requests)
        return generate(requests)

    monkeypatch.setattr(engine, "generate", counted)
    optimize(bench(tmp_path / "a", monkeypatch, engine), recipe(), FolderOut(tmp_path / "whole"))
    whole = len(asked)
    asked.clear()

    def broken(module: Any) -> Any:
        raise TypeError("a state without a JSON form")

    monkeypatch.setattr("stages.prompting.trials.state_of", broken)
    with pytest.raises(StageError, match=r"failed with TypeError: a state without a JSON form"):
        optimize(bench(tmp_path / "b", monkeypatch, engine), recipe(), FolderOut(tmp_path / "out"))
    assert len(asked) < whole / 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_failing_engine_is_no_score_of_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    calls = 0

    def failing(prompt: str, request: Request) -> str:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise OSError("out of memory")
        return answer(prompt, request)

    made = bench(tmp_path / "a", monkeypatch, CharEngine(failing))
    with pytest.raises(StageError, match=r"out of memory.*What was answered is kept"):
        optimize(made, recipe(optimizer=optimizer), FolderOut(tmp_path / "out"))


def test_failed_runs_count_as_zero_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PROGRAM.replace("return self.say", "assert not x.endswith('3')\n        return self.say")
    made, out = bench(tmp_path / "a", monkeypatch, source=source), FolderOut(tmp_path / "out")
    metrics = optimize(made, recipe(optimizer="bootstrap"), out)
    assert metrics["statuses"]["program_error"] >= 1
    assert "AssertionError" in metrics["first_error"]


def test_an_endless_run_ends_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PROGRAM.replace("return self.say", "import time; time.sleep(5)\n        return self.say")
    made = bench(tmp_path / "a", monkeypatch, source=source)
    document = recipe(optimizer="bootstrap").model_dump()
    document["program"]["timeout_s"] = 0.3
    monkeypatch.setattr("stages.prompting.service.PATIENCE_S", 0.1)
    with pytest.raises(StageError, match=r"took longer than 0.3 s"):
        optimize(made, Recipe.model_validate(document), FolderOut(tmp_path / "out"))


def test_async_programs_and_metrics_are_optimized_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PROGRAM.replace("def forward", "async def aforward").replace("def metric", "async def metric")
    source = source.replace(
        "return self.say(thought=self.think(x=x).thought)",
        "return await self.say.acall(thought=(await self.think.acall(x=x)).thought)",
    )
    made, out = bench(tmp_path / "a", monkeypatch, source=source), FolderOut(tmp_path / "out")
    assert optimize(made, recipe(optimizer="bootstrap"), out)["score"] > 0


def test_every_needs_an_optimizer() -> None:
    with pytest.raises(ValueError, match="`every` needs an `optimizer`"):
        PromptsSection(every=2)
    section = PromptsSection(optimizer="mipro", every=2)
    assert [index for index in range(6) if section.due(index)] == [0, 2, 4]


def test_the_defaults_of_mipro_are_the_papers() -> None:
    section = PromptsSection(optimizer="mipro")
    assert (section.trials, section.demo_candidates, section.instruction_candidates) == (12, 12, 6)
    assert (section.validation, section.auto) == (0.8, "medium")


def test_a_program_that_is_one_predictor_is_optimized_and_its_state_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

def program():
    made = dspy.Predict("x -> y")
    made.adapter = PlainAdapter()
    return made

def metric(example, output, calls):
    return float(len(calls[0]["messages"]) > 2)
"""
    made, out = bench(tmp_path / "a", monkeypatch, source=source), FolderOut(tmp_path / "out")
    chosen = recipe(optimizer="bootstrap")
    metrics = optimize(made, chosen, out)
    assert (metrics["score_before"], metrics["score"]) == (0.0, 1.0)
    frozen = load_program(chosen, made.root, out.folder / "state.json")
    assert frozen.module.demos
    other = load_program(chosen, made.root).module
    other.load(out.folder / "state.json")
    assert other.dump_state() == frozen.module.dump_state()


def test_instructions_alone_are_optimized_where_no_demonstrations_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = bench(tmp_path / "a", monkeypatch), FolderOut(tmp_path / "out")
    metrics = optimize(made, recipe(bootstrapped_demos=0, labeled_demos=0, trials=6), out)
    assert metrics["demos"] == {"think": 0, "say": 0}
    assert len({row["instructions_digest"] for row in trials(out)}) > 1
    with pytest.raises(ValueError, match="labeled_demos = 0 for instructions alone"):
        PromptsSection(optimizer="mipro", bootstrapped_demos=0)


def test_a_metric_may_ask_a_judge_whose_calls_are_none_of_the_optimizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        PROGRAM[: PROGRAM.index("def metric")]
        + """
def metric(example, output, calls, call):
    asked = [{"role": "user", "content": "judge " + output.y}]
    return float(call("grade", asked, lm="judge").text == "good")
"""
    )
    graded: list[str] = []

    def judging(prompt: str, request: Request) -> str:
        if prompt.startswith("judge"):
            graded.append(prompt)
            return "bad" if "nothing" in prompt else "good"
        return answer(prompt, request)

    monkeypatch.setenv("MMGRPO_CACHE", str(tmp_path / "cache"))
    made, out = bench(tmp_path / "a", monkeypatch, CharEngine(judging), source=source), FolderOut(tmp_path / "out")
    document = recipe(optimizer="bootstrap").model_dump()
    document["lms"] = {"judge": {"kind": "base"}}
    metrics = optimize(made, Recipe.model_validate(document), out)
    assert metrics["score"] > metrics["score_before"]
    assert len(graded) == len(set(graded)), "a question was paid for twice"
    assert metrics["calls"] == metrics["demo_calls"]["calls"] + sum(row["calls"] for row in trials(out))
    assert {row["calls"] for row in trials(out)} == {2 * metrics["validation_examples"]}
