"""The two input tables as lazy frames: the columns that grouping needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from schemas.errors import ContractError, DataError
from schemas.parquet import read_table
from schemas.rollouts import FINISH_REASONS, INVOCATIONS, PARSE_STATUSES, ROLLOUTS
from schemas.table import TableSpec
from stages.grouping.files import TableFiles
from stages.grouping.rules import PATH, Rules
from stages.grouping.scan import Layout, Scan, layout, scan

ROLLOUT_COLUMNS = ("example_id", "rollout_index", "rollout_id", "source", "policy", "reward", "status")
CALL_COLUMNS = (
    "rollout_id", "call_index", "module", "invocation_index", "attempt", "lm", "finish_reason", "parse_status",
    "parsed_share", "trainable", "concurrent",
)  # fmt: skip


OF_TEACHERS = ("transfer", "student_prompt_ids")
"""What only teachers' calls have, and tables of other makers may lack."""


@dataclass(frozen=True)
class Tables:
    """All inputs of one job.

    Attributes:
        rollouts: `ROLLOUT_COLUMNS`, with `reward_parts` where credit needs it.
        calls: see `_narrow`.
        ordered: whether both scans keep the order of the files, so that they can be walked side by side.
        files: for error messages.
    """

    rollouts: Scan
    calls: Scan
    ordered: bool
    files: tuple[TableFiles, ...]

    @property
    def where(self) -> str:
        """The invocation files, shortened, for messages."""
        names = [str(path) for source in self.files for path in source.calls]
        return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def open_tables(sources: Sequence[TableFiles], rules: Rules) -> Tables:
    """Open the footers of every file and plan the scans.

    Raises:
        ContractError: naming the file that cannot be read or lacks a column.
    """
    columns = rollout_columns(rules)
    keys = [name for name in rules.group.key_columns if name != PATH and name not in CALL_COLUMNS]
    paths = [path for source in sources for path in source.rollouts]
    rollouts = [
        (tuple(files), tuple(counts), partial(_rollouts, each))
        for each, (files, counts) in _layouts(paths, ROLLOUTS, columns, ()).items()
    ]
    calls = []
    for measure in (False, True):
        paths = [path for source in sources if source.measure == measure for path in source.calls]
        lists = ("prompt_ids", "completion_ids") if measure else ("completion_ids",)
        optional = OF_TEACHERS if measure else ()
        for each, (files, counts) in _layouts(paths, INVOCATIONS, (*CALL_COLUMNS, *keys), lists, optional).items():
            kept = replace(each, complete=()) if measure or rules.trajectory else each
            calls.append((tuple(files), tuple(counts), partial(_calls, kept, rules, measure)))
    ordered = len(rollouts) == len(calls) == len(sources) == 1
    return Tables(Scan(tuple(rollouts)), Scan(tuple(calls)), ordered, tuple(sources))


def rollout_columns(rules: Rules) -> tuple[str, ...]:
    """The columns of the rollouts table that the rules need."""
    return (*ROLLOUT_COLUMNS, "reward_parts") if rules.group.credit else ROLLOUT_COLUMNS


def _layouts(
    paths: Sequence[Path],
    spec: TableSpec,
    columns: Sequence[str],
    lists: Sequence[str],
    optional: Sequence[str] = (),
) -> dict[Layout, tuple[list[Path], list[int]]]:
    """Files by layout and the rows of each, in order of first appearance."""
    found: dict[Layout, tuple[list[Path], list[int]]] = {}
    for path in paths:
        each, rows = layout(path, spec, columns, lists, optional)
        files, counts = found.setdefault(each, ([], []))
        files.append(path)
        counts.append(rows)
    return found


def _rollouts(each: Layout, files: Sequence[Path]) -> pl.LazyFrame:
    return scan(each, files, ROLLOUTS)


def _calls(each: Layout, rules: Rules, measure: bool, files: Sequence[Path]) -> pl.LazyFrame:
    return _narrow(scan(each, files, INVOCATIONS), each, rules, measure=measure)


def _narrow(frame: pl.LazyFrame, each: Layout, rules: Rules, *, measure: bool) -> pl.LazyFrame:
    """Invocations as flags and small integers; `rollout_id` and `module` are still text.

    Columns: rollout_id, module, p (invocation_index), attempt, call_index, failed (did not parse), share (of expected
    fields parsed), cut (by the length limit), overflow, no_ids, long (over the context), transfer, trainable,
    concurrent, tokens (of the completion; trajectory only), key columns as `key:NAME`, and `sound`: the row keeps its
    contract.
    """
    types = dict(each.types)
    length = partial(_length, types=types, complete=each.complete)
    finish = pl.col("finish_reason")
    sound = (
        pl.col("parse_status").is_in(list(PARSE_STATUSES))
        & (finish.is_null() | finish.is_in(list(FINISH_REASONS)))
        & pl.col("parsed_share").is_between(0.0, 1.0).fill_null(True)
        & (pl.min_horizontal("call_index", "invocation_index", "attempt") >= 0)
        & pl.all_horizontal(pl.col("rollout_id", "module", "lm", "trainable", "concurrent").is_not_null())
    )
    columns = {
        "p": pl.col("invocation_index"),
        "failed": pl.col("parse_status") == "failed",
        "share": pl.col("parsed_share").fill_null(0.0),
        "cut": finish.eq_missing("length"),
        "overflow": finish.eq_missing("context_overflow"),
        "no_ids": length("completion_ids") == 0 if "completion_ids" not in each.complete else pl.lit(False),
        "long": _prompt(types, length) + length("completion_ids") > rules.context if measure else pl.lit(False),
        "transfer": pl.col("transfer") if "transfer" in types else pl.lit(None, pl.String),
        "trainable": pl.col("trainable") & (pl.col("lm") == "student"),
        "sound": sound.fill_null(False),
    }
    if rules.trajectory:
        columns["tokens"] = length("completion_ids")
    keys = [pl.col(name).alias(f"key:{name}") for name in rules.group.key_columns if name != PATH]
    return frame.select("rollout_id", "module", "call_index", "attempt", "concurrent", *keys, **columns)


def _prompt(types: dict[str, object], length: Callable[[str], pl.Expr]) -> pl.Expr:
    """Tokens of the prompt that is trained: the student's where a teacher was sent another one."""
    if "student_prompt_ids" not in types:
        return length("prompt_ids")
    return pl.when(length("student_prompt_ids") > 0).then(length("student_prompt_ids")).otherwise(length("prompt_ids"))


def _length(name: str, *, types: dict[str, object], complete: tuple[str, ...]) -> pl.Expr:
    """Elements of a list column; 0 for null."""
    assert name not in complete
    if str(types[name]) == "null":
        return pl.lit(0, dtype=pl.UInt32)
    return pl.col(name).list.len().fill_null(0)


def explain(tables: Tables, error: Exception | None, rules: Rules) -> DataError:
    """The error that names the file and the rows, after a scan failed or found rows that break their contract.

    Scans are fast and say little; here every file is read alone and checked in full.
    """
    for source in tables.files:
        jobs = ((source.rollouts, ROLLOUTS, rollout_columns(rules)), (source.calls, INVOCATIONS, CALL_COLUMNS))
        for paths, spec, columns in jobs:
            for path in paths:
                try:
                    read_table(path, spec, columns=[name for name in columns if f"/{name}=" not in path.as_posix()])
                except ContractError as found:
                    return found
    return DataError(f"the rows of {tables.where} cannot be read together: {error}")
