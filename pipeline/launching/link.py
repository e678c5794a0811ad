"""Process 0 writes through the command that started it: a socket, one line of JSON each way.

The command holds the artifact's lock, its journal and its meter; process 0 has the scratch folder alone. So what is
committed is committed by one process, the same as ever, and ends when that one does.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.contract import Out


class Link:
    """The end of the command that started the processes."""

    def __init__(self, path: Path, out: Out) -> None:
        self._out = out
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._peer: socket.socket | None = None
        self._buffer = b""
        self.metrics: dict[str, Any] | None = None
        """What the stage returned, once process 0 has said so."""

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._peer, self._listener):
            if end is not None:
                end.close()

    def serve(self, seconds: float) -> None:
        """Do what process 0 asks for; returns when it has asked nothing for so long, or is gone."""
        while select.select([self._peer or self._listener], [], [], seconds)[0]:
            if self._peer is None:
                self._peer, _ = self._listener.accept()
                continue
            try:
                data = self._peer.recv(65536)
            except ConnectionError:
                data = b""
            if not data:
                self._peer.close()
                self._peer, self._buffer = None, b""
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                answer = self._answer(json.loads(line))
                self._peer.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, asked: dict[str, Any]) -> Any:
        names: dict[str, Callable[..., Any]] = {
            "commit_shard": lambda name, file: self._out.commit_shard(name, Path(file)),
            "committed": lambda prefix: {name: str(path) for name, path in self._out.committed(prefix).items()},
            "drop": self._out.drop,
            "exclude": self._out.exclude,
            "progress": lambda done, total, unit, figures: self._out.progress(done, total, unit, **figures),
            "telemetry": lambda figures: self._out.telemetry(**figures),
            "done": self._done,
        }
        return names[asked["do"]](*asked["with"])

    def _done(self, metrics: dict[str, Any]) -> None:
        self.metrics = metrics


class LinkedOut:
    """The `Out` of process 0: everything is asked of the command that started it."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self.scratch = scratch
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._answers = self._socket.makefile("rb")

    def commit_shard(self, name: str, file: Path) -> None:
        """Have a file committed."""
        self._ask("commit_shard", name, str(file.absolute()))

    def committed(self, prefix: str = "") -> dict[str, Path]:
        """What is committed."""
        return {name: Path(path) for name, path in self._ask("committed", prefix).items()}

    def drop(self, prefix: str) -> None:
        """Have shards left out."""
        self._ask("drop", prefix)

    def exclude(self, reason: str, count: int = 1) -> None:
        """Have rows counted."""
        self._ask("exclude", reason, count)

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """Have progress shown."""
        self._ask("progress", done, total, unit, figures)

    def telemetry(self, **figures: float) -> None:
        """Have figures added."""
        self._ask("telemetry", figures)

    def done(self, metrics: dict[str, Any]) -> None:
        """Say what the stage returned."""
        self._ask("done", metrics)

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._socket.sendall(json.dumps({"do": what, "with": arguments}).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise ConnectionError("the command that started this process is gone")
        return json.loads(line)
