"""A small HTTP server that speaks vLLM's dialect over the tiny model, and can be told to fail in many ways."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.execution import ServerSection
from stages.engines import circuit, replicas, server_calls
from stages.engines.interface import Adapter, Request, Result, Sampling
from stages.engines.models import BaseModel, adapter_digest, load_model, load_tokenizer
from stages.engines.server_engine import ServerEngine
from stages.engines.texts import encode_chat
from stages.engines.transformers_engine import TransformersEngine


@dataclass
class Fault:
    """What goes wrong with one request for a completion."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent instead of the answer."""
    change: Callable[[dict[str, Any]], Any] | None = None
    """Given the answer, changes it."""
    hang_s: float = 0.0
    drop: bool = False
    """Close the connection without an answer."""


def with_choice(**values: Any) -> Fault:
    return Fault(change=lambda answer: answer["choices"][0].update(values))


@dataclass
class Dialect:
    """What the server can do."""

    ids: bool = True
    logprobs: bool = True
    kind: str = "processed"
    loading: bool = True
    """Whether adapters are loaded at run time."""
    root: str = "/"
    """Adapters whose paths begin with this are on its disk."""
    listed: bool = True
    fingerprint: str | None = "vllm-0.32.0-0badcafe"
    max_model_len: int = 4096
    key: str = ""
    tokenize: Callable[[list[int]], list[int]] | None = lambda ids: ids
    rank: int = 16
    """Highest rank of adapters."""
    moves: dict[str, str] = field(default_factory=dict)
    """Paths of adapters by what they are called here."""


class KitServer:
    def __init__(self, base: BaseModel, dialect: Dialect | None = None, name: str = "tiny") -> None:
        self.base, self.dialect, self.name = base, dialect or Dialect(), name
        self.engine = TransformersEngine(base, "float32", 4096, "cpu")
        self.tokenizer = load_tokenizer(base)
        self.model = load_model(base, "float32")
        self.adapters: dict[str, Adapter] = {}
        self.faults: list[Fault] = []
        """For the next requests for completions, one each."""
        self.seen: list[tuple[str, Any]] = []
        """Path and body of every POST."""
        self.flying = self.most = 0
        self.slow_s = 0.0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._inbox: queue.SimpleQueue[tuple[Request, Future[Result]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self.port = 0
        self.http: ThreadingHTTPServer | None = None
        self.revive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def revive(self) -> None:
        outer = self

        class Handler(_Handler):
            kit = outer

        self.http = _Http(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def die(self) -> None:
        """As if the process had been killed: connections break, adapters are gone."""
        http, self.http = self.http, None
        if http is None:
            return
        http.shutdown()
        http.server_close()
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            one.close() if one.fileno() < 0 else one.shutdown(socket.SHUT_RDWR)
        self.adapters.clear()

    def die_for(self, seconds: float) -> None:
        self.die()
        threading.Timer(seconds, self.revive).start()

    def close(self) -> None:
        self.die()
        self._inbox.put(None)

    def completions(self) -> list[dict[str, Any]]:
        """Bodies of the requests for completions so far, without those of probes."""
        return [body for path, body in self.seen if path.endswith("completions") and body["max_tokens"] > 1]

    def _work(self) -> None:
        while (first := self._inbox.get()) is not None:
            time.sleep(0.002)
            batch = [first]
            while not self._inbox.empty():
                if (more := self._inbox.get()) is None:
                    return
                batch.append(more)
            try:
                for (_, future), result in zip(batch, self.engine.generate([one for one, _ in batch]), strict=True):
                    future.set_result(result)
            except Exception as error:  # noqa: BLE001 - for the handler that waits
                for _, future in batch:
                    future.set_exception(error)

    def generate(self, request: Request) -> Result:
        future: Future[Result] = Future()
        self._inbox.put((request, future))
        return future.result()

    def best(self, ids: list[int], sampling: Sampling, count: int) -> dict[str, float]:
        """The likeliest tokens of the distribution that `kind` names."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, -1].float()
        if self.dialect.kind != "raw" and sampling.temperature:
            logits = logits / sampling.temperature
        if self.dialect.kind == "processed" and sampling.top_k:
            floor = logits.topk(sampling.top_k).values[-1]
            logits = logits.masked_fill(logits < floor, -torch.inf)
        values, tokens = logits.log_softmax(-1).topk(count)
        return {
            f"token_id:{token}": max(value, -9999.0)
            for value, token in zip(values.tolist(), tokens.tolist(), strict=True)
        }


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # connections are broken on purpose


class _Handler(BaseHTTPRequestHandler):
    kit: KitServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.kit._lock:
            self.kit._sockets.add(self.connection)

    def finish(self) -> None:
        with self.kit._lock:
            self.kit._sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        kit = self.kit
        if not self._allowed():
            return
        if self.path == "/v1/models" and kit.dialect.listed:
            base = {"id": kit.name, "object": "model", "max_model_len": kit.dialect.max_model_len}
            self.answer(200, {"object": "list", "data": [base, *({"id": name} for name in kit.adapters)]})
        elif self.path == "/version" and kit.dialect.ids:
            self.answer(200, {"version": "0.32.0"})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        self.kit.seen.append((self.path, body))
        handlers = {
            "/v1/completions": self.complete,
            "/v1/chat/completions": self.chat,
            "/tokenize": self.tokenize,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
        }
        handlers.get(self.path, self.missing)(body)

    def _allowed(self) -> bool:
        key = self.kit.dialect.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.answer(401, {"error": f"Unauthorized: {self.headers.get('Authorization')}"})
            return False
        return True

    def missing(self, _: Any) -> None:
        self.answer(404, {"detail": "Not Found"})

    def tokenize(self, body: dict[str, Any]) -> None:
        if self.kit.dialect.tokenize is None:
            return self.missing(body)
        ids = self.kit.tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
        return self.answer(200, {"tokens": self.kit.dialect.tokenize(ids), "count": len(ids)})

    def load(self, body: dict[str, Any]) -> None:
        kit, name, path = self.kit, body["lora_name"], body["lora_path"]
        if not kit.dialect.loading:
            return self.missing(body)
        if name in kit.adapters:
            return self.error(400, f"The lora adapter '{name}' has already been loaded.")
        folder = Path(kit.dialect.moves.get(path, path))
        if not path.startswith(kit.dialect.root) or not folder.is_dir():
            return self.error(404, f"Loading lora {name} failed: No adapter found for <path>")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        if rank > kit.dialect.rank:
            said = f"LoRA rank {rank} is greater than max_lora_rank {kit.dialect.rank}."
            return self.error(500, f"Call to add_lora method failed: Worker failed with error '{said}', please check")
        kit.adapters[name] = Adapter(folder, adapter_digest(folder))
        return self.send(200, b"Success: LoRA adapter added successfully.", {"Content-Type": "text/plain"})

    def unload(self, body: dict[str, Any]) -> None:
        if self.kit.adapters.pop(body["lora_name"], None) is None:
            return self.error(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        return self.send(200, b"Success: removed.", {"Content-Type": "text/plain"})

    def complete(self, body: dict[str, Any]) -> None:
        if not self.kit.dialect.ids:
            return self.error(400, "prompt: expected a string")
        return self.sample(body, body["prompt"], self.of_ids)

    def chat(self, body: dict[str, Any]) -> None:
        return self.sample(body, list(encode_chat(self.kit.tokenizer, body["messages"])), self.of_text)

    def sample(self, body: dict[str, Any], ids: list[int], form: Callable[..., dict[str, Any]]) -> None:
        kit = self.kit
        with kit._lock:
            fault = kit.faults.pop(0) if kit.faults and body["max_tokens"] > 1 else Fault()
            kit.flying += 1
            kit.most = max(kit.most, kit.flying)
        try:
            time.sleep(kit.slow_s + fault.hang_s)
            self.serve(body, ids, form, fault)
        finally:
            with kit._lock:
                kit.flying -= 1

    def serve(self, body: dict[str, Any], ids: list[int], form: Callable[..., dict[str, Any]], fault: Fault) -> None:
        kit = self.kit
        if fault.drop:
            return self.connection.shutdown(socket.SHUT_RDWR)
        if fault.status != 200:
            return self.error(fault.status, f"told to answer {fault.status}", fault.headers)
        adapter = kit.adapters.get(body["model"])
        if body["model"] != kit.name and adapter is None:
            return self.error(404, f"The model `{body['model']}` does not exist.")
        sampling = Sampling(body["temperature"], body.get("top_p"), body.get("top_k") or None, body["max_tokens"])
        result = kit.generate(Request(tuple(ids), sampling, body["seed"], adapter))
        answer = form(body, ids, sampling, result)
        if fault.change:
            answer = fault.change(answer) or answer
        data = json.dumps(answer).encode()
        return self.send(200, data if fault.body is None else fault.body, {"Content-Type": "application/json"})

    def of_ids(self, body: dict[str, Any], ids: list[int], sampling: Sampling, result: Result) -> dict[str, Any]:
        assert result.completion_ids is not None
        choice: dict[str, Any] = {"index": 0, "text": result.text, "finish_reason": result.finish_reason}
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(result.completion_ids), "prompt_token_ids": ids}
        if self.kit.dialect.logprobs and body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": self.logprobs(ids, result)}
            if body["logprobs"]:
                choice["logprobs"]["top_logprobs"] = [self.kit.best(ids, sampling, body["logprobs"])]
        return self.whole("text_completion", choice, ids, result)

    def logprobs(self, ids: list[int], result: Result) -> list[float]:
        assert result.logprobs is not None
        assert result.completion_ids is not None
        if self.kit.dialect.kind == "processed":
            return list(result.logprobs)
        with torch.inference_mode():
            scores = self.kit.model(torch.tensor([[*ids, *result.completion_ids]])).logits[0, len(ids) - 1 : -1]
        return scores.log_softmax(-1)[range(len(result.completion_ids)), list(result.completion_ids)].tolist()

    def of_text(self, body: dict[str, Any], ids: list[int], sampling: Sampling, result: Result) -> dict[str, Any]:
        message = {"role": "assistant", "content": result.text}
        return self.whole(
            "chat.completion", {"index": 0, "message": message, "finish_reason": result.finish_reason}, ids, result
        )

    def whole(self, kind: str, choice: dict[str, Any], ids: list[int], result: Result) -> dict[str, Any]:
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(result.completion_ids or ())}
        fingerprint = self.kit.dialect.fingerprint
        return {"id": "1", "object": kind, "choices": [choice], "usage": usage, "system_fingerprint": fingerprint}

    def error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.answer(status, {"error": {"message": message, "code": status}}, headers)

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def engine_over(*servers: KitServer, context: int = 4096, **section: Any) -> ServerEngine:
    urls = tuple(server.url for server in servers)
    quick = {"timeout_s": 20.0, "patience_s": 5.0} | section
    return ServerEngine(servers[0].base, context, ServerSection(urls=urls, **quick))


def servers(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KitServer]]:
    """Starts servers by what they speak, and closes them in the end; those who ask them wait shortly."""
    monkeypatch.setattr(circuit, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(server_calls, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(replicas, "LIMITED_S", 0.05)
    started: list[KitServer] = []

    def starting(**dialect: Any) -> KitServer:
        started.append(KitServer(base, Dialect(**dialect)))
        return started[-1]

    yield starting
    for server in started:
        server.close()
