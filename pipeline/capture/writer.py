"""Captured runs on their way to the disk: Parquet files of bounded size, written by a thread of its own.

A file is written under a hidden name and renamed when it is whole, so that readers see whole files only. Names hold the
process and a random part: any number of processes write into one folder. A folder that cannot be written is tried
again; until then runs wait in memory, and those for which there is no room are counted as lost.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.capture.tally import Tally
from schemas.capture import CAPTURE
from schemas.table import NAME_KEY, VERSION_KEY

_FOOTER = {NAME_KEY: CAPTURE.name.encode(), VERSION_KEY: str(CAPTURE.version).encode()}
_AGAIN_S = 1.0
"""Until a file that could not be written is tried again; twice as long each time."""
_LONGEST_S = 60.0


class Writer:
    """Takes tables of captured rows in, from any thread and without waiting, and writes them out.

    Args:
        folder: made when the first file is written.
        tally: counts `files`, `rows`, and what went wrong.
        runs: most tables of a file.
        seconds: longest that a table waits.
        size: bytes at which a file is written, however few its tables are.
        room: bytes that may wait.
    """

    def __init__(self, folder: Path, tally: Tally, *, runs: int, seconds: float, size: int, room: int) -> None:
        self._folder, self._tally = folder, tally
        self._runs, self._seconds, self._size, self._room = runs, seconds, size, room
        self._begin()
        child = weakref.WeakMethod(self._in_child)
        os.register_at_fork(after_in_child=lambda: (method := child()) and method())

    def _begin(self) -> None:
        self._state = threading.Condition()
        self._waiting: list[tuple[float, pa.Table]] = []
        self._bytes = 0
        self._added = self._out = self._wanted = 0
        """Tables taken in, written, and how many are to be written at once."""
        self._failures, self._tries, self._not_before = 0, 0, 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def _in_child(self) -> None:
        """In a process that was forked: what waits is its parent's to write, and the thread is not there."""
        closed = self._closed
        self._begin()
        self._closed = closed
        self._tally.renew()

    def add(self, table: pa.Table) -> None:
        """Take a table in; it is dropped and counted where there is no room for it, or nobody to write it."""
        with self._state:
            if self._closed or self._bytes + table.nbytes > self._room:
                self._tally.trouble("lost", "a run was lost: " + ("closed" if self._closed else "no room for it"))
                return
            self._waiting.append((time.monotonic(), table))
            self._bytes += table.nbytes
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mmgrpo-capture", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def flush(self, timeout: float) -> bool:
        """Write what waits now. Returns whether it is on the disk; False after a try in vain, or when time is over."""
        with self._state:
            target, failures = self._added, self._failures
            self._wanted, self._not_before = target, 0.0
            self._state.notify_all()
            self._state.wait_for(lambda: self._out >= target or self._failures > failures, timeout)
            return self._out >= target

    def close(self, timeout: float = 10.0) -> bool:
        """Write what waits and end. Returns whether all was written; what was not is counted as lost."""
        with self._state:
            self._closed, self._not_before = True, 0.0
            self._state.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        with self._state:
            lost, self._waiting, self._bytes = len(self._waiting), [], 0
        if lost:
            self._tally.trouble("lost", f"{lost} runs were lost: their file could not be written", lost)
        return not lost

    def _work(self) -> None:
        while True:
            with self._state:
                while (left := self._left()) > 0:
                    self._state.wait(None if left == float("inf") else left)
                batch = self._batch()
            written = bool(batch) and self._written(batch)
            with self._state:
                self._done(batch, written)
                if self._closed and not (written and self._waiting):
                    return

    def _left(self) -> float:
        """Seconds until there is something to do."""
        if self._closed:
            return 0.0
        if not self._waiting:
            return float("inf")
        now = time.monotonic()
        full = len(self._waiting) >= self._runs or self._bytes >= self._size or self._out < self._wanted
        due = now if full else self._waiting[0][0] + self._seconds
        return max(due, self._not_before) - now

    def _batch(self) -> list[pa.Table]:
        """The tables of the next file."""
        batch: list[pa.Table] = []
        size = 0
        for _, table in self._waiting[: self._runs]:
            if batch and size + table.nbytes > self._size:
                break
            batch.append(table)
            size += table.nbytes
        return batch

    def _done(self, batch: list[pa.Table], written: bool) -> None:
        if written:
            self._bytes -= sum(table.nbytes for table in batch)
            del self._waiting[: len(batch)]
            self._out += len(batch)
            self._tries, self._not_before = 0, 0.0
        elif batch:
            self._not_before = time.monotonic() + min(_LONGEST_S, _AGAIN_S * 2.0 ** min(self._tries, 10))
            self._tries += 1
            self._failures += 1
            self._wanted = 0
        self._state.notify_all()

    def _written(self, tables: list[pa.Table]) -> bool:
        name = f"{time.time_ns():019d}-{os.getpid()}-{uuid.uuid4().hex[:8]}.parquet"
        draft = self._folder / f".{name}.partial"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            table = pa.concat_tables(tables).combine_chunks().replace_schema_metadata(_FOOTER)
            with draft.open("wb") as file:
                pq.write_table(table, file, compression="zstd", row_group_size=1 << 14)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._folder / name)
        except Exception as error:  # noqa: BLE001 - a full disk, a folder that is gone: the program goes on
            self._tally.failed(f"writing to {self._folder}", error)
            _remove(draft)
            return False
        self._tally.add("files")
        self._tally.add("rows", table.num_rows)
        return True


def _remove(draft: Path) -> None:
    try:
        draft.unlink(missing_ok=True)
    except OSError:
        return
