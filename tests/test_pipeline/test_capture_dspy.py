"""DSPy programs under capture: predictors by path, retries as attempts, threads in their run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import AdapterParseError

from pipeline.capture import Capture
from tests.test_pipeline.capture_kit import PROMPT, ChatServer, answer, calls, roots, scores, spans


class Answer(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = dspy.Predict("question -> search")
        self.answer = dspy.ChainOfThought("question, search -> answer")

    def forward(self, question: str) -> Any:
        search = self.query(question=question).search
        return self.answer(question=question, search=search)


REPLY = {"search": "s", "reasoning": "r", "answer": "a"}


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    made = Capture(tmp_path / "traces", policy="abc")
    yield made
    made.close()


def lm(*replies: dict[str, str]) -> DummyLM:
    return DummyLM([dict(reply) for reply in replies])


def folder(capture: Capture) -> Path:
    assert capture.flush()
    return capture._writer._folder


def test_a_program_outside_of_a_run_is_a_run_with_its_predictors_as_modules(capture: Capture) -> None:
    with dspy.context(lm=lm(REPLY, REPLY), callbacks=[capture.dspy()]):
        Answer()(question="q")
    (root,) = roots(folder(capture))
    assert (root.name, root.inputs, root.error) == ("Answer", {"question": "q"}, None)
    assert root.outputs == {"reasoning": "r", "answer": "a"}
    found = calls(folder(capture))
    assert [(span.module, span.attempt, span.policy) for span in found] == [
        ("query", 0, "abc"),
        ("answer.predict", 0, "abc"),
    ]
    assert all(span.call and span.call.messages[0]["role"] == "system" and span.call.completion for span in found)
    predictors = {span.span: span for span in spans(folder(capture))}
    above = predictors[found[0].parent or ""]
    assert (above.inputs, above.outputs, above.signature) == ({"question": "q"}, {"search": "s"}, "question -> search")


def test_within_a_run_scores_and_other_calls_belong_together(capture: Capture) -> None:
    program = Answer()
    with dspy.context(lm=lm(REPLY, REPLY), callbacks=[capture.dspy(program)]), capture.run({"question": "q"}) as run:
        run.output(program(question="q").answer)
        run.score("good", 1)
        run.call("after", [{"role": "user", "content": "x"}], "y")
    (root,) = roots(folder(capture))
    assert root.outputs == "a"
    assert [span.module for span in calls(folder(capture))] == ["query", "answer.predict", "after"]
    assert scores(folder(capture))[0].trace == root.trace


def test_a_second_lm_call_of_one_predictor_call_is_its_next_attempt(capture: Capture) -> None:
    replies = DummyLM([{"nothing": "x"}, REPLY, REPLY])
    program = dspy.Predict("question -> search")
    told = dspy.context(lm=replies, callbacks=[capture.dspy()], adapter=dspy.ChatAdapter())
    with told, pytest.raises(AdapterParseError):
        program(question="q")  # the fallback to JSON asks again, and the dummy does not write JSON either
    found = calls(folder(capture))
    assert [(span.module, span.attempt) for span in found] == [("self", 0), ("self", 1)]


def test_a_failed_program_raises_as_before_and_its_run_has_the_error(capture: Capture) -> None:
    class Broken(Answer):
        def forward(self, question: str) -> Any:
            self.query(question=question)
            raise KeyError(question)

    with dspy.context(lm=lm(REPLY), callbacks=[capture.dspy()]), pytest.raises(KeyError):
        Broken()(question="q")
    (root,) = roots(folder(capture))
    assert root.error == "KeyError: 'q'"
    assert len(calls(folder(capture))) == 1


def test_threads_that_dspy_starts_stay_in_the_run_and_parallel_runs_apart(capture: Capture) -> None:
    class Fan(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = dspy.Predict("question -> search")

        def forward(self, question: str) -> Any:
            pairs = [(self.part, dspy.Example(question=f"{question}{n}").with_inputs("question")) for n in range(3)]
            return dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs)

    always = DummyLM([REPLY] * 20)
    with dspy.context(lm=always, callbacks=[capture.dspy()]):
        Fan()(question="q")
        fan = Fan()
        asked = [(fan.part, dspy.Example(question=str(n)).with_inputs("question")) for n in range(4)]
        dspy.Parallel(num_threads=2, disable_progress_bar=True)(asked)
    found = roots(folder(capture))
    assert [root.name for root in found].count("Fan") == 1
    assert [root.name for root in found].count("Predict") == 4
    inner = [span for span in calls(folder(capture)) if span.trace == found[0].trace]
    assert [span.module for span in inner] == ["part"] * 3


async def _acall(capture: Capture) -> None:
    program = dspy.ChainOfThought("question -> answer")
    with dspy.context(lm=lm(REPLY), callbacks=[capture.dspy()]):
        await program.acall(question="q")


def test_async_programs_are_captured(capture: Capture) -> None:
    import asyncio

    asyncio.run(_acall(capture))
    assert [span.module for span in calls(folder(capture))] == ["predict"]


def test_copies_that_best_of_n_makes_keep_their_paths(capture: Capture) -> None:
    best = dspy.BestOfN(dspy.ChainOfThought("question -> answer"), N=2, reward_fn=lambda *_: 0.0, threshold=1.0)
    with dspy.context(lm=lm(REPLY, REPLY), callbacks=[capture.dspy()]):
        best(question="q")
    assert [span.module for span in calls(folder(capture))] == ["module.predict"] * 2


@pytest.mark.parametrize("engine", ["litellm", "lm15"])
def test_ids_and_logprobs_of_the_server_are_kept_and_a_cache_hit_is_told(capture: Capture, engine: str) -> None:
    server = ChatServer(lambda body: {**answer(body), "text": "[[ ## search ## ]]\ns\n\n[[ ## completed ## ]]"})
    # DSPy's own client cannot carry what vLLM wants to be asked for ids: it asks for log-probabilities alone.
    asked = {"extra_body": {"return_token_ids": True}} if engine == "litellm" else {}
    served = dspy.LM("openai/m", api_base=server.url, api_key="key-of-the-user", engine=engine, logprobs=True, **asked)
    question = f"never asked before: {uuid.uuid4()}"
    with dspy.context(lm=served, callbacks=[capture.dspy()]):
        for _ in range(2):
            dspy.Predict("question -> search")(question=question)
    server.close()
    first, second = (span.call for span in calls(folder(capture)))
    assert first is not None
    assert second is not None
    assert first.logprobs == second.logprobs == (-0.5, -0.25)
    assert first.prompt_ids == (tuple(PROMPT) if engine == "litellm" else None)
    assert first.finish_reason == "stop"
    assert first.completion == second.completion
    assert (bool(first.cached), second.cached) == (False, True)
    assert b"key-of-the-user" not in b"".join(path.read_bytes() for path in folder(capture).glob("*"))
