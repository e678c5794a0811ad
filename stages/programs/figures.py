"""Figures about program runs for manifests and reports."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from schemas.judge_calls import JUDGE_CALLS
from schemas.parquet import read_frame
from stages.contract import Out


def status_counts(runs: pl.DataFrame) -> dict[str, int]:
    """Number of runs by status, sorted by name."""
    return {status: count for (status,), count in sorted(_counts(runs, "status").items())}


def first_error(runs: pl.DataFrame) -> str | None:
    """What a failed run says: the first, in the table's order, of the failing status met most; None if all ran."""
    counts = {status: count for status, count in status_counts(runs).items() if status != "ok"}
    if not counts:
        return None
    status = max(counts, key=lambda name: counts[name])
    error: str | None = runs.filter(pl.col("status") == status)["error"][0]
    return f"{status}: {error}"


def _counts(frame: pl.DataFrame, name: str) -> dict[tuple[str], int]:
    return {(row[0],): row[1] for row in frame.group_by(name).len().iter_rows()}


def part_means(parts: pl.Series) -> dict[str, float]:
    """Mean of each named part over the runs that have it."""
    values: dict[str, list[float]] = {}
    for text in parts.drop_nulls():
        for name, value in json.loads(text).items():
            values.setdefault(name, []).append(value)
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}


def call_figures(invocations: pl.DataFrame, runs: int, modules: list[str] | None) -> dict[str, Any]:
    """Calls, tokens and parse failures.

    Args:
        invocations: rows of the invocations table.
        runs: number of program runs.
        modules: the modules that the program declares; those never called are named.

    Returns:
        Numbers over all calls; `parse_failure_share` is over calls that were to be parsed, `parse_first_attempt_valid`
        over invocations that were to be parsed (None without any); `calls_per_run` by module leaves retries out;
        `engines` counts the student's calls by what served them.
    """
    parsed = invocations.filter(pl.col("parse_status") != "none")
    first = parsed.filter(pl.col("attempt") == 0)
    called = invocations.filter(pl.col("attempt") == 0).group_by("module").len()
    per_module = {module: count / runs for module, count in sorted(called.iter_rows())}
    return {
        "calls": invocations.height,
        "prompt_tokens": int(invocations["prompt_ids"].list.len().sum() or 0),
        "completion_tokens": int(invocations["completion_ids"].list.len().sum() or 0),
        "parse_failure_share": _share(parsed["parse_status"] == "failed"),
        "parse_first_attempt_valid": _share(first["parse_status"] == "ok"),
        "calls_per_run": per_module,
        "concurrent_calls": int(invocations["concurrent"].sum() or 0),
        "engines": engine_counts(invocations.filter(pl.col("lm") == "student")["engine"]),
        "modules_never_called": None if modules is None else [name for name in modules if name not in per_module],
    }


def engine_counts(engines: pl.Series) -> dict[str, int]:
    """Number of calls by engine, sorted by name; calls of which it is not known are not counted."""
    return dict(sorted(engines.drop_nulls().value_counts(name="n").iter_rows()))


def judge_figures(out: Out) -> dict[str, Any]:
    """How many LM calls the metric made, and by which engines; nothing for a metric that makes none."""
    shards = out.committed(f"{JUDGE_CALLS.name}.parquet")
    if not shards:
        return {}
    calls = read_frame(shards.values(), JUDGE_CALLS, columns=["engine"], validate=False)
    return {"judge_calls": calls.height, "judge_engines": engine_counts(calls["engine"])}


def _share(mask: pl.Series) -> float | None:
    return None if mask.len() == 0 else float(mask.sum()) / mask.len()
