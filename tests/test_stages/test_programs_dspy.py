"""DSPy programs: which module a call belongs to, what was sent, retries, saved prompts."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import dspy
import pytest

from schemas.errors import RecipeError
from schemas.recipe_data import OtherLM
from stages.engines.interface import Request
from stages.programs.dspy_engine import program_lm
from stages.programs.dspy_program import dspy_program
from tests.test_stages.programs_kit import CharEngine, decode, job, load_source, recipe_of, run_jobs, session_of


def field(name: str, value: str) -> str:
    return f"[[ ## {name} ## ]]\n{value}\n\n[[ ## completed ## ]]"


def score(example: Any, output: Any, calls: Any, judge: Any = None) -> float:
    return 1.0


class Twins(dspy.Module):
    """Two predictors of one signature."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict("x -> y")
        self.inner = Inner()

    def forward(self, x: str) -> Any:
        return self.inner(x=self.first(x=x).y)


class Inner(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = dspy.Predict("x -> y")

    def forward(self, x: str) -> Any:
        return self.second(x=x)


def run(module: Any, engine: Any, jobs: Any = None, saved: Any = None, **session: Any) -> Any:
    return run_jobs(dspy_program(module, saved, score), jobs or [job()], session_of(engine, **session))


def always(text: str) -> CharEngine:
    return CharEngine(lambda prompt, request: text)


def test_two_predictors_of_one_signature_are_two_modules():
    program = dspy_program(Twins(), None, score)
    assert program.modules == ("first", "inner.second")
    runs = run_jobs(program, [job(index) for index in range(4)], session_of(always(field("y", "v"))))
    for finished in runs:
        assert finished.outcome.output == '{"y":"v"}'
        assert [(row["module"], row["invocation_index"]) for row in finished.invocations] == [
            ("first", 0),
            ("inner.second", 0),
        ]
        assert finished.invocations[0]["inputs"] == '{"x":"a"}'
        assert finished.invocations[0]["outputs"] == '{"y":"v"}'
        assert finished.invocations[0]["parse_status"] == "ok"


def test_demos_are_in_the_prompt_token_for_token():
    module = Twins()
    module.first.demos = [{"x": "demo question", "y": "demo answer"}]
    seen: list[tuple[int, ...]] = []

    def answer(prompt: str, request: Request) -> str:
        seen.append(request.prompt_ids)
        return field("y", "v")

    engine = CharEngine(answer)
    row = run(module, engine)[0].invocations[0]
    adapter = dspy.ChatAdapter()
    sent = adapter.format(module.first.signature, module.first.demos, {"x": "a"})
    assert json.loads(row["messages"]) == sent
    assert tuple(row["prompt_ids"]) == engine.encode_chat(sent) == seen[0]
    assert "demo question" in decode(row["prompt_ids"])
    assert "demo answer" in decode(row["prompt_ids"])


def test_a_completion_that_does_not_parse_is_tried_again_with_its_parsed_share():
    class Pair(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = dspy.Predict("x -> y, z")

        def forward(self, x: str) -> Any:
            return self.pair(x=x)

    answers = iter([field("y", "half"), "nothing", "[[ ## y ## ]]\n1\n[[ ## z ## ]]\n2"])
    finished = run(Pair(), CharEngine(lambda *_: next(answers)))[0]
    assert finished.outcome.output == '{"y":"1","z":"2"}'
    assert [(row["attempt"], row["parse_status"], row["parsed_share"]) for row in finished.invocations] == [
        (0, "failed", 0.5),
        (1, "failed", 0.0),
        (2, "ok", 1.0),
    ]
    assert {row["invocation_index"] for row in finished.invocations} == {0}


def test_a_predictor_that_never_parses_ends_the_run_without_a_second_call_in_json():
    finished = run(Twins(), always("no fields"), parse_retries=2)[0]
    assert finished.outcome.status == "parse_failed"
    assert [row["attempt"] for row in finished.invocations] == [0, 1, 2]
    assert "JSON" not in finished.invocations[-1]["messages"]


def test_each_of_several_completions_is_an_invocation():
    class Vote(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vote = dspy.Predict("x -> y", n=3)

        def forward(self, x: str) -> Any:
            return dspy.Prediction(y=",".join(self.vote(x=x).completions.y))

    answers = iter("abc")
    finished = run(Vote(), CharEngine(lambda *_: field("y", next(answers))))[0]
    assert finished.outcome.output == '{"y":"a,b,c"}'
    assert [(row["invocation_index"], row["outputs"]) for row in finished.invocations] == [
        (0, '{"y":"a"}'),
        (1, '{"y":"b"}'),
        (2, '{"y":"c"}'),
    ]


def test_copies_that_dspy_makes_keep_their_paths():
    class Best(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.best = dspy.BestOfN(dspy.ChainOfThought("x -> y"), N=3, reward_fn=lambda *_: 0.0, threshold=1.0)

        def forward(self, x: str) -> Any:
            return self.best(x=x)

    completion = "[[ ## reasoning ## ]]\nr\n[[ ## y ## ]]\nv"
    program = dspy_program(Best(), None, score)
    finished = run_jobs(program, [job()], session_of(always(completion)))[0]
    assert finished.outcome.status == "ok"
    assert [row["module"] for row in finished.invocations] == list(program.modules or ()) * 3
    assert [row["invocation_index"] for row in finished.invocations] == [0, 1, 2]
    assert len({row["seed"] for row in finished.invocations}) == 3


def test_async_predictors_are_numbered_in_order_of_submission():
    class Branches(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = dspy.Predict("x -> y")

        async def aforward(self, x: str) -> Any:
            results = await asyncio.gather(*(self.branch.acall(x=f"{x}{index}") for index in range(4)))
            return dspy.Prediction(y=[result.y for result in results])

    engine = CharEngine(lambda prompt, request: field("y", prompt.split("[[ ## x ## ]]\n")[-1][:2]))
    finished = run(Branches(), engine)[0]
    assert finished.outcome.output == '{"y":["a0","a1","a2","a3"]}'
    assert [row["inputs"] for row in finished.invocations] == [f'{{"x":"a{index}"}}' for index in range(4)]
    assert [row["invocation_index"] for row in finished.invocations] == [0, 1, 2, 3]
    assert not any(row["concurrent"] for row in finished.invocations)


def test_a_predictor_made_while_running_is_refused():
    class Late(dspy.Module):
        def forward(self, x: str) -> Any:
            return dspy.Predict("x -> y")(x=x)

    outcome = run(Late(), always(field("y", "v")))[0].outcome
    assert outcome.status == "program_error"
    assert "create it in __init__" in (outcome.error or "")


def test_an_lm_that_would_go_unrecorded_is_refused():
    module = Twins()
    module.inner.second.lm = dspy.LM("openai/some-model")
    with pytest.raises(RecipeError, match=r"'inner.second' has an LM of its own \(openai/some-model\)"):
        dspy_program(module, None, score)


@pytest.mark.parametrize("way", ["context", "argument"])
def test_an_lm_chosen_while_running_is_refused_before_it_is_called(way: str):
    other = dspy.LM("openai/some-model", api_key="k")

    class Straying(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("x -> y")

        def forward(self, x: str) -> Any:
            if way == "argument":
                return self.ask(x=x, lm=other)
            with dspy.context(lm=other):
                return self.ask(x=x)

    outcome = run(Straying(), always(field("y", "v")))[0].outcome
    assert outcome.status == "program_error"
    assert "'ask' was called with another LM (openai/some-model)" in (outcome.error or "")


def test_another_lm_of_the_recipe_is_recorded_as_not_trained():
    module = Twins()
    module.inner.second.lm = program_lm("helper")
    finished = run(module, always(field("y", "v")), lms={"helper": OtherLM()})[0]
    assert [(row["lm"], row["trainable"], row["temperature"]) for row in finished.invocations] == [
        ("student", True, 1.0),
        ("helper", False, 0.0),
    ]


def test_a_saved_state_is_loaded_and_is_part_of_the_identity(tmp_path):
    optimised = Twins()
    optimised.first.demos = [dspy.Example(x="q", y="r")]
    optimised.first.signature = optimised.first.signature.with_instructions("Say it well.")
    optimised.set_lm(dspy.LM("openai/some-model"))
    optimised.save(tmp_path / "state.json")
    saved = {
        name: value for name, value in json.loads((tmp_path / "state.json").read_text()).items() if name != "metadata"
    }
    program = dspy_program(Twins(), saved, score)
    assert program.state["first"]["signature"]["instructions"] == "Say it well."
    assert program.state["first"]["lm"] is None
    assert program.state != dspy_program(Twins(), None, score).state
    row = run(Twins(), always(field("y", "v")), saved=saved)[0].invocations[0]
    assert "Say it well." in row["messages"]
    with pytest.raises(RecipeError, match="state of another program: it has the predictors first, inner"):
        dspy_program(Inner(), saved, score)


def test_the_programs_own_adapter_is_used():
    module = Twins()
    module.adapter = dspy.JSONAdapter()
    finished = run(module, always('{"y": "v"}'))[0]
    assert finished.outcome.output == '{"y":"v"}'
    assert "JSON" in finished.invocations[0]["messages"]


def test_a_prompt_over_the_context_limit_is_context_overflow():
    finished = run(Twins(), CharEngine(lambda *_: "", context=10))[0]
    assert finished.outcome.status == "context_overflow"


def test_settings_of_a_predictor_reach_the_engine():
    class Cold(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cold = dspy.Predict("x -> y", temperature=0.2, max_tokens=5)

        def forward(self, x: str) -> Any:
            return self.cold(x=x)

    row = run(Cold(), always(field("y", "v")))[0].invocations[0]
    assert (row["temperature"], row["max_new_tokens"]) == (0.2, 5)


def test_plain_fields_are_chat_turns_and_come_back(tmp_path):
    from stages.programs.plain_adapter import PlainAdapter

    module = Twins()
    module.adapter = PlainAdapter()
    module.first.signature = module.first.signature.with_instructions("Rename it.")
    module.first.demos = [{"x": "cat", "y": "dog"}]
    finished = run(module, always(" mouse\n"))[0]
    assert finished.outcome.output == '{"y":"mouse"}'
    assert json.loads(finished.invocations[0]["messages"]) == [
        {"role": "system", "content": "Rename it."},
        {"role": "user", "content": "cat"},
        {"role": "assistant", "content": "dog"},
        {"role": "user", "content": "a"},
    ]
    assert run(module, always("  "), parse_retries=0)[0].outcome.status == "parse_failed"


def test_several_plain_fields_are_lines_and_their_share_is_counted():
    from stages.programs.plain_adapter import PlainAdapter

    class Pair(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter = PlainAdapter()
            self.pair = dspy.Predict(dspy.Signature("x -> long_name, count: int", "Count."))

        def forward(self, x: str) -> Any:
            return self.pair(x=x)

    answers = iter(["Long name: n\nCount: many", "Count: 3", "LONG NAME: n\nm\nCount: 3"])
    finished = run(Pair(), CharEngine(lambda *_: next(answers)))[0]
    assert finished.outcome.output == '{"count":3,"long_name":"n\\nm"}'
    assert [row["parsed_share"] for row in finished.invocations] == [0.5, 0.5, 1.0]
    assert "Answer in exactly these lines:\\nLong name: …\\nCount: …" in json.dumps(
        json.loads(finished.invocations[0]["messages"]), ensure_ascii=False
    )


def test_a_dspy_program_is_found_by_import_path_and_identified_with_its_state(tmp_path):
    from schemas.canonical import canonical_json, digest
    from stages.programs.load import program_identity
    from tests.test_stages.programs_kit import ASK_IN_DSPY

    program = load_source(tmp_path, ASK_IN_DSPY)
    finished = run_jobs(program, [job()], session_of(always(field("y", "v"))))[0]
    assert (finished.outcome.score, finished.invocations[0]["module"]) == (1.0, "ask")
    plain = program_identity(recipe_of(), tmp_path)
    assert plain["modules"] == ["ask"]
    state = {**copy.deepcopy(plain["state"]), "metadata": {"dependency_versions": {"dspy": "3.4", "python": "3.11"}}}
    state["ask"]["demos"] = [{"x": "q", "y": "r"}]
    (tmp_path / "state.json").write_text(json.dumps(state))
    optimised = program_identity(recipe_of(program={"state": "state.json"}), tmp_path)
    assert digest(optimised) != digest(plain)
    assert optimised["state"]["ask"]["demos"] == [{"x": "q", "y": "r"}]
    assert "dependency_versions" not in canonical_json(optimised)


def test_the_prompt_is_what_the_models_template_makes_of_the_demos(tmp_path):
    from stages.engines.models import load_tokenizer, resolve_base
    from stages.engines.scripted import ScriptedEngine

    base = resolve_base("tiny-random", tmp_path, tmp_path / "cache")
    module = Twins()
    module.first.demos = [{"x": "demo question", "y": "demo answer"}]
    finished = run(module, ScriptedEngine(base, {"": field("y", "v")}, context=10_000))[0]
    row = finished.invocations[0]
    messages = json.loads(row["messages"])
    ids = load_tokenizer(base).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(row["prompt_ids"]) == list(ids)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert "demo answer" in messages[2]["content"]


def test_equal_calls_of_two_rollouts_are_two_draws_though_dspys_cache_is_on():
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    engine = CharEngine(lambda prompt, request: field("y", str(request.seed)))
    runs = run(Inner(), engine, [job(0), job(1)])
    assert len({finished.outcome.output for finished in runs}) == 2
    assert sum(engine.batches) == 2
