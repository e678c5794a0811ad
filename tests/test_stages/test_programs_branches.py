"""Calls that overlap: their place is the program's order of submission, or they are marked."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest

from schemas.errors import ParseError
from stages.engines.interface import Request
from stages.programs.dspy_program import dspy_program
from tests.test_stages.programs_kit import CharEngine, job, one, run_jobs, run_one, session_of, user

Pauses = Callable[[int], float]
SLOW_FIRST: Pauses = lambda index: 0.06 * (3 - index)  # noqa: E731
SLOW_LAST: Pauses = lambda index: 0.06 * index  # noqa: E731


def echo(prompt: str, request: Request) -> str:
    return f"{prompt.strip()}{request.seed % 10}"


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int, str]]:
    return [
        (row["module"], row["invocation_index"], row["call_index"], row["messages"].split('"')[3][:2]) for row in rows
    ]


def forked(pause: Pauses) -> Any:
    async def branch(index: int, call: Any) -> None:
        for step in range(1 + index % 2):
            await asyncio.sleep(pause(index))
            await call("step", user(f"{index}{step}"))

    async def program(inputs: Any, call: Any) -> None:
        await call("step", user("00"))
        await asyncio.gather(*(branch(index, call) for index in range(1, 4)))
        await call("step", user("90"))

    return program


def test_branches_of_an_async_program_stand_as_if_each_had_run_before_the_next():
    rows = run_one(forked(SLOW_FIRST), CharEngine(echo)).invocations
    prompts = ["00", "10", "11", "20", "30", "31", "90"]
    assert places(rows) == [("step", index, index, prompt) for index, prompt in enumerate(prompts)]
    assert not any(row["concurrent"] for row in rows)
    assert len({row["seed"] for row in rows}) == 7


def test_rows_of_branches_do_not_depend_on_which_is_faster():
    slow_first, slow_last = (run_one(forked(pause), CharEngine(echo)) for pause in (SLOW_FIRST, SLOW_LAST))
    assert slow_first.invocations == slow_last.invocations


@pytest.mark.parametrize("apart_s", [0.0, 0.1])
def test_calls_of_own_threads_are_marked_whether_they_happen_to_overlap_or_not(apart_s: float):
    def program(inputs: Any, call: Any) -> None:
        call("plan", user("p0"))
        call("step", user("s0"))
        threads = [threading.Thread(target=lambda: call("step", user("s"))) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(apart_s)
        for thread in threads:
            thread.join()

    rows = run_one(program, CharEngine(echo)).invocations
    assert [(row["module"], row["concurrent"]) for row in rows] == [("plan", False), *[("step", True)] * 3]
    assert [row["invocation_index"] for row in rows] == [0, 0, 1, 2]


def test_threads_that_are_given_the_context_of_a_run_are_own_threads_still():
    def program(inputs: Any, call: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            runs = [contextvars.copy_context() for _ in range(2)]
            list(pool.map(lambda context: context.run(call, "step", user("s")), runs))

    assert [row["concurrent"] for row in run_one(program, CharEngine(echo)).invocations] == [True, True]


def test_work_that_an_async_program_awaits_in_threads_is_of_the_task_that_awaits_it():
    def ask(call: Any, prompt: str) -> None:
        time.sleep(SLOW_FIRST(int(prompt[0])))
        asyncio.run_coroutine_threadsafe(call("step", user(prompt)), loops[0]).result()

    loops: list[asyncio.AbstractEventLoop] = []

    async def program(inputs: Any, call: Any) -> None:
        loops.append(asyncio.get_running_loop())
        await asyncio.gather(*(asyncio.to_thread(ask, call, f"{index}0") for index in range(3)))

    rows = run_one(program, CharEngine(echo)).invocations
    assert places(rows) == [("step", index, index, f"{index}0") for index in range(3)]


def test_a_task_group_whose_branches_do_not_parse_is_parse_failed():
    def parse(text: str) -> str:
        raise ParseError([], ["y"])

    async def program(inputs: Any, call: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            for index in range(2):
                tasks.create_task(call("step", user(str(index)), parse=parse, retries=0))

    assert run_one(program, CharEngine(echo)).outcome.status == "parse_failed"


def test_the_first_of_two_branches_that_do_not_parse_makes_the_run_parse_failed():
    def parse(text: str) -> str:
        raise ParseError([], ["y"])

    async def program(inputs: Any, call: Any) -> None:
        calls = [asyncio.ensure_future(call("step", user(str(i)), parse=parse, retries=0)) for i in range(2)]
        await asyncio.wait(calls)
        calls[0].result()

    assert run_one(program, CharEngine(echo)).outcome.status == "parse_failed"


class Step(dspy.Module):
    """Calls its predictor once or twice, after a pause."""

    def __init__(self, pause: Pauses) -> None:
        super().__init__()
        self.step, self.pause = dspy.Predict("x -> y"), pause

    def forward(self, x: str) -> Any:
        index = int(x)
        for turn in range(1 + index % 2):
            time.sleep(self.pause(index))
            answer = self.step(x=f"{index}{turn}")
        return answer


class Parallel(dspy.Module):
    """Items in dspy.Parallel: of an attribute, of one made while running, of `batch`, or of one within another."""

    def __init__(self, way: str, pause: Pauses) -> None:
        super().__init__()
        self.way, self.part = way, Step(pause)
        self.parallel = dspy.Parallel(num_threads=3)

    def forward(self, x: str) -> Any:
        items = [(self.part, {"x": str(index)}) for index in range(3)]
        if self.way == "attribute":
            found = self.parallel(items)
        elif self.way == "while running":
            found = dspy.Parallel(num_threads=3)(items)
        elif self.way == "batch":
            found = self.part.batch([dspy.Example(x=str(index)).with_inputs("x") for index in range(3)], num_threads=3)
        else:
            inner = dspy.Parallel(num_threads=2)
            found = [
                one for part in dspy.Parallel(num_threads=2)([(inner, items[:2]), (inner, items[2:])]) for one in part
            ]
        return dspy.Prediction(y=[answer.y for answer in found])


WAYS = ["attribute", "while running", "batch", "nested"]


def run_parallel(module: Any, count: int = 1) -> list[Any]:
    engine = CharEngine(lambda prompt, request: f"[[ ## y ## ]]\n{request.seed % 1000}\n\n[[ ## completed ## ]]")
    program = dspy_program(module, None, one)
    return run_jobs(program, [job(index) for index in range(count)], session_of(engine))


@pytest.mark.parametrize("way", WAYS)
def test_items_of_dspy_parallel_are_branches_in_the_order_given(way: str):
    runs = run_parallel(Parallel(way, SLOW_FIRST), 2)
    for finished in runs:
        assert finished.outcome.status == "ok", finished.outcome.error
        assert [row["inputs"] for row in finished.invocations] == [f'{{"x":"{x}"}}' for x in ("00", "10", "11", "20")]
        assert [row["invocation_index"] for row in finished.invocations] == [0, 1, 2, 3]
        assert not any(row["concurrent"] for row in finished.invocations)
    assert run_parallel(Parallel(way, SLOW_LAST), 2) == runs


def test_dspy_parallel_makes_no_slow_item_a_second_time():
    class Slow(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("x -> y")

        def forward(self, x: str) -> Any:
            time.sleep(0.5 if x == "slow" else 0.2)
            return self.step(x=x)

    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slow = Slow()

        def forward(self, x: str) -> Any:
            dspy.Parallel(num_threads=4, timeout=0.1)([(self.slow, {"x": "fast"}), (self.slow, {"x": "slow"})])
            time.sleep(0.5)  # a second try would call by now
            return dspy.Prediction(y=1)

    assert len(run_parallel(Program())[0].invocations) == 2


def test_dspy_parallel_outside_runs_is_what_it_was():
    dspy_program(Parallel("attribute", SLOW_FIRST), None, one)
    parallel = dspy.Parallel(num_threads=1, timeout=7, disable_progress_bar=True, return_failed_examples=True)
    results, failed, errors = parallel([(lambda x: 1 / x, {"x": 0}), (lambda x: x, {"x": 5})])
    assert (results, failed) == ([None, 5], [{"x": 0}])
    assert isinstance(errors[0], ZeroDivisionError)
    assert parallel.timeout == 7


def test_failed_items_of_dspy_parallel_are_those_of_their_run():
    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parallel = dspy.Parallel(num_threads=2, return_failed_examples=True)

        def forward(self, x: str) -> Any:
            _, failed, _ = self.parallel([(lambda x: 1 / x, {"x": 0}), (lambda x: x, {"x": 5})])
            return dspy.Prediction(y=len(failed))

    assert [finished.outcome.output for finished in run_parallel(Program(), 3)] == ['{"y":1}'] * 3


def test_a_program_is_made_ready_twice_without_harm():
    module = Parallel("attribute", SLOW_FIRST)
    dspy_program(module, None, one)
    assert run_parallel(module)[0].outcome.status == "ok"
