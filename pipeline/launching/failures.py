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
    # By SIGTERM torchrun ends the others, once it has seen one of them fail.
    ended.sort(key=lambda each: (each["exit"] == -signal.SIGTERM, each["exit"] > 0, each["rank"]))
    if ended and ended[0]["exit"] < 0 and ended[0]["exit"] != -signal.SIGTERM:
        return _of_process(ended[0], logs, size, node)
    for path in sorted(folder.glob("*.error")):
        if (error := _noted(path)) is not None:
            return error
    if ended:
        return _of_process(ended[0], logs, size, node)
    return StageError(f"the {size} processes that train{node} did not come together. {GOES_ON}.{_shown(agent)}")


def _of_process(one: dict[str, int], logs: Path, size: int, node: str) -> StageError:
    how = f"was ended by {_signal(-one['exit'])}" if one["exit"] < 0 else f"failed with exit code {one['exit']}"
    # Who is killed has had no time to say why.
    killed = one["exit"] == -signal.SIGKILL
    more = "" if killed else _last_lines(logs, one["local_rank"])
    memory = ", as the kernel does when memory runs out" if killed else ""
    return StageError(f"process {one['rank']} of the {size} that train{node} {how}{memory}. {GOES_ON}.{more}")


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
