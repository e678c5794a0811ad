"""Why program runs failed: rollouts, and the runs that scored a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from pipeline.reporting.data import Failure
from pipeline.reporting.opened import OpenRun, frame
from pipeline.reporting.text import after
from schemas.rollouts import ROLLOUTS
from schemas.scores import SCORES

FAILURES_SHOWN = 8
"""Ways to fail that are listed of the rollouts, and of each split."""
ERROR_LENGTH = 300

Runs = tuple[str, pl.DataFrame]
"""Which iteration or policy the runs belong to, and their rows."""


def collect_failures(run: OpenRun) -> tuple[Failure, ...]:
    """The most frequent ways in which runs failed, over the whole run: of the rollouts, then of each split."""
    found = _most_frequent(None, _rollouts(run))
    for split in sorted(run.state.evaluations):
        found += _most_frequent(split, _evaluations(run, split))
    return tuple(found)


def _rollouts(run: OpenRun) -> Iterator[Runs]:
    for index in range(len(run.state.iterations)):
        artifact = run.stage(index, "rollout")
        if artifact is not None:
            yield f"iteration {index}", frame(artifact, ROLLOUTS, ["status", "error"])


def _evaluations(run: OpenRun, split: str) -> Iterator[Runs]:
    """Each artifact once: an iteration that trained nothing keeps its policy, and with it the scores."""
    keys = run.state.evaluations[split]
    for policy in dict.fromkeys(run.state.policies):
        artifact = run.store.find("evaluate", keys[policy]) if policy in keys else None
        if artifact is not None:
            yield after(run.state.policies.index(policy)), frame(artifact, SCORES, ["status", "error"])


def _most_frequent(split: str | None, tables: Iterable[Runs]) -> list[Failure]:
    """Errors are told apart by their first line: further lines often quote the model, and no two are the same."""
    counts: dict[tuple[str, str], int] = {}
    errors: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], str] = {}
    for name, table in tables:
        for status, error in table.filter(pl.col("status") != "ok").iter_rows():
            lines = [line.rstrip() for line in (error or "").splitlines() if line.strip()]
            way = status, lines[0] if lines else ""
            counts[way] = counts.get(way, 0) + 1
            errors.setdefault(way, _cut("\n".join(lines)))
            last[way] = name
    ordered = sorted(counts, key=lambda way: (-counts[way], way))[:FAILURES_SHOWN]
    return [Failure(split, way[0], errors[way], counts[way], last[way]) for way in ordered]


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_LENGTH else f"{text[: ERROR_LENGTH - 1]}…"
