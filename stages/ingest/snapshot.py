"""The ingest stage: a spool of traces becomes a snapshot, the tables that the rollout stage writes and an account.

A snapshot's bytes are decided by the traces and the recipe alone. Rows are cut into ranges of example_id, each sorted
and written for itself, so that memory is bounded by the largest range.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from schemas.errors import DataError, RecipeError
from schemas.examples import EXAMPLES, example_row
from schemas.parquet import write_table
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import TableSpec
from schemas.traces import LEFT_OUT, TRACES
from stages.contract import Out
from stages.ingest.assemble import Assembled, Assembler, Trace
from stages.ingest.inputs import id_of, split_of

NAME = "ingest"
VERSION = 1
RANGE = 100_000
"""Spans of a range of examples, about."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides how traces become rows; the base model's digests stand in the params."""
    return {"ingest": recipe.ingest.model_dump(mode="json"), "examples": {"inputs": list(recipe.examples.inputs)}}


def secret_of(recipe: Recipe) -> bytes | None:
    """The secret of example ids.

    Raises:
        RecipeError: when its environment variable is not set.
    """
    name = recipe.ingest.key_env
    if name is None:
        return None
    secret = os.environ.get(name)
    if not secret:
        raise RecipeError(f"ingest.key_env: the environment variable {name} is not set: export {name}=…")
    return secret.encode()


@dataclass(frozen=True)
class Sizes:
    """How much there is to do. The number of spans decides that of ranges."""

    traces: int
    spans: int


def build(traces: Iterable[Trace], sizes: Sizes, assembler: Assembler, recipe: Recipe, out: Out) -> dict[str, Any]:
    """Write `examples`, `rollouts`, `invocations`, `traces` and `left_out`, each a folder of Parquet files.

    Args:
        traces: all of them, once each.
        sizes: how many there are.
        assembler: of the recipe.
        recipe: the whole recipe.
        out: where they go.

    Returns:
        Metrics: what was read, what became of it, and how far it can be trusted.

    Raises:
        DataError: when no trace is a rollout.
    """
    account = _Account()
    ranges = _Ranges(out.scratch / "ranges", max(1, min(256, -(-sizes.spans // RANGE))))
    secret = secret_of(recipe)
    for trace in traces:
        made = assembler.assemble(trace)
        identity = id_of(made.inputs, secret) if made.inputs is not None and made.rollout else None
        made.trace["example_id"] = identity
        if made.rollout:
            made.rollout["example_id"] = identity
        account.count(made)
        ranges.add(identity, made)
        out.progress(account.traces, sizes.traces, "traces")
    if not account.rollouts:
        reasons = ", ".join(f"{name} {count}" for name, count in account.reasons.most_common()) or "no trace was found"
        raise DataError(f"none of {account.traces} traces is a rollout of the recipe's program: {reasons}")
    for number, rows in enumerate(ranges.read()):
        _write(number, rows, recipe, account, out)
    for reason, count in sorted((account.reasons + account.calls).items()):
        out.exclude(reason, count)
    return account.metrics()


@dataclass
class _Account:
    """Counts of what was read."""

    traces: int = 0
    rollouts: int = 0
    repeated: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    fidelity: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)
    siblings: Counter[int] = field(default_factory=Counter)
    """Examples by the number of their rollouts."""

    def count(self, made: Assembled) -> None:
        self.traces += 1
        self.repeated += made.trace["repeated"]
        if made.rollout is None:
            self.reasons[str(made.trace["reason"])] += 1
            self.calls.update(row["reason"] for row in made.left_out)
            return
        self.rollouts += 1
        if made.trace["reward_reason"]:
            self.rewards[made.trace["reward_reason"]] += 1
        self.calls.update(row["reason"] for row in made.left_out)
        self.modules.update(row["module"] for row in made.invocations)
        self.fidelity.update(tier for tier, _ in made.fidelity)
        self.why.update(reason for _, reason in made.fidelity if reason)

    def metrics(self) -> dict[str, Any]:
        named = {
            "left_out_traces": self.reasons,
            "left_out_calls": self.calls,
            "no_reward": self.rewards,
            "fidelity": self.fidelity,
            "fidelity_reasons": self.why,
            "modules": self.modules,
        }
        return {
            "traces": self.traces,
            "rollouts": self.rollouts,
            "invocations": sum(self.modules.values()),
            "examples": sum(self.siblings.values()),
            "examples_with_siblings": sum(count for size, count in self.siblings.items() if size > 1),
            "repeated_spans": self.repeated,
            **{name: dict(sorted(counts.items())) for name, counts in named.items()},
        }


class _Ranges:
    """Rows on their way, in as many files as there are ranges of example_id."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(parents=True)
        self._files = [(folder / f"{number:03d}").open("wb") for number in range(count)]
        self._count = count

    def add(self, identity: str | None, made: Assembled) -> None:
        place = 0 if identity is None else int(identity[:4], 16) * self._count >> 16
        row = [made.inputs, made.trace, made.rollout, made.invocations, made.left_out]
        self._files[place].write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def read(self) -> Iterable[list[list[Any]]]:
        for file in self._files:
            file.close()
            path = Path(file.name)
            with path.open("rb") as lines:
                rows = [orjson.loads(line) for line in lines]
            path.unlink()
            yield rows


def _write(number: int, rows: list[list[Any]], recipe: Recipe, account: _Account, out: Out) -> None:
    """The files of one range. Rollouts of an example are counted by their start."""
    rows.sort(key=lambda row: (row[1]["example_id"] or "", row[1]["start"] or 0, row[1]["trace"]))
    tables: dict[str, tuple[TableSpec, list[dict[str, Any]]]] = {
        spec.name: (spec, []) for spec in (EXAMPLES, ROLLOUTS, INVOCATIONS, TRACES, LEFT_OUT)
    }
    counts: Counter[str] = Counter()
    for inputs, trace, rollout, invocations, left_out in rows:
        tables["traces"][1].append(trace)
        tables["left_out"][1].extend(left_out)
        if rollout is None:
            continue
        identity = rollout["example_id"]
        if not counts[identity]:
            tables["examples"][1].append(_example(identity, inputs, recipe))
        tables["rollouts"][1].append({**rollout, "rollout_index": counts[identity]})
        tables["invocations"][1].extend(invocations)
        counts[identity] += 1
    account.siblings.update(counts.values())
    for name, (spec, found) in tables.items():
        if found or number == 0:
            draft = out.scratch / f"{name}.parquet"
            write_table(found, draft, spec)
            out.commit_shard(f"{name}/{number:03d}.parquet", draft)


def _example(identity: str, inputs: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    row = example_row(split_of(identity, recipe.ingest.dev), inputs, None, None)
    return {**row, "example_id": identity}
