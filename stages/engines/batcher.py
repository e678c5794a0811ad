"""The batcher: pending calls of many program runs, served by the one engine.

Programs submit from any thread. The engine works in one thread, the one that calls `step`. To an engine that takes
requests at any time, calls go as they come. To others they go in batches, after a moment of quiet: a very short one
when every live run waits for an answer, a longer one while some are still busy.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import DataError, RecipeError
from stages.engines.feed import Feed
from stages.engines.interface import ContinuousEngine, Engine
from stages.engines.pending import Pending, Served, request_of
from stages.engines.signals import LMFailure, RunEnded

GRACE_S = 0.0005
"""Quiet before a batch goes out when every live run waits: lets siblings of an async program's call come along."""
QUIET_S = 0.004
"""Quiet before a batch goes out while some runs are busy."""
PATIENCE_S = 0.1
"""Longest a call waits for others when it never gets quiet."""


class Batcher:
    """Collects calls and messages from program runs, and serves the calls."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._feed = Feed(engine) if isinstance(engine, ContinuousEngine) else None
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pending: list[Pending] = []
        self._oldest = 0.0

    def submit(self, pending: Pending) -> None:
        """Queue a call, from any thread."""
        pending.clock.pause()
        self._inbox.put(pending)

    def post(self, message: Any) -> None:
        """Send any other message to the engine's thread."""
        self._inbox.put(message)

    def step(self, everyone_waits: Callable[[], bool], idle_s: float) -> list[Any]:
        """Wait for what comes in, serve what is due; returns the messages that came in."""
        if self._feed is not None:
            return self._step_on(self._feed, idle_s)
        wait = (GRACE_S if everyone_waits() else QUIET_S) if self._pending else idle_s
        received = self._receive(wait)
        calls = [item for item in received if isinstance(item, Pending)]
        if calls and not self._pending:
            self._oldest = time.monotonic()
        self._pending += calls
        if self._pending and (not received or time.monotonic() - self._oldest > PATIENCE_S):
            batch, self._pending = self._pending, []
            self.serve(batch)
        return [item for item in received if not isinstance(item, Pending)]

    def _step_on(self, feed: Feed, idle_s: float) -> list[Any]:
        received = self._receive(0.0 if feed.busy else idle_s)
        feed.take(self._encoded([item for item in received if isinstance(item, Pending)]))
        if feed.busy:
            feed.work()
        return [item for item in received if not isinstance(item, Pending)]

    def _receive(self, wait: float) -> list[Any]:
        received = []
        if wait:
            try:
                received.append(self._inbox.get(timeout=wait))
            except queue.Empty:
                return received
        while True:
            try:
                received.append(self._inbox.get_nowait())
            except queue.Empty:
                return received

    def serve(self, batch: Sequence[Pending]) -> None:
        """Answer every call of a batch: `LMFailure` where the engine fails, `RunEnded` where the run is over."""
        self._generate(self._encoded(batch))

    def _encoded(self, batch: Sequence[Pending]) -> list[tuple[Pending, tuple[int, ...]]]:
        """The calls that are still waited for, with their prompt ids."""
        encoded: list[tuple[Pending, tuple[int, ...]]] = []
        for pending in batch:
            if pending.over():
                pending.settle(RunEnded())
                continue
            try:
                encoded.append((pending, self.engine.encode_chat(pending.messages)))
            except Exception as error:  # noqa: BLE001 - a template may refuse in any way: it is this caller's error
                pending.settle(ValueError(f"the model's chat template refused the messages: {error}"))
        return encoded

    def _generate(self, calls: list[tuple[Pending, tuple[int, ...]]]) -> None:
        """Generate; when the engine fails, halve the batch until the calls that it fails on stand alone."""
        if not calls:
            return
        requests = [request_of(call, ids) for call, ids in calls]
        try:
            results = self.engine.generate(requests)
        except (DataError, RecipeError):
            raise  # what it was given is wrong, an adapter of another base for example: no other try would fare better
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, its callers must be told
            if len(calls) == 1:
                calls[0][0].settle(LMFailure(f"{type(error).__name__}: {error}"))
                return
            middle = len(calls) // 2
            self._generate(calls[:middle])
            self._generate(calls[middle:])
            return
        assert len(results) == len(calls), f"{len(results)} results for {len(calls)} requests"
        for (call, ids), result in zip(calls, results, strict=True):
            call.settle(Served(ids, result))
