"""The server engine: what goes wrong with a server is tried again, waited out or told, and never becomes data."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.errors import RecipeError, StageError
from schemas.execution import ServerSection
from stages.engines import circuit, server_identity
from stages.engines.interface import Request, Sampling
from stages.engines.models import BaseModel
from stages.engines.server_calls import NotServedError
from stages.engines.server_engine import ServerEngine
from tests.test_stages.engines_kit import chat, questions, requests_for, tiny
from tests.test_stages.server_kit import Fault, KitServer, engine_over, servers, with_choice

TEN = Sampling(max_new_tokens=10)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return tiny(tmp_path_factory.mktemp("base"))


@pytest.fixture
def start(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KitServer]]:
    monkeypatch.setattr(server_identity, "_LOOKS_S", 0.05)
    yield from servers(base, monkeypatch)


def asked(engine: ServerEngine, count: int = 4, sampling: Sampling = TEN) -> list[Request]:
    return requests_for([engine.encode_chat(chat(question)) for question in questions(count)], 1, sampling)


def ids(results: list[Any]) -> list[Any]:
    """What does not depend on the batch that a completion was made in."""
    return [(result.completion_ids, result.finish_reason, result.text, result.fidelity) for result in results]


def _cut(answer: dict[str, Any]) -> Any:
    answer["choices"][0]["token_ids"].pop()


def _swap(answer: dict[str, Any]) -> Any:
    ids = answer["choices"][0]["token_ids"]
    ids[0] = 40 if ids[0] != 40 else 41


def _finish(answer: dict[str, Any]) -> Any:
    """Another reason than the true one; for a completion that ends by itself at its limit, one that is none."""
    choice = answer["choices"][0]
    stopped, full = choice["finish_reason"] == "stop", len(choice["token_ids"]) == TEN.max_new_tokens
    choice["finish_reason"] = ("tool_calls" if full else "length") if stopped else "stop"


LIES = {
    "truncated": Fault(body=b'{"choices": [{"token_ids": [5, 6'),
    "no json": Fault(body=b"<html>busy</html>"),
    "empty": Fault(body=b""),
    "no choices": Fault(body=b'{"choices": []}'),
    "a list": Fault(body=b"[1, 2]"),
    "ids as text": with_choice(token_ids=["5", "6"]),
    "ids as fractions": with_choice(token_ids=[5.0]),
    "ids outside": with_choice(token_ids=[99_999]),
    "negative ids": with_choice(token_ids=[-1]),
    "no ids": with_choice(token_ids=[]),
    "other ids": Fault(change=_swap),
    "an id less": Fault(change=_cut),
    "other text": with_choice(text="never sampled"),
    "no text": with_choice(text=None),
    "other prompt": with_choice(prompt_token_ids=[1, 2, 3]),
    "nan": with_choice(logprobs={"token_logprobs": [math.nan] * 10}),
    "minus infinity": Fault(
        change=lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, -9999.0)
    ),
    "positive": Fault(change=lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, 0.5)),
    "null logprob": Fault(
        change=lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, None)
    ),
    "a logprob less": Fault(change=lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].pop()),
    "no logprobs": with_choice(logprobs=None),
    "aborted": with_choice(finish_reason="abort"),
    "finish made up": Fault(change=_finish),
}


def test_what_cannot_have_been_sampled_is_asked_again_and_never_data(
    start: Callable[..., KitServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(circuit, "FAILURES", 1000)
    server = start()
    engine = engine_over(server)
    requests = asked(engine, len(LIES))
    expected = ids(engine.generate(requests))
    server.faults = list(LIES.values())
    assert ids(engine.generate(requests)) == expected
    assert not server.faults
    assert len(server.completions()) == 3 * len(LIES)


def test_a_completion_that_ends_by_itself_at_its_limit_has_stopped_whatever_the_server_calls_it(
    start: Callable[..., KitServer],
):
    server = start()
    engine = engine_over(server)
    requests = asked(engine, 23)
    told = engine.generate(requests)
    (place,) = (
        number for number, one in enumerate(told) if one.finish_reason == "stop" and len(one.completion_ids) == 10
    )
    server.faults = [with_choice(finish_reason="length")]
    assert ids(engine.generate([requests[place]])) == ids([told[place]])
    assert not server.faults


@pytest.mark.parametrize("name", LIES)
def test_each_lie_is_seen_as_one(start: Callable[..., KitServer], name: str):
    """One request, one token where it may be: the message is told, and the text of no lie is."""
    server = start()
    engine = engine_over(server, retries=0)
    server.faults = [LIES[name]]
    with pytest.raises(NotServedError, match="after 1 tries"):
        engine.generate(asked(engine, 1))


def test_what_is_never_true_fails_that_request_alone(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server, retries=2, requests=1)
    requests = asked(engine, 3)
    server.faults = [with_choice(text="no")] * 3
    for ticket, request in enumerate(requests, 1):
        engine.add(ticket, request)
    out: dict[int, Any] = {}
    while len(out) < 3:
        out |= dict(engine.poll(0.05))
    failed = [outcome for outcome in out.values() if isinstance(outcome, NotServedError)]
    assert len(failed) + len([1 for outcome in out.values() if not isinstance(outcome, Exception)]) == 3
    assert all("decode to" in str(error) for error in failed)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=500), Fault(status=503), Fault(drop=True), Fault(status=429, headers={"Retry-After": "0.1"})],
    ids=["500", "503", "dropped", "429"],
)
def test_what_may_pass_is_tried_again(start: Callable[..., KitServer], fault: Fault):
    server = start()
    engine = engine_over(server)
    requests = asked(engine, 12)
    expected = engine.generate(requests)
    server.faults = [fault] * 4
    again = engine.generate(requests)
    assert ids(again) == ids(expected)
    assert engine.usage.completion_tokens == 2 * sum(len(one.completion_ids or ()) for one in again)


def test_what_the_server_refuses_is_not_asked_again(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server)
    request = asked(engine, 1)
    server.faults = [Fault(status=422)]
    with pytest.raises(NotServedError, match="HTTP 422: told to answer 422"):
        engine.generate(request)
    assert len(server.completions()) == 1


def test_a_late_answer_is_dropped_and_asked_for_again(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server, timeout_s=6.0)
    request = asked(engine, 1)
    server.faults = [Fault(hang_s=60.0)]
    began = time.monotonic()
    assert engine.generate(request)[0].completion_ids
    assert 6.0 < time.monotonic() - began < 60.0


def test_a_rate_limit_is_waited_out_and_costs_no_try(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server, retries=0, requests=8)
    requests = asked(engine, 16)
    server.faults = [Fault(status=429, headers={"Retry-After": "0.3"})] * 12
    began = time.monotonic()
    assert len(engine.generate(requests)) == 16
    assert time.monotonic() - began > 0.3
    assert engine._replicas[0].most < 8
    server.most = 0
    engine.generate(requests * 4)
    assert engine._replicas[0].most == 8


def test_a_limit_of_an_hour_ends_the_stage_at_once(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server)
    server.faults = [Fault(status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(StageError, match="HTTP 429"):
        engine.generate(asked(engine, 1))


def test_requests_in_flight_are_bounded_and_go_to_the_less_busy_of_two(start: Callable[..., KitServer]):
    one, other = start(), start()
    engine = engine_over(one, other, requests=6)
    one.slow_s, other.slow_s = 0.03, 0.03
    results = engine.generate(asked(engine, 40))
    assert len(results) == 40
    assert (one.most, other.most) == (6, 6)
    assert min(len(one.completions()), len(other.completions())) >= 10


def test_a_slow_replica_is_given_less(start: Callable[..., KitServer]):
    quick, slow = start(), start()
    engine = engine_over(quick, slow, requests=2)
    slow.slow_s = 2.0
    engine.generate(asked(engine, 24))
    assert len(quick.completions()) > 2 * len(slow.completions())


def test_when_a_replica_dies_the_other_serves_all_and_it_is_used_again_later(start: Callable[..., KitServer]):
    one, other = start(), start()
    engine = engine_over(one, other, requests=8)
    requests = asked(engine, 24)
    expected = engine.generate(requests)
    one.slow_s = 0.05
    for ticket, request in enumerate(requests, 1):
        engine.add(ticket, request)
    time.sleep(0.02)
    one.die()
    out: list[tuple[int, Any]] = []
    while len(out) < 24:
        out += engine.poll(0.05)
    assert ids([outcome for _, outcome in sorted(out, key=lambda item: item[0])]) == ids(expected)
    one.revive()
    one.slow_s = 0.0
    time.sleep(0.2)
    before = len(one.completions())
    for _ in range(3):
        engine.generate(requests)
    assert len(one.completions()) > before


def test_when_no_replica_answers_any_more_the_stage_ends_with_what_each_said(start: Callable[..., KitServer]):
    one, other = start(), start()
    engine = engine_over(one, other, patience_s=0.5)
    requests = asked(engine, 8)
    one.die()
    other.faults = [Fault(status=502)] * 1000
    with pytest.raises(StageError, match=r"no server has answered for 0\.5 s") as caught:
        engine.generate(requests)
    assert f"{one.url}: ConnectError" in str(caught.value)
    assert f"{other.url}: HTTP 502" in str(caught.value)
    assert "mmgrpo serve" in str(caught.value)
    other.faults = []
    time.sleep(0.3)
    assert len(engine.generate(requests)) == 8  # and the engine is of use again


def test_a_server_that_comes_up_late_is_waited_for(start: Callable[..., KitServer]):
    server = start()
    server.die_for(0.5)
    engine = engine_over(server)
    assert len(engine.generate(asked(engine))) == 4


def test_a_server_that_never_comes_up_is_named(start: Callable[..., KitServer]):
    server = start()
    server.die()
    with pytest.raises(StageError, match=r"no server answers for 0\.2 s"):
        engine_over(server, patience_s=0.2)


def test_cancelled_requests_let_their_connections_go(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server, requests=4)
    requests = asked(engine, 8)
    server.faults = [Fault(hang_s=30.0)] * 4
    for ticket, request in enumerate(requests[:4], 1):
        engine.add(ticket, request)
    time.sleep(0.2)
    for ticket in range(1, 5):
        engine.cancel(ticket)
    assert len(engine.generate(requests)) == 8


def test_the_key_is_sent_and_stands_in_no_message(start: Callable[..., KitServer], monkeypatch: pytest.MonkeyPatch):
    server = start(key="sk-very-secret")
    monkeypatch.setenv("KIT_KEY", "sk-very-secret")
    assert engine_over(server, api_key_env="KIT_KEY").name.startswith("server/")
    monkeypatch.setenv("KIT_KEY", "sk-also-secret")
    with pytest.raises(RecipeError, match=r"api_key_env") as caught:
        engine_over(server, api_key_env="KIT_KEY")
    assert "sk-also-secret" not in str(caught.value)
    monkeypatch.delenv("KIT_KEY")
    with pytest.raises(RecipeError, match="KIT_KEY is not set"):
        engine_over(server, api_key_env="KIT_KEY")


def test_no_urls_say_what_to_do(base: BaseModel):
    with pytest.raises(RecipeError, match="mmgrpo serve"):
        ServerEngine(base, 128, ServerSection())


def test_a_temperature_that_servers_round_up_is_refused(start: Callable[..., KitServer]):
    engine = engine_over(start())
    with pytest.raises(NotServedError, match=r"temperature 0\.001"):
        engine.generate(asked(engine, 1, Sampling(0.001, None, None, 4)))


def test_closed_connections_are_opened_again(start: Callable[..., KitServer]):
    engine = engine_over(start())
    first = engine.generate(asked(engine))
    engine.close()
    assert ids(engine.generate(asked(engine))) == ids(first)


def test_bodies_leave_nothing_to_the_servers_defaults(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server)
    engine.generate(asked(engine, 1, Sampling(0.7, 0.9, 5, 6)))
    body = server.completions()[-1]
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.7, 0.9, 5, 6)
    assert (body["min_p"], body["repetition_penalty"], body["stop_token_ids"]) == (0.0, 1.0, [2])
    assert json.dumps(body)
