"""Traces in a spool become the tables of a snapshot, made by as many processes as there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipeline.ingest_spooling import code_digest, taken_over
from pipeline.ingest_steps import Making, Part, make_part, make_range, take_older
from pipeline.pool import Pool, Pools, pool_of
from schemas.canonical import digest
from stages.contract import Out
from stages.ingest import snapshot
from stages.ingest.account import Account
from stages.ingest.content import Content
from stages.ingest.onto import Onto, compared
from stages.ingest.ranges import Made, made_of, ranges_for
from stages.ingest.rescore import Rescorer
from stages.ingest.taken_up import TakenUp

Task = TypeVar("Task")
Range = tuple[list[Path], int, float]
"""See `made_of`."""


class Make(Protocol):
    """Makes the state of a process, of a folder for ranges and of their number. It is sent to other processes."""

    def __call__(self, *, folder: Path, count: int) -> Making:
        """See `Making`."""


def make(
    making: Make,
    content: Content,
    parts: Sequence[str],
    rescorer: Rescorer | None,
    out: Out,
    *,
    dev: float,
    workers: int | Pools,
    older: Onto | None = None,
) -> dict[str, Any]:
    """Write the tables of the traces. Parts that a killed process had made are not made again.

    Args:
        making: makes the state of a process.
        content: what the traces are.
        parts: the name of each part of them.
        rescorer: scores them anew, in this process; None for the logged scores.
        out: where the tables go.
        dev: share of the examples that become the dev split.
        workers: processes.
        older: the snapshot that the traces come onto, which `making` knows too.

    Returns:
        Metrics; see `snapshot.finish`.

    Raises:
        DataError: when no trace is a rollout.
        StageError: when a process was killed; when the metric failed on every rollout.
    """
    count = ranges_for(content.spans + (older.spans if older else 0))
    folder = taken_over(out.scratch, f"ranges-{count}-{code_digest()[:8]}")
    tasks = {name: (place, name) for place, name in enumerate(parts)}
    taken = {} if older is None else {name: name for name in [_older(older, parts)]}
    left = TakenUp(folder)
    left.keep({*tasks, *taken})
    account, repeated, total = Account(), 0, content.traces + (older.traces - len(older.late) if older else 0)
    before, now = dict[str, str](), dict[str, str]()
    with pool_of(workers, partial(making, folder=folder, count=count)) as pool:
        for part in _each(pool, make_part, tasks, left):
            account.add(part.account)
            repeated += part.repeated
            now |= part.prints
            out.progress(account.traces, total, "traces")
        for part in _each(pool, take_older, taken, left):
            account.add(part.account)
            before |= part.prints
            now |= part.judged
        ranges = [(sorted(folder.iterdir()), place, dev) for place in range(count)]
        made = pool.each(make_range, ranges) if rescorer is None else _rescored(ranges, rescorer)
        metrics = snapshot.finish(account, made, count, out)
    told = {} if older is None else {"onto": compared(older, content.traces, before, now)}
    return metrics | {"repeated_spans": repeated} | told


def _older(older: Onto, parts: Sequence[str]) -> str:
    """The name of what is taken over: another where other scores come to it."""
    return digest(["older", sorted(older.again), sorted(older.late), sorted(parts) if older.late else []])


def _each(pool: Pool, step: Callable[[Making, Task], Part], tasks: Mapping[str, Task], left: TakenUp) -> Iterator[Part]:
    """What came of each task of a name: first of those that a killed process had finished."""
    yield from (Part.of_json(left.told[name]) for name in tasks if name in left.told)
    yield from pool.each(step, [task for name, task in tasks.items() if name not in left.told])


def _rescored(ranges: Iterable[Range], rescorer: Rescorer) -> Iterator[Made]:
    yield from (made_of(*item, rescorer) for item in ranges)
    rescorer.refuse_failure()
