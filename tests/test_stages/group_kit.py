"""Small rollouts and invocations for tests of the group stage, and the stage run on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

from schemas.canonical import digest_file
from schemas.execution import Execution
from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.manifest import FileEntry, Manifest, artifact_digest
from schemas.parquet import read_rows, write_table
from schemas.policies import POLICIES as POLICIES_TABLE
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages import group
from stages.contract import Artifact, Inputs
from stages.grouping.files import TableFiles
from stages.grouping.rules import rules_of
from stages.grouping.sources import policy_ages
from stages.grouping.tables import open_tables
from stages.grouping.totals import Totals
from stages.grouping.write import write_tables

Row = dict[str, Any]
POLICIES: list[Row] = [
    {"policy": "old", "iteration": 0},
    {"policy": "before", "iteration": 1},
    {"policy": "now", "iteration": 2},
]


def recipe(balance: str = "sequence", seed: int = 0, context: int = 8192, **group: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "seed": seed,
            "model": {"base": "tiny-random", "context": context},
            "program": {"factory": "a:b", "metric": "a:c"},
            "examples": {"path": "x.parquet", "inputs": ["q"]},
            "group": group,
            "train": {"balance": balance},
        }
    )


def rollout(example: str, index: int, reward: float | None, **fields: Any) -> Row:
    row = {
        "example_id": example,
        "rollout_index": index,
        "rollout_id": f"{example}-{index:02d}",
        "iteration": 0,
        "source": "student",
        "policy": "now",
        "reward": reward,
        "reward_parts": None,
        "status": "ok",
    }
    return {**row, **fields}


def call(rollout_id: str, call_index: int, module: str = "m", position: int = 0, **fields: Any) -> Row:
    row = {
        "rollout_id": rollout_id,
        "call_index": call_index,
        "module": module,
        "invocation_index": position,
        "attempt": 0,
        "lm": "student",
        "messages": "[]",
        "prompt_ids": [1, 2, 3],
        "completion_ids": [1, 2],
        "sampling_logprobs": None,
        "finish_reason": "stop",
        "parse_status": "ok",
        "parsed_share": None,
        "temperature": 1.0,
        "trainable": True,
        "concurrent": False,
        "fidelity": "exact",
    }
    return {**row, **fields}


def one_module(*rewards: list[float | None], **fields: Any) -> tuple[list[Row], list[Row]]:
    """One call a rollout: rewards per example."""
    rows = [rollout(f"e{e}", i, value, **fields) for e, values in enumerate(rewards) for i, value in enumerate(values)]
    return rows, [call(row["rollout_id"], 0) for row in rows]


def advantages(groups: list[Row]) -> list[float]:
    return [row["advantage"] for row in groups]


def reasons(excluded: list[Row]) -> list[str]:
    return [row["reason"] for row in excluded]


class MemoryOut:
    """Where a stage writes, in a test: a folder, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.shards: dict[str, Path] = {}
        self.excluded: dict[str, int] = {}
        self.said: list[tuple[int, int]] = []

    def commit_shard(self, name: str, file: Path) -> None:
        self.shards[name] = file

    def committed(self, prefix: str = "") -> dict[str, Path]:
        return {name: file for name, file in self.shards.items() if name.startswith(prefix)}

    def drop(self, prefix: str) -> None:
        raise AssertionError(prefix)

    def exclude(self, reason: str, count: int = 1) -> None:
        self.excluded[reason] = self.excluded.get(reason, 0) + count

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        self.said.append((done, total))

    def telemetry(self, **figures: float) -> None:
        pass


_numbers: Iterator[int] = itertools.count()


def write_inputs(folder: Path, rollouts: Sequence[Row], calls: Sequence[Row]) -> TableFiles:
    folder.mkdir(parents=True, exist_ok=True)
    number = next(_numbers)
    paths = folder / f"r{number}.parquet", folder / f"i{number}.parquet"
    write_table(rollouts, paths[0], ROLLOUTS)
    write_table(calls, paths[1], INVOCATIONS)
    return TableFiles((paths[0],), (paths[1],))


def artifact(folder: Path, stage: str) -> Artifact:
    """A finished artifact of whatever lies in a folder."""
    files = {
        path.relative_to(folder).as_posix(): FileEntry(sha256=digest_file(path), bytes=path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = Manifest(
        stage=stage, stage_version=1, key="", payload={}, digest=artifact_digest(files), files=files, metrics={},
        excluded={}, provenance={},
    )  # fmt: skip
    return Artifact(folder, manifest)


def rollout_artifact(folder: Path, rollouts: Sequence[Row], calls: Sequence[Row], stage: str = "rollout") -> Artifact:
    folder.mkdir(parents=True)
    write_table(rollouts, folder / "rollouts.parquet", ROLLOUTS)
    write_table(calls, folder / "invocations.parquet", INVOCATIONS)
    return artifact(folder, stage)


def policies_artifact(folder: Path, policies: Sequence[Row] = POLICIES) -> Artifact:
    folder.mkdir(parents=True)
    rows = [{"base": "b", "adapters": "{}", "parent": None, **row} for row in policies]
    write_table(rows, folder / "policies.parquet", POLICIES_TABLE)
    return artifact(folder, "train")


def run_stage(
    folder: Path,
    artifacts: dict[str, Artifact],
    recipe_: Recipe,
    execution: Execution | None = None,
    params: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], MemoryOut]:
    """The stage as the runner calls it."""
    out = MemoryOut(folder / f"stage{next(_numbers)}")
    return group.run(Inputs(artifacts, {"iteration": 0, **(params or {})}), recipe_, execution or Execution(), out), out


def run_group(
    folder: Path,
    files: Sequence[TableFiles],
    recipe_: Recipe,
    *,
    limit: int = 10**6,
    policies: Sequence[Row] = POLICIES,
) -> tuple[MemoryOut, Totals]:
    """The stage's job on bare files."""
    rules = rules_of(recipe_)
    out = MemoryOut(folder / f"out{next(_numbers)}")
    ages = policy_ages(pl.DataFrame(list(policies)))
    return out, write_tables(open_tables(files, rules), ages, rules, limit, out)


def group_rows(
    folder: Path, rollouts: Sequence[Row], calls: Sequence[Row], recipe_: Recipe, **how: Any
) -> tuple[list[Row], list[Row]]:
    """(groups, excluded) of small tables."""
    out, _ = run_group(folder, [write_inputs(folder, rollouts, calls)], recipe_, **how)
    read_rows(out.shards["summary.parquet"], SUMMARY)  # raises where it breaks its contract
    return read_rows(out.shards["groups.parquet"], GROUPS), read_rows(out.shards["excluded.parquet"], EXCLUDED)


REWARDS = (None, 0.0, 0.0, 0.25, 0.5, 1.0, 1.0, -1.5, 1 / 3, 7.0)
STATUSES = ("ok", "ok", "ok", "ok", "parse_failed", "parse_failed", "timeout", "metric_error")


@st.composite
def tables(draw: st.DrawFn, *, sources: bool = True) -> tuple[list[Row], list[Row]]:
    """Rollouts and calls of up to 3 examples: loops, early failures, retries, missing modules, ties, odd rows."""
    rollouts: list[Row] = []
    calls: list[Row] = []
    odd = draw(st.booleans())
    for example in range(draw(st.integers(1, 3))):
        for index in range(draw(st.integers(1, 6))):
            status = draw(st.sampled_from(STATUSES))
            row = rollout(
                f"e{example}", index, draw(st.sampled_from(REWARDS)) if status == "ok" else None, status=status
            )
            row["reward_parts"] = draw(st.sampled_from(('{"p":0.5}', '{"p":1,"z":2}', "{}"))) if odd else '{"p":1}'
            if sources and odd:
                row["source"] = draw(st.sampled_from(("student", "student", "teacher:a", "ingest:x")))
                row["policy"] = draw(st.sampled_from(("now", "now", "before", "old")))
            rollouts.append(row)
            calls += draw(_calls_of(row["rollout_id"], status, odd=odd))
    return rollouts, calls


@st.composite
def _calls_of(draw: st.DrawFn, rollout_id: str, status: str, *, odd: bool) -> list[Row]:
    calls: list[Row] = []
    made = draw(st.lists(st.sampled_from(("a", "b", "b", "c")), max_size=6))
    for at, module in enumerate(made):
        position = made[:at].count(module)
        fails = status == "parse_failed" and at == len(made) - 1
        tries = draw(st.integers(1, 3)) if draw(st.booleans()) else 1
        for attempt in range(tries):
            failed = fails or attempt < tries - 1
            fields: Row = {"attempt": attempt, "parse_status": "failed" if failed else "ok"}
            if failed:
                fields["parsed_share"] = draw(st.sampled_from((None, 0.0, 0.5, 2 / 3)))
            fields["completion_ids"] = [1] * draw(st.integers(1, 4))
            if odd:
                fields |= draw(st.sampled_from(ODD))
            calls.append(call(rollout_id, len(calls), module, position, **fields))
    return calls


ODD: tuple[Row, ...] = (
    {}, {}, {}, {}, {}, {}, {}, {},
    {"finish_reason": "length"},
    {"finish_reason": "context_overflow", "completion_ids": None},
    {"completion_ids": None},
    {"completion_ids": []},
    {"trainable": False},
    {"lm": "judge"},
    {"concurrent": True},
    {"temperature": 0.5},
    {"finish_reason": None},
)  # fmt: skip
