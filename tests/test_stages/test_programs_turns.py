"""Multi-turn modules: what is recorded of a call whose prompt goes on where an earlier call ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from schemas.parquet import read_rows, write_table
from schemas.rollouts import INVOCATIONS
from stages.engines.interface import Request, Result, Sampling
from stages.engines.models import load_tokenizer, resolve_base
from stages.engines.scripted import ScriptedEngine
from stages.programs.dspy_program import dspy_program
from stages.programs.plain_adapter import PlainAdapter
from tests.test_stages.programs_kit import CharEngine, job, one, run_jobs, run_one, session_of

DROPS_REASONING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'].split('</think>')[-1] if message['role'] == 'assistant' else message['content'] }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
)
"""As the templates of reasoning models: earlier turns lose their reasoning."""


LONG = Sampling(temperature=1.0, max_new_tokens=64)


def talk(inputs: dict[str, Any], call: Any) -> str:
    messages: list[dict[str, str]] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"question {turn}"})
        messages.append({"role": "assistant", "content": call("talk", messages).text})
    return messages[-1]["content"]


def scripted(tmp_path: Path, answer: str, template: str | None = None) -> ScriptedEngine:
    tokenizer = load_tokenizer(resolve_base("tiny-random", tmp_path, tmp_path / "cache"))
    if template is not None:
        tokenizer.chat_template = template
    return ScriptedEngine(tokenizer, {"": answer})


def extensions(finished: Any) -> list[int | None]:
    return [row["extends_call"] for row in finished.invocations]


def test_a_turn_that_extends_an_earlier_one_token_for_token_says_so(tmp_path: Path):
    finished = run_one(talk, scripted(tmp_path, "fine"))
    assert extensions(finished) == [None, 0, 1]
    first, second, _ = finished.invocations
    whole = [*first["prompt_ids"], *first["completion_ids"]]
    assert second["prompt_ids"][: len(whole)] == whole
    write_table(finished.invocations, tmp_path / "rows.parquet", INVOCATIONS)
    assert [row["extends_call"] for row in read_rows(tmp_path / "rows.parquet", INVOCATIONS)] == [None, 0, 1]


def test_the_embedded_engine_keeps_the_ids_of_earlier_turns_where_the_tokenizer_does(tmp_path: Path):
    from stages.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(resolve_base("tiny-random", tmp_path, tmp_path / "cache"), "float32", 512)
    assert extensions(run_one(talk, engine)) == [None, 0, 1]


def test_turns_that_the_template_rewrites_stay_separate(tmp_path: Path):
    finished = run_one(talk, scripted(tmp_path, "<think>hm</think>fine", DROPS_REASONING), sampling=LONG)
    assert extensions(finished) == [None, None, None]


def test_sampled_ids_that_read_back_as_others_are_no_extension():
    class Merging(CharEngine):
        """Samples "ab" as one token, and reads it back as two."""

        def _one(self, request: Request) -> Result:
            result = super()._one(request)
            return Result((ord("z") + 1, *result.completion_ids[2:]), result.logprobs[1:], "stop", result.text)

    assert extensions(run_one(talk, Merging(lambda *_: "ab"))) == [None, None, None]


def test_of_several_earlier_calls_the_longest_counts(tmp_path: Path):
    def program(inputs: dict[str, Any], call: Any) -> None:
        ask = [{"role": "user", "content": "q"}]
        first = call("a", ask).text
        call("b", [{"role": "user", "content": "other"}])
        ask += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
        second = call("a", ask).text
        call("a", [*ask, {"role": "assistant", "content": second}, {"role": "user", "content": "more"}])

    assert extensions(run_one(program, scripted(tmp_path, "fine"))) == [None, None, 0, 2]


@pytest.mark.parametrize(("adapter", "extends"), [(dspy.ChatAdapter(), [None, None]), (PlainAdapter(), [None, 0])])
def test_a_dspy_history_is_sent_as_messages(tmp_path: Path, adapter: Any, extends: list[int | None]):
    class Chat(dspy.Signature):
        """Answer."""

        history: dspy.History = dspy.InputField()
        question: str = dspy.InputField()
        answer: str = dspy.OutputField()

    class Talk(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.adapter, self.talk = adapter, dspy.Predict(Chat)

        def forward(self, x: str) -> Any:
            first = self.talk(question=x, history=dspy.History(messages=[]))
            return self.talk(question="why?", history=dspy.History(messages=[{"question": x, "answer": first.answer}]))

    text = "fine" if isinstance(adapter, PlainAdapter) else "[[ ## answer ## ]]\nfine"
    program = dspy_program(Talk(), None, one)
    finished = run_jobs(program, [job()], session_of(scripted(tmp_path, text), sampling=LONG))[0]
    assert finished.outcome.status == "ok", finished.outcome.error
    roles = [message["role"] for message in json.loads(finished.invocations[1]["messages"])]
    assert roles == ["system", "user", "assistant", "user"]
    assert extensions(finished) == extends
    assert json.loads(finished.invocations[1]["inputs"])["history"] == {
        "messages": [{"question": "a", "answer": "fine"}]
    }
