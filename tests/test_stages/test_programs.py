"""Plain programs: calls, retries, failures, and what is recorded of them."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from schemas.errors import ParseError
from schemas.parquet import write_table
from schemas.recipe_data import OtherLM
from schemas.rollouts import INVOCATIONS
from stages.engines.interface import Adapter, Request
from tests.test_stages.programs_kit import CharEngine, job, program_of, run_jobs, run_one, session_of, user


def echo(prompt: str, request: Request) -> str:
    return prompt.strip().upper()


def digits(text: str) -> int:
    if not text.isdigit():
        raise ParseError([], ["number"])
    return int(text)


def test_a_sync_program_is_run_and_every_call_recorded(tmp_path):
    def program(inputs, call):
        first = call("ask", user(inputs["x"]), inputs={"x": inputs["x"]})
        return {"answer": call("ask", user(first.text)).text}

    finished = run_one(program, CharEngine(echo))
    assert (finished.outcome.status, finished.outcome.score) == ("ok", 1.0)
    assert finished.outcome.output == '{"answer":"A"}'
    rows = finished.invocations
    assert [(row["module"], row["invocation_index"], row["call_index"]) for row in rows] == [
        ("ask", 0, 0),
        ("ask", 1, 1),
    ]
    assert rows[0]["prompt_ids"] == [2, ord("a"), 0, 3]
    assert rows[0]["completion_ids"] == [ord("A"), 0]
    assert rows[0]["inputs"] == '{"x":"a"}'
    assert rows[0]["fidelity"] == "exact"
    assert rows[0]["trainable"] is True
    assert not any(row["concurrent"] for row in rows)
    assert write_table(rows, tmp_path / "rows.parquet", INVOCATIONS) == 2


def test_an_async_program_gives_the_same_rows_as_a_sync_one():
    def sync(inputs, call):
        return call("b", user(call("a", user(inputs["x"])).text)).text

    async def asynchronous(inputs, call):
        return (await call("b", user((await call("a", user(inputs["x"]))).text))).text

    assert run_one(sync, CharEngine(echo)) == run_one(asynchronous, CharEngine(echo))


def test_calls_of_many_runs_are_served_together():
    async def program(inputs, call):
        for _ in range(3):
            await call("ask", user("q"))
        return

    engine = CharEngine(echo)
    run_jobs(program_of(program), [job(index) for index in range(16)], session_of(engine), concurrency=16)
    assert sum(engine.batches) == 48
    assert len(engine.batches) < 24


def test_a_slow_run_does_not_hold_up_the_others():
    def program(inputs, call):
        if inputs["x"] == "slow":
            time.sleep(0.5)
        return call("ask", user("q")).text

    engine = CharEngine(echo)
    seen: list[float] = []
    started = time.monotonic()
    engine.answer = lambda prompt, request: (seen.append(time.monotonic() - started), "x")[1]
    run_jobs(program_of(program), [job(0, "slow"), job(1, "fast")], session_of(engine))
    assert seen[0] < 0.4
    assert len(seen) == 2


def test_a_bad_completion_is_asked_for_again_as_attempts_of_one_invocation():
    answers = iter(["?", "!", "7"])
    finished = run_one(
        lambda inputs, call: call("n", user("n"), parse=digits).value, CharEngine(lambda *_: next(answers))
    )
    assert finished.outcome.output == "7"
    rows = finished.invocations
    assert [(row["attempt"], row["parse_status"], row["parsed_share"]) for row in rows] == [
        (0, "failed", 0.0),
        (1, "failed", 0.0),
        (2, "ok", 1.0),
    ]
    assert {row["invocation_index"] for row in rows} == {0}
    assert len({row["seed"] for row in rows}) == 3
    assert rows[2]["outputs"] == "7"


def test_a_run_whose_last_attempt_fails_to_parse_is_parse_failed():
    finished = run_one(lambda inputs, call: call("n", user("n"), parse=digits).value, CharEngine(lambda *_: "?"))
    assert finished.outcome.status == "parse_failed"
    assert "number" in (finished.outcome.error or "")
    assert [row["attempt"] for row in finished.invocations] == [0, 1, 2, 3]


def test_retries_of_a_call_win_over_the_recipe():
    finished = run_one(
        lambda inputs, call: call("n", user("n"), parse=digits, retries=1).value, CharEngine(lambda *_: "?")
    )
    assert [row["attempt"] for row in finished.invocations] == [0, 1]


def test_a_program_may_live_on_after_a_parse_failure():
    def program(inputs, call):
        try:
            return call("n", user("n"), parse=digits, retries=0).value
        except ParseError:
            return call("m", user("m")).text

    finished = run_one(program, CharEngine(lambda *_: "?"))
    assert (finished.outcome.status, finished.outcome.output) == ("ok", '"?"')


def test_a_parse_error_that_no_call_raised_is_the_programs_own():
    def program(inputs, call):
        call("n", user("n"))
        raise ParseError([], ["x"])

    assert run_one(program, CharEngine(echo)).outcome.status == "program_error"


def test_a_greedy_call_is_not_repeated_for_nothing():
    finished = run_one(
        lambda inputs, call: call("n", user("n"), parse=digits, temperature=0.0).value, CharEngine(lambda *_: "?")
    )
    assert len(finished.invocations) == 1
    assert finished.outcome.status == "parse_failed"


def test_a_crash_ends_the_run_with_its_place_and_keeps_its_calls():
    def program(inputs, call):
        call("ask", user("q"))
        return 1 / 0

    finished = run_one(program, CharEngine(echo))
    assert finished.outcome.status == "program_error"
    assert "ZeroDivisionError: division by zero (at " in (finished.outcome.error or "")
    assert "in program)" in (finished.outcome.error or "")
    assert len(finished.invocations) == 1
    assert finished.outcome.score is None


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ("hello", {}, "expected a list"),
        ([{"role": "user"}], {}, "'role' and 'content'"),
        (user("q"), {"temperatur": 1.0}, "sampling options are temperature, top_p, top_k, max_new_tokens"),
        (user("q"), {"lm": "judge"}, "there is no LM 'judge' in the recipe; it has student"),
        (user("q"), {"top_p": 2.0}, "top_p"),
    ],
)
def test_a_wrong_call_is_told_what_is_right(messages: Any, options: dict[str, Any], said: str):
    finished = run_one(lambda inputs, call: call("m", messages, **options).text, CharEngine(echo))
    assert finished.outcome.status == "program_error"
    assert said in (finished.outcome.error or "")


def test_an_output_without_a_json_form_says_where():
    finished = run_one(lambda inputs, call: {"a": [object()]}, CharEngine(echo))
    assert "$.a[0]: object has no JSON form" in (finished.outcome.error or "")


def test_a_sync_program_that_returns_a_coroutine_is_told_to_be_async():
    async def inner():
        return 1

    finished = run_one(lambda inputs, call: inner(), CharEngine(echo))
    assert "async def" in (finished.outcome.error or "")


def test_a_program_that_hangs_times_out_and_harms_nobody():
    release = threading.Event()
    late: list[str] = []

    def program(inputs, call):
        if inputs["x"] == "hang":
            release.wait(5)
            try:
                call("ask", user("late"))
            except BaseException as error:
                late.append(type(error).__name__)
                raise
        return call("ask", user("q")).text

    engine = CharEngine(echo)
    runs = run_jobs(program_of(program), [job(0, "hang"), job(1)], session_of(engine, timeout_s=0.2))
    assert [run.outcome.status for run in runs] == ["timeout", "ok"]
    assert "0.2 s (program.timeout_s)" in (runs[0].outcome.error or "")
    release.set()
    deadline = time.monotonic() + 2
    while not late and time.monotonic() < deadline:
        time.sleep(0.01)
    assert late == ["RunEnded"]
    assert sum(engine.batches) == 1


def test_an_async_program_that_hangs_times_out():
    async def program(inputs, call):
        await asyncio.sleep(10)

    assert run_one(program, CharEngine(echo), timeout_s=0.2).outcome.status == "timeout"


def test_waiting_for_the_engine_is_not_the_programs_time():
    def slow(prompt: str, request: Request) -> str:
        time.sleep(0.4)
        return "x"

    assert (
        run_one(lambda inputs, call: call("m", user("q")).text, CharEngine(slow), timeout_s=0.2).outcome.status == "ok"
    )


def test_a_prompt_over_the_context_limit_is_a_named_failure():
    finished = run_one(lambda inputs, call: call("m", user("q" * 50)).text, CharEngine(echo, context=20))
    assert finished.outcome.status == "context_overflow"
    assert "the prompt of module 'm' has 53 tokens" in (finished.outcome.error or "")
    row = finished.invocations[0]
    assert (row["finish_reason"], row["fidelity"], row["completion_ids"]) == ("context_overflow", "partial", None)


def test_calls_gathered_by_a_program_are_numbered_in_order_of_submission():
    async def program(inputs, call):
        await call("a", user("alone"))
        await asyncio.gather(call("a", user("first")), call("a", user("second")), call("b", user("third")))
        return

    rows = run_one(program, CharEngine(echo)).invocations
    assert [(row["module"], row["invocation_index"], row["completion"]) for row in rows] == [
        ("a", 0, "ALONE"),
        ("a", 1, "FIRST"),
        ("a", 2, "SECOND"),
        ("b", 0, "THIRD"),
    ]
    assert not any(row["concurrent"] for row in rows)


def test_an_engine_failure_is_retried_once_from_scratch():
    fails = iter([True, False, False])

    def answer(prompt: str, request: Request) -> str:
        if prompt.startswith("b") and next(fails):
            raise RuntimeError("out of memory")
        return "x"

    def program(inputs, call):
        call("a", user("a"))
        return call("b", user("b")).text

    finished = run_one(program, CharEngine(answer))
    assert finished.outcome.status == "ok"
    assert [row["module"] for row in finished.invocations] == ["a", "b"]


def test_an_engine_failure_for_good_hits_only_the_runs_it_fails_on():
    def answer(prompt: str, request: Request) -> str:
        if "poison" in prompt:
            raise RuntimeError("cannot")
        return "x"

    def program(inputs, call):
        try:
            return call("m", user(inputs["x"])).text
        except Exception:  # noqa: BLE001 - what a careless program does
            return "swallowed"

    runs = run_jobs(program_of(program), [job(0), job(1, "poison"), job(2)], session_of(CharEngine(answer)))
    assert [run.outcome.status for run in runs] == ["ok", "engine_error", "ok"]
    assert runs[1].outcome.error == "RuntimeError: cannot"


def test_equal_seeds_give_equal_requests_whatever_the_concurrency():
    def program(inputs, call):
        return call("b", user(call("a", user(inputs["x"])).text)).text

    def seeds(concurrency: int) -> list[list[int]]:
        engine = CharEngine(lambda prompt, request: str(request.seed % 97))
        runs = run_jobs(program_of(program), [job(i) for i in range(6)], session_of(engine), concurrency)
        return [[row["seed"] for row in run.invocations] for run in runs]

    assert seeds(1) == seeds(6)
    assert len({seed for run in seeds(1) for seed in run}) == 12


def test_the_base_as_another_lm_has_no_adapter_and_is_not_trained(tmp_path):
    adapter = Adapter(tmp_path, "adapter-digest")
    seen: list[Any] = []

    def answer(prompt: str, request: Request) -> str:
        seen.append((request.adapter, request.sampling.temperature))
        return "x"

    def program(inputs, call):
        call("mine", user("q"))
        return call("theirs", user("q"), lm="helper").text

    finished = run_one(program, CharEngine(answer), adapters={"*": adapter}, lms={"helper": OtherLM()})
    assert seen == [(adapter, 1.0), (None, 0.0)]
    assert [(row["lm"], row["trainable"], row["adapter"]) for row in finished.invocations] == [
        ("student", True, "adapter-digest"),
        ("helper", False, None),
    ]


def test_ctrl_c_ends_the_runs_at_once():
    from stages.programs.runner import run_programs

    def answer(prompt: str, request: Request) -> str:
        raise KeyboardInterrupt

    jobs = [job(index) for index in range(4)]
    with pytest.raises(KeyboardInterrupt):
        list(
            run_programs(
                program_of(lambda inputs, call: call("m", user("q")).text), jobs, session_of(CharEngine(answer)), 4
            )
        )


def test_text_that_cannot_be_stored_ends_its_run_and_not_the_stage(tmp_path):
    def program(inputs, call):
        if inputs["x"] == "message":
            call("m", user("\ud800"))
        if inputs["x"] == "module":
            call("\ud800", user("q"))
        if inputs["x"] == "error":
            raise ValueError("\ud800")
        return "\ud800"

    runs = run_jobs(
        program_of(program),
        [job(i, x) for i, x in enumerate(("message", "module", "error", "output"))],
        session_of(CharEngine(echo)),
    )
    assert {run.outcome.status for run in runs} == {"program_error"}
    assert all((run.outcome.error or "").encode() for run in runs)
