"""What judges answered, by what they were asked: a folder that outlives runs, so that nothing is paid for twice.

An answer depends on the LM, the messages, the sampling and (for draws) the recipe's seed alone. So results are the
same with the folder and without it, but for endpoints that answer the same question in two ways.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path

from schemas.canonical import canonical_json, digest

log = logging.getLogger(__name__)
FOLDER = "judges"
"""Below the cache folder."""


@dataclass(frozen=True)
class Answer:
    """A completion, why it ended, and what sampled it."""

    completion: str
    finish_reason: str
    engine: str | None = None
    """None where that was not kept."""


@dataclass
class Answers:
    """Answers by key, in files. Safe to use from several threads and processes."""

    folder: Path
    remembered: int = 0
    """Questions that were answered from here."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: dict[str, Future[None]] = field(default_factory=dict)

    def claim(self, key: str) -> Answer | Future[None] | None:
        """The answer; or a future, where it is asked for already: done once there is an answer, or none to be had.

        None: it is for the caller to ask, and to say how that ended by `settle`.
        """
        with self._lock:
            if (answer := self._read(key)) is not None:
                self.remembered += 1
                return answer
            if key in self._asked:
                return self._asked[key]
            self._asked[key] = Future()
            return None

    def settle(self, key: str, answer: Answer | None) -> None:
        """Keep the answer to a claimed question; None: there is none."""
        if answer is not None:
            self._write(key, answer)
        with self._lock:
            asked = self._asked.pop(key)
        asked.set_result(None)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def _read(self, key: str) -> Answer | None:
        """A damaged file (it has its own digest) is as good as none: the question is asked again."""
        try:
            row = json.loads(self._path(key).read_bytes())
            expected = row.pop("digest")
            return Answer(**row) if digest(row) == expected else None
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError, KeyError, TypeError):
            return None

    def _write(self, key: str, answer: Answer) -> None:
        path, row = self._path(key), asdict(answer)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
                file.write(canonical_json({**row, "digest": digest(row)}).encode())
            Path(file.name).replace(path)
        except OSError as error:  # costs another call some day, and no result
            log.warning("an answer of a judge cannot be kept in %s (%s)", path.parent, error.strerror or error)
