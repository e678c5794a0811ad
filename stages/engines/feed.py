"""Calls in flight at an engine that takes requests at any time."""

from __future__ import annotations

from collections.abc import Sequence

from stages.engines.interface import ContinuousEngine, Request, Result
from stages.engines.pending import Pending, Served, request_of
from stages.engines.signals import LMFailure, RunEnded

WORK_S = 0.02
"""Longest time the engine works before new calls are looked for, where it does not say so itself by its steps."""


class Feed:
    """Hands calls to the engine as they come, and answers to their callers as they are there."""

    def __init__(self, engine: ContinuousEngine) -> None:
        self._engine = engine
        self._flying: dict[int, tuple[Pending, tuple[int, ...]]] = {}
        self._tickets = 0

    @property
    def busy(self) -> bool:
        """Whether the engine has something to do."""
        return bool(self._flying)

    def take(self, calls: Sequence[tuple[Pending, tuple[int, ...]]]) -> None:
        """Hand calls with their prompt ids to the engine."""
        for call, ids in calls:
            self._tickets += 1
            self._flying[self._tickets] = call, ids
            self._engine.add(self._tickets, request_of(call, ids))

    def work(self) -> None:
        """Let the engine work for a moment; calls of runs that are over leave first."""
        for ticket in [ticket for ticket, (call, _) in self._flying.items() if call.over()]:
            self._engine.cancel(ticket)
            self._flying.pop(ticket)[0].settle(RunEnded())
        for ticket, outcome in self._engine.poll(WORK_S):
            call, ids = self._flying.pop(ticket)
            if isinstance(outcome, Exception):
                call.settle(LMFailure(f"{type(outcome).__name__}: {outcome}"))
            else:
                call.settle(Served(ids, outcome))


def serve_all(engine: ContinuousEngine, requests: Sequence[Request]) -> list[Result]:
    """`Engine.generate` for a continuous engine: all requests together.

    Raises:
        Exception: what the first failed request failed with; the others are cancelled.
    """
    tickets = [-1 - place for place in range(len(requests))]  # a feed's own are positive
    results: dict[int, Result] = {}
    try:
        for ticket, request in zip(tickets, requests, strict=True):
            engine.add(ticket, request)
        while len(results) < len(tickets):
            for ticket, outcome in engine.poll(WORK_S):
                results[ticket] = _result(outcome)
    except BaseException:
        for ticket in set(tickets) - results.keys():
            engine.cancel(ticket)
        raise
    return [results[ticket] for ticket in tickets]


def _result(outcome: Result | Exception) -> Result:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
