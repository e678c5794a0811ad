"""Traces in a spool become the tables of a snapshot, made by as many processes as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pipeline.ingest_spooling import code_digest, taken_over
from pipeline.ingest_steps import Making, make_part, make_range
from pipeline.pool import Pools, pool_of
from stages.contract import Out
from stages.ingest import snapshot
from stages.ingest.account import Account
from stages.ingest.content import Content
from stages.ingest.onto import Onto
from stages.ingest.ranges import made_of, ranges_for
from stages.ingest.records import Record
from stages.ingest.rescore import Rescorer
from stages.ingest.spool import PARTS
from stages.ingest.taken_up import TakenUp


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
) -> dict[str, Any]:
    """Write the tables of the traces.

    Args:
        making: makes the state of a process.
        content: what the traces are.
        parts: the name of each part of them.
        rescorer: scores them anew, in this process; None for the logged scores.
        out: where the tables go.
        dev: share of the examples that become the dev split.
        workers: processes.

    Returns:
        Metrics; see `snapshot.finish`.

    Raises:
        DataError: when no trace is a rollout.
        StageError: when a process was killed.
    """
    count = ranges_for(content.spans)
    folder = taken_over(out.scratch, f"ranges-{count}-{code_digest()[:8]}")
    left = TakenUp(folder)
    left.keep(parts)
    tasks = [(place, name) for place, name in enumerate(parts) if name not in left.told]
    account, repeated = Account(), 0
    for noted, further in (left.told[name] for name in parts if name in left.told):
        account.add(Account.of_json(noted))
        repeated += further
    with pool_of(workers, partial(making, folder=folder, count=count)) as pool:
        for counted, further in pool.each(make_part, tasks):
            account.add(counted)
            repeated += further
            out.progress(account.traces, content.traces, "traces")
        ranges = [(sorted(folder.iterdir()), place, dev) for place in range(count)]
        made = pool.each(make_range, ranges) if rescorer is None else (made_of(*task, rescorer) for task in ranges)
        metrics = snapshot.finish(account, made, count, out)
    return metrics | {"repeated_spans": repeated}


def make_onto(
    making: Make, content: Content, rescorer: Rescorer | None, out: Out, *, dev: float, onto: Onto
) -> dict[str, Any]:
    """Write the tables of the traces and of the snapshot that they come onto. See `make`."""
    state, repeated = making(folder=out.scratch / "unused", count=1), Counter[str]()

    def made() -> Iterator[Record]:
        for place in range(PARTS):
            for record, further in state.records(place):
                repeated["spans"] += further
                yield record

    size = snapshot.Size(content.traces + onto.traces, content.spans + onto.spans)
    metrics = snapshot.write(onto.merged(made()), size, dev, out, rescorer=rescorer)
    return metrics | {"repeated_spans": repeated["spans"], "onto": dict(sorted(onto.counts.items()))}
