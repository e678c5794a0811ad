"""`mmgrpo report RUN --serve`: a server for this machine alone, for one person, until Ctrl-C.

It listens on the loopback address, answers GET only, and only who has the token that the terminal printed.
"""

from __future__ import annotations

import errno
import secrets
import socketserver
import sys
import threading
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pipeline.browsing.answers import HEADERS, Answer, answer
from pipeline.browsing.guard import HOST, cookie_name, cookie_of, host_allowed, token_fits, wanted_by_itself
from pipeline.browsing.live import Live
from pipeline.terminal import say, show
from schemas.errors import RecipeError

AT_ONCE = 2
"""Requests that read tables at the same time; others wait."""
LONGEST_QUERY = 4096


class ReportServer(ThreadingHTTPServer):
    """Serves one run folder. `address` is what a person opens."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.live = Live(folder)
        self.token = secrets.token_urlsafe(32)
        self.reading = threading.BoundedSemaphore(AT_ONCE)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            hint = "another program uses it; give another one with --port, or none to take a free one"
            raise RecipeError(f"port {port} of {HOST}: {hint if taken else error.strerror or error}") from None

    def server_bind(self) -> None:
        """Bind without asking any name server who this machine is, as the base class would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def address(self) -> str:
        """The address, with the token."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Clients that went away are no news."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            traceback.print_exc()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ReportServer
    server_version, sys_version = "mmgrpo", ""
    timeout = 30  # seconds, of a connection that says nothing

    def do_GET(self) -> None:
        """Answer a request, if whoever asks may."""
        port = self.server.server_port
        if not host_allowed(self.headers.get_all("Host"), port):
            self._send(Answer("This server answers to its own address only.", status=HTTPStatus.FORBIDDEN))
            return
        try:
            url = urlsplit(self.path[:LONGEST_QUERY])
        except ValueError:
            url = None
        if url is None or url.netloc or url.scheme or len(self.path) > LONGEST_QUERY:
            self._send(Answer("This is no request of the report's.", status=HTTPStatus.BAD_REQUEST))
            return
        if not wanted_by_itself(self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")):
            self._send(Answer("Another page asks for this.", status=HTTPStatus.FORBIDDEN))
            return
        query = dict(parse_qsl(url.query, keep_blank_values=False, errors="replace"))
        given = query.pop("token", None)
        came = given if given is not None else cookie_of(self.headers.get("Cookie"), cookie_name(port))
        if not token_fits(came, self.server.token):
            told = "Open the address that `mmgrpo report --serve` printed: it holds a token that is missing here."
            self._send(Answer(told, status=HTTPStatus.FORBIDDEN))
            return
        with self.server.reading:
            found = self._answer(url.path, query)
        self._send(found, cookie=given is not None)

    def _answer(self, path: str, query: dict[str, str]) -> Answer:
        try:
            return answer(self.server.live, path, query)
        except Exception:  # noqa: BLE001 - a defect must not end the connection without a word
            traceback.print_exc()
            return Answer("A defect: the terminal says more.", status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, found: Answer, *, cookie: bool = False) -> None:
        body = found.body.encode(errors="replace")
        self.send_response(found.status)
        for name, value in (HEADERS | dict(found.headers)).items():
            self.send_header(name, value)
        if cookie:
            kept = f"{cookie_name(self.server.server_port)}={self.server.token}"
            self.send_header("Set-Cookie", f"{kept}; Path=/; HttpOnly; SameSite=Strict")
        self.send_header("Content-Type", f"{found.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Errors of the protocol as plain text. A method that is not known here is one that is not allowed."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            self._send(Answer("Only GET.", status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET"}))
        else:
            self._send(Answer(status.phrase, status=status))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Nothing: addresses hold the token."""


def serve(folder: Path, port: int) -> int:
    """Serve a run until Ctrl-C; the exit code.

    Raises:
        RecipeError: when the port cannot be had.
        DataError: when the run folder is damaged.
    """
    with ReportServer(folder, port) as server:
        try:
            show(f"Rollouts: {server.address}\nFor this machine only; Ctrl-C ends it.", flush=True)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("\nEnded.")
    return 0
