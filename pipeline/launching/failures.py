"""Why a stage of several processes failed: what they wrote down, how they ended, and their last lines."""

from __future__ import annotations

import builtins
import json
import signal
from pathlib import Path
from typing import Any

import schemas.errors
from schemas.errors import MmgrpoError, StageError

FAILURES = "failures.json"
"""Which processes failed, as torchrun saw it."""
LINES = 12
"""Last lines of a process that are repeated."""
GOES_ON = "What was committed is kept: the same command goes on from the last checkpoint"


def note(folder: Path, who: str, error: Exception) -> None:
    """Write an error down, for the command that started the processes to raise."""
    document: dict[str, Any] = {"kind": type(error).__name__, "text": str(error)}
    if isinstance(error, OSError) and error.errno is not None:
        document |= {"errno": error.errno, "text": error.strerror, "file": error.filename and str(error.filename)}
    draft = folder / f"{who}.tmp"
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(folder / f"{who}.error")


def failure(folder: Path, logs: Path, agent: str, size: int, node: str) -> Exception:
    """What to raise for a node of processes that failed.

    Args:
        folder: where notes are.
        logs: where torchrun put the output of each process.
        agent: what torchrun itself said.
        size: how many processes there are on all nodes.
        node: in words, where there are several nodes; else empty.
    """
    ended = json.loads((folder / FAILURES).read_bytes()) if (folder / FAILURES).exists() else []
    if killed := [each for each in ended if each["exit"] < 0]:
        first = killed[0]
        name = _signal(-first["exit"])
        memory = ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
        return StageError(
            f"process {first['rank']} of the {size} that train{node} was ended by {name}{memory}. {GOES_ON}."
            f"{_last_lines(logs, first['local_rank'])}"
        )
    for path in sorted(folder.glob("*.error")):
        if (error := _noted(path)) is not None:
            return error
    if ended:
        first = ended[0]
        return StageError(
            f"process {first['rank']} of the {size} that train{node} failed with exit code {first['exit']}. {GOES_ON}."
            f"{_last_lines(logs, first['local_rank'])}"
        )
    return StageError(f"the {size} processes that train{node} did not come together. {GOES_ON}.{_shown(agent)}")


def _noted(path: Path) -> Exception | None:
    document = json.loads(path.read_bytes())
    if "errno" in document:
        return OSError(document["errno"], document["text"], document["file"])
    kind = getattr(schemas.errors, document["kind"], None) or getattr(builtins, document["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, MmgrpoError)):
        return None
    try:
        return kind(document["text"])
    except TypeError:  # one that is made of parts
        wrapped = StageError(document["text"])
        wrapped.exit_code = kind.exit_code
        return wrapped


def _last_lines(logs: Path, local_rank: int) -> str:
    found = sorted(logs.glob(f"*/attempt_*/{local_rank}/stderr.log"))
    return _shown(found[-1].read_text(errors="replace") if found else "")


def _shown(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-LINES:]
    return "".join(["\nIts last lines:", *(f"\n  | {line}" for line in lines)]) if lines else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
