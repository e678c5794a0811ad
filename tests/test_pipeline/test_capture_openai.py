"""A captured OpenAI client: what it sends is what the program sends, and what comes back is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from pipeline.capture import Capture
from schemas.errors import RecipeError
from stages.ingest.normal import Call
from tests.test_pipeline.capture_kit import PROMPT, ChatServer, calls, roots

KEY = "key-of-the-user"
ASK: list[Any] = [{"role": "user", "content": "hi"}]
EXACT = {
    "completion": "re: hi",
    "finish_reason": "stop",
    "model": "m",
    "prompt_ids": tuple(PROMPT),
    "completion_ids": (4, 5),
    "logprobs": (-0.5, -0.25),
    "logprob_kind": "processed",
}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    made = ChatServer()
    yield made
    made.close()


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    made = Capture(tmp_path / "traces", policy="abc", logprob_kind="processed")
    yield made
    made.close()


def client(server: ChatServer) -> OpenAI:
    return OpenAI(base_url=server.url, api_key=KEY, max_retries=0)


def kept(capture: Capture) -> list[Any]:
    assert capture.flush()
    return calls(capture._writer._folder)


def test_a_call_is_kept_with_ids_and_logprobs_where_they_are_asked_for(server: ChatServer, capture: Capture) -> None:
    plain = client(server)
    seen = capture.openai(plain, tokens=True)
    assert isinstance(seen, OpenAI)
    with capture.run() as run, run.module("write"):
        answer = seen.chat.completions.create(
            model="m", messages=ASK, temperature=0.7, max_tokens=9, seed=3, extra_body={"top_k": 4}
        )
    assert answer.choices[0].message.content == "re: hi"
    assert server.seen[0]["return_token_ids"] is True
    (call,) = kept(capture)
    assert (call.module, call.policy) == ("write", "abc")
    assert call.start < call.end
    asked = {"temperature": 0.7, "max_new_tokens": 9, "seed": 3, "top_k": 4}
    assert call.call == Call(tuple(ASK), tools=False, **asked, **EXACT)
    plain.chat.completions.create(model="m", messages=ASK)
    assert len(kept(capture)) == 1  # the user's own client is not changed


def test_the_request_is_the_programs_own_unless_tokens_are_asked_for(server: ChatServer, capture: Capture) -> None:
    with capture.run():
        capture.openai(client(server)).chat.completions.create(model="m", messages=ASK, top_p=0.5)
    client(server).chat.completions.create(model="m", messages=ASK, top_p=0.5)
    assert server.seen[0] == server.seen[1]
    (call,) = kept(capture)
    assert call.call == Call(tuple(ASK), "re: hi", tools=False, finish_reason="stop", model="m", top_p=0.5)


def test_streams_are_kept_as_they_are_read(server: ChatServer, capture: Capture) -> None:
    seen = capture.openai(client(server), tokens=True)
    with capture.run():
        stream = seen.chat.completions.create(model="m", messages=ASK, stream=True)
        assert isinstance(stream, openai.Stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        with seen.chat.completions.create(model="m", messages=ASK, stream=True) as left:
            next(left)
        del left
    assert text == "re: hi"
    whole, half = kept(capture)
    assert whole.call == Call(tuple(ASK), tools=False, **EXACT)
    assert whole.error is None
    assert half.error in ("the stream was left before its end", "not finished when the run ended")


def test_async_clients_and_their_streams_are_kept_and_calls_that_overlap_do(
    server: ChatServer, capture: Capture
) -> None:
    async def program() -> str:
        async with AsyncOpenAI(base_url=server.url, api_key=KEY) as plain:
            seen = capture.openai(plain, tokens=True)

            async def one(name: str) -> None:
                with capture.module(name):
                    await seen.chat.completions.create(model="m", messages=ASK)

            async with capture.run():
                await asyncio.gather(one("a"), one("b"))
                stream = await seen.chat.completions.create(model="m", messages=ASK, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(program()) == "re: hi"
    found = kept(capture)
    assert [span.module for span in found] == ["a", "b", None]
    assert found[1].start < found[0].end
    assert all(span.call == Call(tuple(ASK), tools=False, **EXACT) for span in found)


def test_copies_raw_answers_helpers_and_parsed_ones_are_kept_too(server: ChatServer, capture: Capture) -> None:
    seen = capture.openai(client(server), tokens=True)
    with capture.run():
        seen.with_options(timeout=9).chat.completions.create(model="m", messages=ASK)
        raw = seen.chat.completions.with_raw_response.create(model="m", messages=ASK)
        assert raw.parse().choices[0].message.content == "re: hi"
        seen.chat.completions.parse(model="m", messages=ASK)
        seen.beta.chat.completions.parse(model="m", messages=ASK)
        with seen.chat.completions.stream(model="m", messages=ASK) as events:
            assert events.get_final_completion().choices[0].message.content == "re: hi"
    assert [span.call for span in kept(capture)] == [Call(tuple(ASK), tools=False, **EXACT)] * 5


def test_what_is_not_read_is_noted_as_a_call_of_which_nothing_is_known(
    server: ChatServer, capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    seen = capture.openai(client(server))
    with caplog.at_level(logging.WARNING), capture.run():
        seen.responses.create(model="m", input="hi")
        with seen.chat.completions.with_streaming_response.create(model="m", messages=ASK) as body:
            assert "re: hi" in body.read().decode()
    unread, streaming = kept(capture)
    assert unread.call is None
    assert streaming.call is not None
    assert streaming.call.completion is None
    assert capture.counts["not_captured"] == 2
    assert "/responses" in caplog.text


def test_an_error_of_the_server_is_the_programs_and_keeps_no_key(server: ChatServer, capture: Capture) -> None:
    server.fail = 401
    with pytest.raises(openai.AuthenticationError), capture.run():
        capture.openai(client(server)).chat.completions.create(model="m", messages=ASK)
    (call,) = kept(capture)
    assert call.error.startswith("openai.AuthenticationError: Error code: 401")
    assert call.call.completion is None
    files = b"".join(path.read_bytes() for path in capture._writer._folder.glob("*"))
    assert KEY.encode() not in files
    assert KEY not in str(kept(capture)) + str(roots(capture._writer._folder))


def test_several_answers_are_one_call_with_its_first(server: ChatServer, capture: Capture) -> None:
    with capture.run():
        capture.openai(client(server)).chat.completions.create(model="m", messages=ASK, n=3)
    assert capture.flush()
    import polars as pl

    assert pl.read_parquet(capture._writer._folder)["choices"].to_list() == [None, 3]


def test_a_call_outside_of_a_run_is_counted_and_not_kept(
    server: ChatServer, capture: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        capture.openai(client(server)).chat.completions.create(model="m", messages=ASK)
    assert capture.counts == {"outside_runs": 1}
    assert "outside of capture.run" in caplog.text


def test_capturing_that_fails_changes_no_answer(
    server: ChatServer, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.capture.runs.answered", lambda *_: 1 / 0)
    monkeypatch.setattr("pipeline.capture.streams.Gathered.add", lambda *_: 1 / 0)
    seen = capture.openai(client(server))
    with capture.run():
        assert seen.chat.completions.create(model="m", messages=ASK).choices[0].message.content == "re: hi"
        stream = seen.chat.completions.create(model="m", messages=ASK, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "re: hi"
    assert capture.counts["errors"] >= 2
    assert [span.error for span in kept(capture)] == ["not finished when the run ended"] * 2


def test_other_clients_are_refused_with_the_way_out(capture: Capture) -> None:
    with pytest.raises(RecipeError, match=r"run\.call"):
        capture.openai(object())
