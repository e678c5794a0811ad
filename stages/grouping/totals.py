"""Figures of all chunks of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stages.grouping.job import Result
from stages.grouping.tally import add_up, reasons, tally


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
        self._add(tally(result), reasons(result))

    def merge(self, other: Totals) -> None:
        """Count in what was counted elsewhere, of other chunks."""
        for name in ("rollouts", "invocations", "duplicates", "silent", "groups", "members", "ok"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.moving = self.moving or other.moving
        self.parts |= other.parts
        self._add(other.figures, other.excluded)

    def _add(self, figures: pl.DataFrame, excluded: pl.DataFrame) -> None:
        self.figures = add_up([self.figures, figures])
        both = pl.concat([self.excluded, excluded.select(self.excluded.columns)])
        self.excluded = both.group_by("module", "p", "reason").agg(pl.col("rows").sum())

    def reasons(self) -> dict[str, int]:
        """Rows left out, by reason; identical rows that were dropped count as `duplicate`."""
        counts = dict(self.excluded.group_by("reason").agg(pl.col("rows").sum()).iter_rows())
        counts["duplicate"] = counts.get("duplicate", 0) + self.duplicates
        counts["no_calls"] = self.silent
        return {name: count for name, count in sorted(counts.items()) if count}
