"""The batcher: when a batch goes out, who is in it, and what becomes of failures."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from schemas.errors import DataError
from stages.engines.batcher import Batcher
from stages.engines.feed import serve_all
from stages.engines.interface import EngineUsage, Request, Result, Sampling
from stages.engines.pending import Clock, Pending
from stages.engines.signals import LMFailure, RunEnded
from tests.test_stages.programs_kit import CharEngine, user


def pending(text: str = "q", over: bool = False) -> Pending:
    return Pending(user(text), Sampling(), 1, None, Clock(), lambda: over, lambda served: None)


def test_calls_wait_for_quiet_and_go_out_together():
    engine = CharEngine(lambda *_: "x")
    batcher = Batcher(engine)
    calls = [pending() for _ in range(3)]
    for call in calls:
        batcher.submit(call)
    assert batcher.step(lambda: False, 0.01) == []
    assert engine.batches == []
    batcher.step(lambda: False, 0.01)
    assert engine.batches == [3]
    assert [call.future.result(0).result.text for call in calls] == ["x"] * 3


def test_a_stream_of_calls_that_never_pauses_is_served_all_the_same():
    engine = CharEngine(lambda *_: "x")
    batcher = Batcher(engine)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        batcher.submit(pending())
        batcher.step(lambda: False, 0.01)
        time.sleep(0.002)
    assert len(engine.batches) >= 2


def test_other_messages_are_handed_on():
    batcher = Batcher(CharEngine(lambda *_: "x"))
    batcher.post("done")
    assert batcher.step(lambda: False, 0.01) == ["done"]


def test_a_call_of_a_run_that_is_over_is_not_served():
    engine = CharEngine(lambda *_: "x")
    dead, live = pending(over=True), pending()
    Batcher(engine).serve([dead, live])
    assert engine.batches == [1]
    with pytest.raises(RunEnded):
        dead.future.result(0)


def test_one_bad_request_fails_alone():
    def answer(prompt: str, request: Request) -> str:
        if "bad" in prompt:
            raise MemoryError("too long")
        return prompt.strip()

    calls = [pending("bad" if index == 2 else str(index)) for index in range(5)]
    Batcher(CharEngine(answer)).serve(calls)
    with pytest.raises(LMFailure, match="MemoryError: too long"):
        calls[2].future.result(0)
    assert [call.future.result(0).result.text for call in calls if call is not calls[2]] == ["0", "1", "3", "4"]


def test_messages_that_the_template_refuses_fail_for_their_caller_alone():
    calls = [pending(), Pending([{"role": "critic", "content": "x"}], *_rest())]
    Batcher(CharEngine(lambda *_: "x")).serve(calls)
    assert calls[0].future.result(0).result.text == "x"
    with pytest.raises(ValueError, match="chat template refused"):
        calls[1].future.result(0)


def _rest() -> tuple[Any, ...]:
    return (Sampling(), 1, None, Clock(), lambda: False, lambda served: None)


def test_an_error_meant_for_the_user_ends_the_stage():
    def answer(prompt: str, request: Request) -> str:
        raise DataError("the adapter was made for another base")

    with pytest.raises(DataError, match="another base"):
        Batcher(CharEngine(answer)).serve([pending(), pending()])


class Kitchen:
    """A continuous engine that answers a request when `ready` says so; an answer may be an exception."""

    name, logprob_kind = "kitchen", "processed"

    def __init__(self) -> None:
        self.usage = EngineUsage()
        self.orders: dict[int, Request] = {}
        self.ready: dict[int, str | Exception] = {}
        self.cancelled: list[int] = []

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        return tuple(map(ord, messages[0]["content"]))

    def expect(self, digests: Collection[str]) -> None: ...

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        return serve_all(self, requests)

    def add(self, ticket: int, request: Request) -> None:
        self.orders[ticket] = request

    def poll(self, wait_s: float) -> list[tuple[int, Result | Exception]]:
        done = [ticket for ticket in self.orders if "".join(map(chr, self.orders[ticket].prompt_ids)) in self.ready]
        return [(ticket, self._result(self.orders.pop(ticket))) for ticket in done]

    def _result(self, request: Request) -> Result | Exception:
        found = self.ready["".join(map(chr, request.prompt_ids))]
        return found if isinstance(found, Exception) else Result((1, 2), (-1.0, -1.0), "stop", found)

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)
        self.orders.pop(ticket, None)


def test_an_engine_that_takes_requests_at_any_time_is_given_each_as_it_comes():
    engine = Kitchen()
    batcher = Batcher(engine)
    slow, quick = pending("slow"), pending("quick")
    batcher.submit(slow)
    batcher.step(lambda: False, 0.01)
    batcher.submit(quick)
    batcher.post("news")
    engine.ready["quick"] = "eggs"
    assert batcher.step(lambda: False, 0.01) == ["news"]
    assert quick.future.result(0).result.text == "eggs"
    assert quick.future.result(0).prompt_ids == tuple(map(ord, "quick"))
    assert not slow.future.done()
    engine.ready["slow"] = "roast"
    batcher.step(lambda: False, 0.01)
    assert slow.future.result(0).result.text == "roast"
    assert engine.orders == {}


def test_what_a_continuous_engine_fails_on_fails_alone():
    engine = Kitchen()
    engine.ready |= {"good": "x", "bad": ValueError("burnt")}
    batcher = Batcher(engine)
    good, bad = pending("good"), pending("bad")
    batcher.submit(bad)
    batcher.submit(good)
    batcher.step(lambda: False, 0.01)
    batcher.step(lambda: False, 0.01)
    assert good.future.result(0).result.text == "x"
    with pytest.raises(LMFailure, match="ValueError: burnt"):
        bad.future.result(0)


def test_a_run_that_ends_takes_its_call_out_of_a_continuous_engine():
    engine, ended = Kitchen(), [False]
    batcher = Batcher(engine)
    call = Pending(user("slow"), Sampling(), 1, None, Clock(), lambda: ended[0], lambda served: None)
    batcher.submit(call)
    batcher.step(lambda: False, 0.01)
    ended[0] = True
    batcher.step(lambda: False, 0.01)
    with pytest.raises(RunEnded):
        call.future.result(0)
    assert engine.orders == {}
    assert len(engine.cancelled) == 1


def test_a_continuous_engine_serves_a_whole_batch_or_says_what_failed():
    engine = Kitchen()
    engine.ready |= {"a": "A", "b": "B"}
    requests = [Request(tuple(map(ord, text)), Sampling(), 1) for text in ("a", "b", "a")]
    assert [result.text for result in engine.generate(requests)] == ["A", "B", "A"]
    engine.ready = {"b": ValueError("burnt")}
    with pytest.raises(ValueError, match="burnt"):
        engine.generate(requests)
    assert engine.orders == {}


def test_a_clock_stands_still_while_a_call_is_pending():
    clock = Clock()
    clock.pause()
    clock.pause()
    clock.resume()
    time.sleep(0.05)
    assert clock.waiting
    assert clock.spent < 0.04
    clock.resume()
    time.sleep(0.05)
    assert clock.spent >= 0.04
