"""The job over all chunks: read, group, write, account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.parquet import write_table
from schemas.stream import TableWriter
from stages.contract import Out, Workers
from stages.grouping.advantage import ModuleMoments
from stages.grouping.elsewhere import Piece, Way, grouped, moments, pack
from stages.grouping.job import Result, finish, select_members, sums_by_module
from stages.grouping.load import Chunk, build
from stages.grouping.output import excluded_table, groups_table
from stages.grouping.ranges import Made, Make, UnorderedError, build_ordered, side_by_side, spooled, whole
from stages.grouping.report import summary_rows
from stages.grouping.rewards import check_parts
from stages.grouping.rules import Rules
from stages.grouping.tables import Tables
from stages.grouping.totals import Totals

RANGE = 1 << 18
"""Invocations of a range at most: small enough for caches, and for one range to be written while the next is made."""


def write_tables(
    tables: Tables, ages: pl.DataFrame, rules: Rules, limit: int, out: Out, *, workers: Workers | None = None
) -> Totals:
    """Write groups, excluded and summary.

    Args:
        tables: the inputs.
        ages: see `sources.policy_ages`.
        rules: the recipe's rules.
        limit: hold no more than about this many invocations at once.
        out: where to.
        workers: who works on the chunks; None: this process. The tables are read and written here in any case.
    """
    job, rows = Job(tables, ages, rules, out, workers), min(RANGE, limit)
    totals = job.run_in_order(rows)
    if totals is None and tables.calls.rows > limit:
        totals = job.run(Walk(lambda make: spooled(tables, rules, rows, out.scratch / "ranges", make)))
    elif totals is None:
        totals = job.run(Walk(lambda make: whole(tables, rules, make)))
    path = out.scratch / "summary.parquet"
    write_table(summary_rows(totals.figures, totals.excluded), path, SUMMARY)
    for name in ("groups.parquet", "excluded.parquet", "summary.parquet"):
        out.commit_shard(name, out.scratch / name)
    return totals


@dataclass(frozen=True)
class Walk:
    """All chunks, each made into what is wanted of it."""

    chunks: Callable[[Make[Any]], Iterator[Any]]
    ordered: bool = False
    """Whether it goes through both tables side by side, on trust that their order allows it."""


@dataclass(frozen=True)
class Job:
    """One pass over all chunks, two where a deviation over the whole table is wanted."""

    tables: Tables
    ages: pl.DataFrame
    rules: Rules
    out: Out
    workers: Workers | None = None

    def run_in_order(self, rows: int) -> Totals | None:
        """The job on tables as they stand; None when they do not stand in one order."""
        try:
            return self.run(Walk(lambda make: side_by_side(self.tables, self.rules, rows, make), ordered=True))
        except UnorderedError:
            return None

    def run(self, walk: Walk) -> Totals:
        """Write groups and excluded."""
        modules = self._deviations(walk) if self.rules.group.scale == "module_std" else {}
        totals = Totals()
        with (
            TableWriter(self.out.scratch / "groups.parquet", GROUPS, ("example_id", "module")) as groups,
            TableWriter(self.out.scratch / "excluded.parquet", EXCLUDED, ("rollout_id",)) as excluded,
        ):
            if self.workers is None:
                self._here(walk, modules, groups, excluded, totals)
            else:
                for made in self._elsewhere(self.workers, partial(grouped, self._way, modules), walk):
                    groups.write(made.groups)
                    excluded.write(made.excluded)
                    totals.merge(made.totals)
                    self._tell(totals)
        check_parts(totals.ok, totals.parts, self.rules.group)
        return totals

    def _here(
        self,
        walk: Walk,
        modules: dict[str, ModuleMoments],
        groups: TableWriter,
        excluded: TableWriter,
        totals: Totals,
    ) -> None:
        """One thread writes a chunk while the next one is made."""
        with ThreadPoolExecutor(1, thread_name_prefix="group-writer") as thread:
            waiting: Future[None] | None = None
            for chunk in walk.chunks(self._build(walk)):
                result = finish(chunk, select_members(chunk, self.ages, self.rules), modules, self.rules)
                self._wait(waiting, totals)
                waiting = thread.submit(_emit, result, groups, excluded, totals)
            self._wait(waiting, totals)

    def _wait(self, waiting: Future[None] | None, totals: Totals) -> None:
        if waiting:
            waiting.result()
            self._tell(totals)

    def _tell(self, totals: Totals) -> None:
        self.out.progress(totals.invocations, self.tables.calls.rows, "invocations", groups=float(totals.groups))

    def _build(self, walk: Walk) -> Make[Chunk]:
        return partial(build_ordered if walk.ordered else build, rules=self.rules, where=self.tables.where)

    @property
    def _way(self) -> Way:
        return Way(self.ages, self.rules, self.tables.where)

    def _elsewhere(self, workers: Workers, step: Callable[[Piece], Made | None], walk: Walk) -> Iterator[Made]:
        """What workers make of each chunk, in order.

        Raises:
            UnorderedError: when one of them finds that the tables cannot be walked side by side.
        """
        for made in workers.map(step, walk.chunks(partial(pack, ordered=walk.ordered))):
            if made is None:
                raise UnorderedError
            yield made

    def _deviations(self, walk: Walk) -> dict[str, ModuleMoments]:
        found: dict[str, ModuleMoments] = {}
        if self.workers is None:
            chunks = walk.chunks(self._build(walk))
            parts: Iterator[Mapping[str, ModuleMoments]] = (
                sums_by_module(select_members(chunk, self.ages, self.rules)) for chunk in chunks
            )
        else:
            parts = self._elsewhere(self.workers, partial(moments, self._way), walk)
        for part in parts:
            for name, sums in part.items():
                found[name] = found.get(name, ModuleMoments()) + sums
        return found


def _emit(result: Result, groups: TableWriter, excluded: TableWriter, totals: Totals) -> None:
    groups.write(groups_table(result))
    left = excluded_table(result)
    excluded.write(left)
    totals.add(result, left.num_rows)
