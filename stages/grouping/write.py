"""The job over all chunks: read, group, write, account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.parquet import write_table
from schemas.stream import TableWriter
from stages.contract import Out
from stages.grouping.advantage import ModuleMoments
from stages.grouping.job import Result, finish, select_members, sums_by_module
from stages.grouping.load import Chunk
from stages.grouping.output import excluded_table, groups_table
from stages.grouping.ranges import UnorderedError, side_by_side, spooled, whole
from stages.grouping.report import summary_rows
from stages.grouping.rewards import check_parts
from stages.grouping.rules import Rules
from stages.grouping.tables import Tables
from stages.grouping.tally import add_up, reasons, tally

Chunks = Callable[[], Iterator[Chunk]]


@dataclass
class Totals:
    """Figures of all chunks."""

    rollouts: int = 0
    invocations: int = 0
    duplicates: int = 0
    silent: int = 0
    groups: int = 0
    members: int = 0
    moving: bool = False
    ok: int = 0
    parts: frozenset[str] = frozenset()
    figures: pl.DataFrame = field(default_factory=lambda: add_up([]))
    excluded: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(
            schema={"module": pl.String, "p": pl.Int32, "reason": pl.String, "rows": pl.Int64}
        )
    )

    def add(self, result: Result, excluded: int) -> None:
        """Count a chunk in, and hold it to the rule: rows in = distinct sources of members + excluded."""
        calls, used = result.calls.height, np.zeros(result.calls.height, dtype=bool)
        used[result.rows.get_column("row").to_numpy()] = True
        sources = int(used.sum())
        quiet = excluded - int(result.calls.get_column("reason").is_not_null().sum())
        assert sources + excluded == calls + quiet, (
            f"{sources} sources + {excluded} excluded != {calls} calls + {quiet}"
        )
        self.rollouts += result.chunk.rollouts.height
        self.invocations += calls
        self.duplicates += result.chunk.duplicates
        self.silent += quiet
        self.groups += int((~result.grouped.members.groups.get_column("out")).sum())
        self.members += result.rows.height
        self.moving = self.moving or bool((result.rows.get_column("advantage") != 0).any())
        self.ok += result.grouped.parts[0]
        self.parts |= result.grouped.parts[1]
        self.figures = add_up([self.figures, tally(result)])
        both = pl.concat([self.excluded, reasons(result).select(self.excluded.columns)])
        self.excluded = both.group_by("module", "p", "reason").agg(pl.col("rows").sum())

    def reasons(self) -> dict[str, int]:
        """Rows left out, by reason; identical rows that were dropped count as `duplicate`."""
        counts = dict(self.excluded.group_by("reason").agg(pl.col("rows").sum()).iter_rows())
        counts["duplicate"] = counts.get("duplicate", 0) + self.duplicates
        counts["no_calls"] = self.silent
        return {name: count for name, count in sorted(counts.items()) if count}


RANGE = 1 << 18
"""Invocations of a range at most: small enough for caches, and for one range to be written while the next is made."""


def write_tables(tables: Tables, ages: pl.DataFrame, rules: Rules, limit: int, out: Out) -> Totals:
    """Write groups, excluded and summary.

    Args:
        tables: the inputs.
        ages: see `sources.policy_ages`.
        rules: the recipe's rules.
        limit: hold no more than about this many invocations at once.
        out: where to.
    """
    job = Job(tables, ages, rules, out)
    totals = job.run_in_order(min(RANGE, limit))
    if totals is None and tables.calls.rows > limit:
        totals = job.run(lambda: spooled(tables, rules, min(RANGE, limit), out.scratch / "ranges"))
    elif totals is None:
        totals = job.run(lambda: whole(tables, rules))
    path = out.scratch / "summary.parquet"
    write_table(summary_rows(totals.figures, totals.excluded), path, SUMMARY)
    for name in ("groups.parquet", "excluded.parquet", "summary.parquet"):
        out.commit_shard(name, out.scratch / name)
    return totals


@dataclass(frozen=True)
class Job:
    """One pass over all chunks, two where a deviation over the whole table is wanted."""

    tables: Tables
    ages: pl.DataFrame
    rules: Rules
    out: Out

    def run_in_order(self, rows: int) -> Totals | None:
        """The job on tables as they stand; None when they do not stand in one order."""
        try:
            return self.run(lambda: side_by_side(self.tables, self.rules, rows))
        except UnorderedError:
            return None

    def run(self, chunks: Chunks) -> Totals:
        """Write groups and excluded; one thread writes a chunk while the next one is made."""
        modules = self._deviations(chunks) if self.rules.group.scale == "module_std" else {}
        totals = Totals()
        with (
            TableWriter(self.out.scratch / "groups.parquet", GROUPS, ("example_id", "module")) as groups,
            TableWriter(self.out.scratch / "excluded.parquet", EXCLUDED, ("rollout_id",)) as excluded,
            ThreadPoolExecutor(1, thread_name_prefix="group-writer") as thread,
        ):
            waiting: Future[None] | None = None
            for chunk in chunks():
                result = finish(chunk, select_members(chunk, self.ages, self.rules), modules, self.rules)
                self._wait(waiting, totals)
                waiting = thread.submit(_emit, result, groups, excluded, totals)
            self._wait(waiting, totals)
        check_parts(totals.ok, totals.parts, self.rules.group)
        return totals

    def _wait(self, waiting: Future[None] | None, totals: Totals) -> None:
        if waiting:
            waiting.result()
            total = self.tables.calls.rows
            self.out.progress(totals.invocations, total, "invocations", groups=float(totals.groups))

    def _deviations(self, chunks: Chunks) -> dict[str, ModuleMoments]:
        found: dict[str, ModuleMoments] = {}
        for chunk in chunks():
            for name, sums in sums_by_module(select_members(chunk, self.ages, self.rules)).items():
                found[name] = found.get(name, ModuleMoments()) + sums
        return found


def _emit(result: Result, groups: TableWriter, excluded: TableWriter, totals: Totals) -> None:
    groups.write(groups_table(result))
    left = excluded_table(result)
    excluded.write(left)
    totals.add(result, left.num_rows)
