"""What LM calls were answered, by what was asked: a file in the scratch folder that survives a kill.

DSPy's optimizers begin from nothing each time. With equal answers they do the same again, so one that was killed
comes back to where it was without paying for a call twice.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas.canonical import canonical_json, digest


@dataclass(frozen=True)
class Answer:
    """The answer to an LM call. Tokens are None where the LM does not tell them."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None


class Memory:
    """Answers by key. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._known = _read(path)
        self._file = path.open("ab")

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Answer | None:
        """The answer to what the key stands for, if it was ever asked."""
        return self._known.get(key)

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer, in the file before anyone sees it."""
        row = {"key": key, **asdict(answer)}
        line = canonical_json({**row, "digest": digest(row)}) + "\n"
        with self._lock:
            self._file.write(line.encode())
            self._file.flush()
            self._known[key] = answer

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()


def _read(path: Path) -> dict[str, Answer]:
    """The answers of earlier processes. What follows a line that is torn or damaged is cut off, and asked again."""
    if not path.exists():
        return {}
    known: dict[str, Answer] = {}
    good = 0
    with path.open("r+b") as file:
        for line in file:
            row = _row(line)
            if row is None:
                break
            key = str(row.pop("key"))
            known[key] = Answer(**row)
            good += len(line)
        file.truncate(good)
    return known


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(line)
        expected = row.pop("digest")
    except (ValueError, KeyError, AttributeError):
        return None
    return row if line.endswith(b"\n") and digest(row) == expected else None
