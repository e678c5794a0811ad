"""What tests of capturing share: a chat server that answers as vLLM does, and reading back what was captured."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stages.ingest.formats import read_items, recognise
from stages.ingest.normal import Item, Refused, Score, Span

PROMPT = [1, 2, 3]


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """Repeats what the user said, with made-up ids."""
    said = body["messages"][-1]["content"]
    return {"text": f"re: {said}", "prompt_ids": PROMPT, "ids": [4, 5], "logprobs": [-0.5, -0.25], "finish": "stop"}


class ChatServer:
    """`POST /v1/chat/completions`, streamed or not; ids and log-probabilities where they are asked for."""

    def __init__(self, make: Callable[[dict[str, Any]], dict[str, Any]] = answer) -> None:
        self.make = make
        self.seen: list[dict[str, Any]] = []
        self.fail = 0
        """The status of all answers, where it is not 0."""
        outer = self

        class Handler(_Handler):
            kit = outer

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    kit: ChatServer

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.kit.seen.append({**body, "_path": self.path})
        if self.kit.fail:
            key = self.headers["authorization"]
            return self._send(json.dumps({"error": {"message": f"no: {key}"}}).encode(), self.kit.fail)
        if not self.path.endswith("/chat/completions"):
            return self._send(b'{"id": "r", "object": "response", "output": []}')
        made = self.kit.make(body)
        if body.get("stream"):
            return self._send(b"".join(_chunks(made, body)), kind="text/event-stream")
        return self._send(json.dumps(_whole(made, body)).encode())

    def _send(self, data: bytes, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _logprobs(made: dict[str, Any], body: dict[str, Any]) -> dict[str, Any] | None:
    tokens = [{"token": "t", "logprob": value, "top_logprobs": []} for value in made["logprobs"]]
    return {"content": tokens} if body.get("logprobs") else None


def _whole(made: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    ids = bool(body.get("return_token_ids"))
    choice = {
        "finish_reason": made["finish"],
        "message": {"role": "assistant", "content": made["text"]},
        "logprobs": _logprobs(made, body),
        **({"token_ids": made["ids"]} if ids else {}),
    }
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "choices": [{**choice, "index": place} for place in range(body.get("n") or 1)],
        **({"prompt_token_ids": made["prompt_ids"]} if ids else {}),
    }


def _chunks(made: dict[str, Any], body: dict[str, Any]) -> list[bytes]:
    whole = _whole(made, body)
    first, half = whole["choices"][0], len(made["text"]) // 2
    parts: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    for place, text in enumerate((made["text"][:half], made["text"][half:])):
        taken = slice(0, 1) if place == 0 else slice(1, None)
        said = {"delta": {"content": text}, "token_ids": first.get("token_ids", [])[taken]}
        tokens = {"content": (first["logprobs"] or {"content": []})["content"][taken]}
        parts.append({**said, "logprobs": tokens, "finish_reason": made["finish"] if place else None})
    shared = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    lines = [{**shared, "choices": [{"index": 0, **part}]} for part in parts]
    if "prompt_token_ids" in whole:
        lines[0]["prompt_token_ids"] = whole["prompt_token_ids"]
    return [f"data: {json.dumps(line)}\n\n".encode() for line in lines] + [b"data: [DONE]\n\n"]


def items(folder: Path) -> list[Item]:
    """All that was captured into a folder, by the format that ingest takes its files for."""
    found: list[Item] = []
    for path in sorted(folder.glob("*")):
        known = recognise(str(path))
        assert not isinstance(known, Refused), (path, known)
        assert known.NAME == "mmgrpo_capture"
        found += read_items(str(path), known)
    return found


def spans(folder: Path) -> list[Span]:
    return [item for item in items(folder) if isinstance(item, Span)]


def roots(folder: Path) -> list[Span]:
    return [span for span in spans(folder) if span.parent is None]


def calls(folder: Path) -> list[Span]:
    return [span for span in spans(folder) if span.kind == "llm"]


def scores(folder: Path) -> list[Score]:
    return [item for item in items(folder) if isinstance(item, Score)]
