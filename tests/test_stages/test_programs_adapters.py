"""DSPy's adapters and its modules that make calls of their own: typed fields, demonstrations, tools, advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import dspy
import pydantic
import pytest
from dspy.adapters.utils import format_field_value

from stages.engines.interface import Request, Sampling
from stages.programs.dspy_program import dspy_program
from stages.programs.plain_adapter import PlainAdapter
from tests.test_stages.programs_kit import CharEngine, job, one, run_jobs, session_of

LONG = Sampling(temperature=1.0, max_new_tokens=1000)


class Item(pydantic.BaseModel):
    name: str
    count: int


class Typed(dspy.Signature):
    """Fill in."""

    x: str = dspy.InputField()
    label: Literal["a", "b"] = dspy.OutputField()
    number: int = dspy.OutputField()
    tags: list[str] = dspy.OutputField()
    item: Item = dspy.OutputField()


ADAPTERS = {
    "chat": dspy.ChatAdapter,
    "json": dspy.JSONAdapter,
    "xml": dspy.XMLAdapter,
    "plain": PlainAdapter,
}
VALUES = {"label": "a", "number": 3, "tags": ["t"], "item": {"name": "n", "count": 2}}


def written(kind: str, values: dict[str, Any]) -> str:
    """Output fields as each adapter asks for them."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    if kind == "json":
        return json.dumps(values)
    if kind == "chat":
        return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items())
    if kind == "xml":
        return "\n".join(f"<{name}>{text}</{name}>" for name, text in texts.items())
    return "\n".join(f"{name.capitalize()}: {text}" for name, text in texts.items())


class Ask(dspy.Module):
    def __init__(self, adapter: Any, signature: Any = Typed) -> None:
        super().__init__()
        self.adapter, self.ask = adapter, dspy.Predict(signature)

    def forward(self, x: str) -> Any:
        return self.ask(x=x)


def run(module: Any, engine: Any, **session: Any) -> Any:
    program = dspy_program(module, None, one)
    return run_jobs(program, [job()], session_of(engine, **{"sampling": LONG, **session}))[0]


@pytest.mark.parametrize("kind", ADAPTERS)
def test_typed_fields_come_back_as_their_types_through_every_adapter(kind: str):
    finished = run(Ask(ADAPTERS[kind]()), CharEngine(lambda *_: written(kind, VALUES)))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert json.loads(finished.outcome.output) == VALUES
    assert json.loads(finished.invocations[0]["outputs"]) == VALUES


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"label": "a", "number": 3}, 0.5),
        ({**VALUES, "label": "q"}, 0.75),
        ({**VALUES, "number": "many", "item": {"name": "n"}}, 0.5),
        ({}, 0.0),
    ],
    ids=["two missing", "label of none", "two of a wrong type", "nothing"],
)
def test_a_field_of_a_wrong_type_costs_its_share_and_no_other_whatever_the_adapter(
    kind: str, values: dict[str, Any], share: float
):
    answers = iter([written(kind, values), written(kind, VALUES)])
    finished = run(Ask(ADAPTERS[kind]()), CharEngine(lambda *_: next(answers)))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert [(row["attempt"], row["parse_status"], row["parsed_share"]) for row in finished.invocations] == [
        (0, "failed", share),
        (1, "ok", 1.0),
    ]


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_only_field_of_a_wrong_type_is_a_share_of_nothing(kind: str):
    engine = CharEngine(lambda *_: written(kind, {"label": "q"}) if kind != "plain" else "q")
    single = dspy.Signature("x: str -> label: Literal['a', 'b']")
    finished = run(Ask(ADAPTERS[kind](), single), engine, parse_retries=0)
    assert finished.outcome.status == "parse_failed"
    assert finished.invocations[0]["parsed_share"] == 0.0


@pytest.mark.parametrize("kind", ADAPTERS)
def test_demonstrations_are_in_the_recorded_prompt_token_for_token(tmp_path: Path, kind: str):
    from stages.engines.models import load_tokenizer, resolve_base
    from stages.engines.scripted import ScriptedEngine

    base = resolve_base("tiny-random", tmp_path, tmp_path / "cache")
    module = Ask(ADAPTERS[kind]())
    module.ask.demos = [dspy.Example(x="asked before", **{**VALUES, "tags": ["told before"]})]
    finished = run(module, ScriptedEngine(base, {"": written(kind, VALUES)}, context=20_000))
    sent = ADAPTERS[kind]().format(Typed, module.ask.demos, {"x": "a"})
    row = finished.invocations[0]
    assert json.loads(row["messages"]) == sent
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert "asked before" in sent[1]["content"]
    assert "told before" in sent[2]["content"]
    ids = load_tokenizer(base).apply_chat_template(sent, add_generation_prompt=True, return_dict=False)
    assert list(row["prompt_ids"]) == list(ids)


def test_demonstrations_of_a_saved_state_are_sent_and_a_folder_is_told_what_to_be(tmp_path: Path):
    from schemas.errors import RecipeError
    from tests.test_stages.programs_kit import ASK_IN_DSPY, load_source

    optimised = Ask(None, "x -> y")
    optimised.ask.demos = [dspy.Example(x="asked before", y="told before")]
    optimised.save(tmp_path / "state.json")
    program = load_source(tmp_path, ASK_IN_DSPY, program={"state": "state.json"})
    engine = CharEngine(lambda *_: written("chat", {"y": "v"}))
    row = run_jobs(program, [job()], session_of(engine, sampling=LONG))[0].invocations[0]
    assert "asked before" in row["messages"]
    assert "told before" in row["messages"]
    optimised.save(tmp_path / "whole", save_program=True)
    with pytest.raises(RecipeError, match=r"program.save\('whole.json'\)"):
        load_source(tmp_path, ASK_IN_DSPY, program={"state": "whole"})


def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


class Agent(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.agent = dspy.ReAct("x -> y", tools=[search], max_iters=4)

    def forward(self, x: str) -> Any:
        return self.agent(x=x)


def act(prompt: str, request: Request) -> str:
    if "next_tool_name" not in prompt:
        return written("chat", {"reasoning": "r", "y": "done"})
    tool, args = ("finish", {}) if "found q" in prompt else ("search", {"query": "q"})
    return written("chat", {"next_thought": "t", "next_tool_name": tool, "next_tool_args": args})


def test_an_agent_with_tools_is_two_modules_of_which_one_is_called_in_a_loop():
    finished = run(Agent(), CharEngine(act))
    assert json.loads(finished.outcome.output)["y"] == "done"
    assert [(row["module"], row["invocation_index"]) for row in finished.invocations] == [
        ("agent.react", 0),
        ("agent.react", 1),
        ("agent.extract.predict", 0),
    ]
    assert "found q" in finished.invocations[1]["messages"]
    assert json.loads(finished.invocations[0]["outputs"])["next_tool_args"] == {"query": "q"}


def test_a_tool_that_is_not_there_is_an_attempt_of_the_agents_module():
    wrong = written("chat", {"next_thought": "t", "next_tool_name": "shell", "next_tool_args": {}})
    finished = run(Agent(), CharEngine(lambda *_: wrong), parse_retries=1)
    assert finished.outcome.status == "parse_failed"
    assert [(row["module"], row["attempt"], row["parsed_share"]) for row in finished.invocations] == [
        ("agent.react", 0, pytest.approx(2 / 3)),
        ("agent.react", 1, pytest.approx(2 / 3)),
    ]


def test_an_agent_goes_on_without_what_its_context_has_no_room_for():
    def never_done(prompt: str, request: Request) -> str:
        if "next_tool_name" not in prompt:
            return written("chat", {"reasoning": "r", "y": "done"})
        return written(
            "chat", {"next_thought": "t", "next_tool_name": "search", "next_tool_args": {"query": "q" * 300}}
        )

    finished = run(Agent(), CharEngine(never_done, context=3900))
    assert finished.outcome.status == "ok", finished.outcome.error
    reasons = [row["finish_reason"] for row in finished.invocations if row["module"] == "agent.react"]
    assert "context_overflow" in reasons
    assert reasons[0] == "stop"


def test_tools_may_be_inputs_of_a_module():
    class Pick(dspy.Signature):
        x: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    class Picks(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pick = dspy.Predict(Pick)

        def forward(self, x: str) -> Any:
            return self.pick(x=x, tools=[dspy.Tool(search)])

    calls = {"tool_calls": [{"name": "search", "args": {"query": "a"}}]}
    finished = run(Picks(), CharEngine(lambda *_: written("chat", {"calls": calls})))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert "Look something up." in finished.invocations[0]["messages"]


def test_an_input_without_a_json_form_is_left_out_of_the_record_and_no_failure():
    class Thing:
        def __str__(self) -> str:
            return "the thing"

    class Things(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("x, thing -> y")

        def forward(self, x: str) -> Any:
            return self.ask(x=x, thing=Thing())

    finished = run(Things(), CharEngine(lambda *_: written("chat", {"y": "v"})))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert finished.invocations[0]["inputs"] == '{"x":"a"}'


class Tried(dspy.Module):
    """Best of three, by DSPy's module of that kind."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.best = kind(dspy.ChainOfThought("x -> y"), N=3, reward_fn=lambda *_: 0.0, threshold=1.0)

    def forward(self, x: str) -> Any:
        return self.best(x=x)


def advise(prompt: str, request: Request) -> str:
    if "assign blame" in prompt:
        return written("chat", {"discussion": "d", "advice": {"predict": "be brief"}})
    return written("chat", {"reasoning": "r", "y": "done"})


def test_copies_that_refine_makes_keep_their_paths_and_its_advice_is_a_module_too():
    finished = run(Tried(dspy.Refine), CharEngine(advise))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert [(row["module"], row["invocation_index"]) for row in finished.invocations] == [
        ("best.module.predict", 0),
        ("best.advice", 0),
        ("best.module.predict", 1),
        ("best.advice", 1),
        ("best.module.predict", 2),
    ]
    assert [row["parse_status"] for row in finished.invocations] == ["ok"] * 5
    assert "A hint to the module" in finished.invocations[2]["messages"]
    assert not any(row["concurrent"] for row in finished.invocations)


def test_dspy_calls_nothing_back_in_a_program_without_refine():
    class Looking(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("x -> y")

        def forward(self, x: str) -> Any:
            self.ask(x=x)
            return [type(callback).__name__ for callback in dspy.settings.callbacks]

    class Refining(Looking):
        def __init__(self) -> None:
            super().__init__()
            self.best = dspy.Refine(dspy.Predict("x -> y"), N=2, reward_fn=lambda *_: 0.0, threshold=1.0)

    assert run(Looking(), CharEngine(advise)).outcome.output == "[]"
    assert run(Refining(), CharEngine(advise)).outcome.output == '["AdviceIsAModule"]'


@pytest.mark.parametrize("value", ["", "two\nlines", 'a "b" \\ é \x00', '{"a": 1}', "[1, 2]", "3", "None"])
def test_the_plain_adapter_writes_a_text_as_dspy_does(value: str):
    signature = dspy.ensure_signature("x -> y")
    field = signature.input_fields["x"]
    assert PlainAdapter().format_user_message_content(signature, {"x": value}) == format_field_value(field, value)


def test_a_module_in_a_loop_has_an_invocation_each_time_round():
    class Loop(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = [dspy.Predict("x -> y"), dspy.ChainOfThought("x -> y")]

        def forward(self, x: str) -> Any:
            for _ in range(3):
                x = self.steps[1](x=self.steps[0](x=x).y).y
            return dspy.Prediction(y=x)

    finished = run(Loop(), CharEngine(advise))
    assert [(row["module"], row["invocation_index"]) for row in finished.invocations] == [
        (module, index) for index in range(3) for module in ("steps[0]", "steps[1].predict")
    ]


def test_a_failure_downstream_is_charged_to_its_module_with_the_prompt_that_it_was_sent():
    class Chain(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = dspy.Predict("x -> y"), dspy.Predict("y -> z, w")
            self.second.demos = [dspy.Example(y="shown before", z="1", w="2")]

        def forward(self, x: str) -> Any:
            return self.second(y=self.first(x=x).y)

    def half(prompt: str, request: Request) -> str:
        return written("chat", {"z": "1"} if "shown before" in prompt else {"y": "from the first"})

    finished = run(Chain(), CharEngine(half), parse_retries=1)
    assert finished.outcome.status == "parse_failed"
    assert [
        (row["module"], row["attempt"], row["parse_status"], row["parsed_share"]) for row in finished.invocations
    ] == [
        ("first", 0, "ok", 1.0),
        ("second", 0, "failed", 0.5),
        ("second", 1, "failed", 0.5),
    ]
    failed = finished.invocations[-1]
    assert failed["inputs"] == '{"y":"from the first"}'
    assert "from the first" in json.loads(failed["messages"])[-1]["content"]
    assert "shown before" in failed["messages"]
