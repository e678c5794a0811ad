"""LMs behind an OpenAI-compatible endpoint, against a small server in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from schemas.errors import RecipeError
from schemas.recipe_data import OtherLM
from stages.engines.endpoint import Endpoint, EndpointError
from stages.engines.interface import Sampling
from stages.programs.spending import Spending
from tests.test_stages.programs_kit import CharEngine, run_one, user

KEY = "sk-very-secret"


class Server:
    """Answers chat completions with the last message in capitals, after `refusals` times 503."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.refusals = 0
        self.status = 200
        self.body: bytes | None = None
        """Sent as it is, instead of a completion."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((body, self.headers["Authorization"]))
                if outer.refusals > 0:
                    outer.refusals -= 1
                    return self.answer(503, {"error": {"message": "busy"}})
                if outer.status != 200:
                    return self.answer(outer.status, {"error": {"message": f"bad key {self.headers['Authorization']}"}})
                if outer.body is not None:
                    return self.send(200, outer.body)
                text = body["messages"][-1]["content"].upper()
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                return self.answer(
                    200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
                )

            def answer(self, status: int, body: dict[str, Any]) -> None:
                self.send(status, json.dumps(body).encode())

            def send(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("TEST_LM_KEY", KEY)
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def lm(server: Server) -> OtherLM:
    return OtherLM(
        kind="openai", url=server.url, model="m", api_key_env="TEST_LM_KEY", temperature=0.3, max_new_tokens=9
    )


def client(server: Server, **options: Any) -> Endpoint:
    return Endpoint("judge", server.url, "m", "TEST_LM_KEY", **{"timeout_s": 5, **options})


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_of_an_endpoint_is_recorded_as_text_and_not_trained(server: Server, is_async: bool):
    def program(inputs: Any, call: Any) -> Any:
        return call("judge", user("well?"), lm="judge").text

    async def asynchronous(inputs: Any, call: Any) -> Any:
        return (await call("judge", user("well?"), lm="judge")).text

    finished = run_one(
        asynchronous if is_async else program,
        CharEngine(lambda *_: "x"),
        lms={"judge": lm(server)},
        endpoints={"judge": client(server)},
    )
    assert finished.outcome.output == '"WELL?"'
    row = finished.invocations[0]
    assert (row["lm"], row["trainable"], row["fidelity"], row["engine"]) == ("judge", False, "text", "openai/m")
    assert (row["completion"], row["finish_reason"]) == ("WELL?", "stop")
    assert row["prompt_ids"] is row["completion_ids"] is row["sampling_logprobs"] is None
    body, authorization = server.requests[0]
    assert authorization == f"Bearer {KEY}"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.3, 9)
    assert KEY not in json.dumps(finished.invocations)


def test_a_busy_endpoint_is_asked_again(server: Server):
    server.refusals = 1
    assert client(server).complete(user("hi"), Sampling(temperature=0.0))[:2] == ("HI", "stop")
    assert len(server.requests) == 2


def test_an_endpoint_that_refuses_fails_without_showing_the_key(server: Server):
    server.status = 401
    with pytest.raises(EndpointError, match=r"lms.judge: AuthenticationError.*\*\*\*") as caught:
        client(server).complete(user("hi"), Sampling())
    assert KEY not in str(caught.value)


def test_an_endpoint_that_never_answers_ends_the_run_as_an_engine_error(server: Server):
    server.refusals = 100
    finished = run_one(
        lambda inputs, call: call("judge", user("well?"), lm="judge").text,
        CharEngine(lambda *_: "x"),
        lms={"judge": lm(server)},
        endpoints={"judge": client(server, retries=0)},
    )
    assert finished.outcome.status == "engine_error"
    assert "lms.judge" in (finished.outcome.error or "")
    assert len(server.requests) == 2  # the run was tried once more from scratch


def test_a_missing_key_is_named_before_anything_runs(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TEST_LM_KEY")
    with pytest.raises(RecipeError, match="environment variable TEST_LM_KEY is not set"):
        client(server)


def test_top_k_is_refused_rather_than_dropped(server: Server):
    with pytest.raises(ValueError, match="no top_k"):
        client(server).complete(user("hi"), Sampling(top_k=5))


def body(message: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode()


@pytest.mark.parametrize(
    "answer",
    [b"<html>gateway</html>", b"", b"[1]", b'{"choices": []}', body(None), body({"content": [{"text": "a"}]})],
    ids=["html", "nothing", "list", "no choices", "no message", "content in parts"],
)
def test_an_answer_that_is_no_chat_completion_is_the_endpoints_failure_and_not_the_programs(
    server: Server, answer: bytes
):
    server.body = answer
    finished = run_one(
        lambda inputs, call: call("judge", user("well?"), lm="judge").text,
        CharEngine(lambda *_: "x"),
        lms={"judge": lm(server)},
        endpoints={"judge": client(server, retries=0)},
    )
    assert finished.outcome.status == "engine_error"
    assert "lms.judge: " in (finished.outcome.error or "")


def test_half_an_emoji_in_an_answer_can_be_stored(server: Server):
    server.body = body({"content": "fine \ud83d"})
    assert client(server).complete(user("hi"), Sampling())[:2] == ("fine ?", "stop")


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2}, {"prompt_tokens": 7.0, "completion_tokens": 2.0}),
        ({"prompt_tokens": 7}, {"untold_calls": 1.0}),
        ({"prompt_tokens": -7, "completion_tokens": 2}, {"untold_calls": 1.0}),
        (None, {"untold_calls": 1.0}),
    ],
    ids=["told", "half", "nonsense", "nothing"],
)
def test_tokens_that_an_endpoint_tells_are_counted_and_the_others_are_unknown(
    server: Server, usage: dict[str, int] | None, told: dict[str, float]
):
    answer = json.loads(body({"content": "fine"})) | {"usage": usage}
    server.body, spending = json.dumps(answer).encode(), Spending()
    run_one(
        lambda inputs, call: call("judge", user("well?"), lm="judge").text + call("own", user("a")).text,
        CharEngine(lambda *_: "xyz"),
        lms={"judge": lm(server)},
        endpoints={"judge": client(server)},
        spending=spending,
    )
    found = spending.figures()
    judge = {name.removeprefix("lm.judge."): value for name, value in found.items() if name.startswith("lm.judge.")}
    assert judge == {"calls": 1.0, **told}
    assert found["lm.student.calls"] == 1
    assert found["lm.student.completion_tokens"] >= 3
