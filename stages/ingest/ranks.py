"""The calls of a trace at their places among those of their modules.

- Retries: a call with `mmgrpo.attempt` is that attempt. Without it, a call that sends its module's last prompt again,
  after an answer that failed or is not there, is the next attempt of the same invocation.
- invocation_index: `mmgrpo.invocation_index`, else the rank among the module's calls by start. Calls of a module that
  overlap, or of which nothing tells the order, are marked `concurrent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stages.ingest.normal import Call, Span


class Placed(NamedTuple):
    """A call that a module is known for."""

    span: Span
    call: Call
    module: str


class Ranked(NamedTuple):
    """A call at its place among those of its module."""

    placed: Placed
    rank: int
    attempt: int
    unsure: bool
    """Whether the log leaves open which of the module's calls it is."""


def ranked(placed: Sequence[Placed]) -> list[Ranked]:
    """The calls at their places, in the order in which they came."""
    modules: dict[str, list[Placed]] = {}
    for item in placed:
        modules.setdefault(item.module, []).append(item)
    found: dict[str, Ranked] = {}
    for mine in modules.values():
        unsure = _unsure(mine) if len(mine) > 1 else ()
        rank, attempt, last = -1, 0, None
        for item in mine:
            again = last is not None and _tries_again(last, item)
            rank, attempt = (rank, attempt + 1) if again else (rank + 1, 0)
            span = item.span
            place, tried = _logged(span.invocation_index), _logged(span.attempt)
            found[span.span] = Ranked(
                item,
                rank if place is None else place,
                attempt if tried is None else tried,
                place is None and span.span in unsure,
            )
            last = item
    return [found[item.span.span] for item in placed]


def policy_of(placed: Iterable[Placed]) -> str | None:
    """The policy that sampled the calls, where the log says so.

    A module of which no call says is another model's, as a judge's: it does not make the others' policy unknown.
    """
    by_module: dict[str, set[str | None]] = {}
    for item in placed:
        by_module.setdefault(item.module, set()).add(item.span.policy)
    found = {policy for policies in by_module.values() if policies != {None} for policy in policies}
    return found.pop() if len(found) == 1 else None


def _logged(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 2**31 else None


def _tries_again(before: Placed, now: Placed) -> bool:
    if now.span.attempt is not None:
        return now.span.attempt > 0
    failed = before.span.error is not None or before.call.completion is None
    return failed and before.call.messages == now.call.messages


def _unsure(mine: Sequence[Placed]) -> set[str]:
    """Calls of one module that overlap another one, or stand at the same place."""
    found: set[str] = set()
    latest: Span | None = None
    for before, now in pairwise([item.span for item in mine]):
        if latest is None or (before.end or before.start or 0) > (latest.end or latest.start or 0):
            latest = before
        same = (before.start, before.order) == (now.start, now.order)
        overlaps = now.start is not None and latest.end is not None and now.start < latest.end
        if same or overlaps:
            found |= {now.span, before.span if same else latest.span}
    return found
