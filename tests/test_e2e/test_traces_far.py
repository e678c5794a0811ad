"""Traces at an address that lets in whoever has it: nothing that is written or printed gives that away."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.test_e2e.kit import mmgrpo, own_recipe
from tests.test_e2e.test_traces import export, traces

USER, PASSWORD, SIGNATURE = "ada", "pa55-W0RD", "s1gn4ture"


@contextmanager
def served(data: bytes) -> Iterator[str]:
    """The address of a server that has one file, for whoever has the password and the signature."""
    wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fine = self.headers.get("Authorization") == wanted and self.path == f"/t.json?sig={SIGNATURE}"
            self.send_response(200 if fine else 403)
            self.send_header("Content-Length", str(len(data) if fine else 0))
            self.end_headers()
            if fine and self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{USER}:{PASSWORD}@127.0.0.1:{server.server_port}/t.json?sig={SIGNATURE}"
    finally:
        server.shutdown()


@pytest.mark.parametrize("whole", [True, False], ids=["read", "refused"])
def test_credentials_of_an_address_are_neither_kept_nor_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    recipe = own_recipe(tmp_path / "task")
    export([span for spans in traces(4) for span in spans], tmp_path / "t.json")
    data = (tmp_path / "t.json").read_bytes()
    with served(data if whole else b"not JSON") as address:
        options = [str(recipe), address, "--snapshots", str(tmp_path / "snapshots"), "--exec", "progress=plain"]
        monkeypatch.setattr(sys, "argv", ["mmgrpo", "ingest", *options])
        assert mmgrpo("ingest", *options) == (0 if whole else 3)
        wrong = address.replace(SIGNATURE, f"{SIGNATURE}-old")
        assert mmgrpo("ingest", recipe, wrong, "--snapshots", tmp_path / "snapshots") == 3
    told = capfd.readouterr()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "snapshots").rglob("*") if path.is_file())
    for secret in (PASSWORD, SIGNATURE):
        assert secret not in told.out + told.err
        assert secret.encode() not in kept
    assert "127.0.0.1" in told.err
