"""Programs that do harm: each ends its own run with a status, and neither another run nor the stage."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy
import pytest

from tests.test_stages.programs_kit import CharEngine, job, program_of, run_jobs, run_one, session_of, user


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_without_a_message_to_be_had_still_ends_its_run_at_once():
    def program(inputs, call):
        raise Mute

    finished = run_one(program, CharEngine(lambda *_: "x"), timeout_s=20.0)
    assert finished.outcome.status == "program_error"
    assert "Mute: its message cannot be had: RuntimeError" in (finished.outcome.error or "")


def test_a_very_long_message_is_cut():
    def program(inputs, call):
        raise ValueError("x" * 1_000_000)

    error = run_one(program, CharEngine(lambda *_: "x")).outcome.error or ""
    assert len(error) < 5000
    assert "996,000 more characters" in error


@pytest.mark.parametrize("option", ["max_new_tokens", "top_k"])
def test_an_option_that_no_table_can_hold_ends_its_run_and_not_the_stage(option: str):
    finished = run_one(lambda inputs, call: call("m", user("a"), **{option: 10**12}).text, CharEngine(lambda *_: "x"))
    assert finished.outcome.status == "program_error"
    assert option in (finished.outcome.error or "")
    assert finished.invocations == []


def test_a_temperature_that_overflows_is_refused_at_the_call():
    finished = run_one(lambda inputs, call: call("m", user("a"), temperature=1e-40).text, CharEngine(lambda *_: "x"))
    assert finished.outcome.status == "program_error"
    assert "0 decodes greedily" in (finished.outcome.error or "")


class Own:
    def model_dump(self, mode: str) -> None:
        raise RuntimeError("not now")


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "value", [numpy.arange(3), 10**5000, _endless(), Own(), object()], ids=["array", "digits", "endless", "own", "bare"]
)
def test_a_parsed_value_without_a_json_form_is_kept_for_the_program_and_left_out_of_the_record(value: Any):
    def program(inputs, call):
        assert call("m", user("a"), parse=lambda text: value).value is value
        return "fine"

    finished = run_one(program, CharEngine(lambda *_: "x"))
    assert finished.outcome.status == "ok", finished.outcome.error
    assert (finished.invocations[0]["parse_status"], finished.invocations[0]["outputs"]) == ("ok", None)


@pytest.mark.parametrize(
    ("value", "said"),
    [(numpy.arange(3), "$: ndarray has no JSON form"), (_endless(), "itself")],
    ids=["array", "endless"],
)
def test_an_output_that_cannot_be_stored_is_a_named_failure(value: Any, said: str):
    outcome = run_one(lambda inputs, call: value, CharEngine(lambda *_: "x")).outcome
    assert outcome.status == "program_error"
    assert said in (outcome.error or "")


@pytest.mark.parametrize("within", ["program", "a task of it", "metric"])
def test_a_run_that_blocks_the_event_loop_times_out_and_takes_no_other_with_it(within: str):
    released = threading.Event()

    async def block() -> None:
        released.wait(20)

    async def asynchronous(inputs, call):
        if inputs["x"] == "bad" and within == "program":
            await block()
        if inputs["x"] == "bad" and within == "a task of it":
            await asyncio.gather(asyncio.sleep(0), block())
        await asyncio.sleep(0.02)
        return (await call("m", user(inputs["x"]))).text

    async def metric(example, output, calls):
        if output == "bad" and within == "metric":
            await block()
        return 1.0

    jobs = [job(index, "bad" if index == 1 else f"x{index}") for index in range(6)]
    program = program_of(asynchronous, metric)
    engine = CharEngine(lambda prompt, request: prompt.strip())
    finished = run_jobs(program, jobs, session_of(engine, timeout_s=0.3), concurrency=3)
    released.set()
    statuses = [run.outcome.status for run in finished]
    assert statuses == ["ok", "metric_error" if within == "metric" else "timeout", "ok", "ok", "ok", "ok"]
    assert [len(run.invocations) for run in finished] == [1, 1 if within == "metric" else 0, 1, 1, 1, 1]
