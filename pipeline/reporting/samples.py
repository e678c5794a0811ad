"""Sample rollouts: a few of the best, the worst and the failed, whole but of bounded length.

Only the rows of the samples are kept in memory: tables of thousands of rollouts are read in batches.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.reporting.data_samples import Call, Clipped, Message, Sample
from pipeline.reporting.opened import OpenRun, frame, table_files
from schemas.examples import EXAMPLES
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import preflight
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import TableSpec
from stages.contract import Artifact

PER_KIND = 3
CALLS, MESSAGES = 8, 8
MESSAGE_LENGTH, COMPLETION_LENGTH, FIELD_LENGTH = 1000, 2000, 800
_BATCH = 4096

_CALL_COLUMNS = ["rollout_id", "call_index", "module", "invocation_index", "attempt", "lm", "messages", "completion"]
_CALL_COLUMNS += ["finish_reason", "parse_status"]
_ROLLOUT_COLUMNS = ["rollout_id", "example_id", "rollout_index", "reward", "reward_parts", "status", "error", "output"]


def collect_samples(run: OpenRun) -> tuple[Sample, ...]:
    """Samples of the first and of the latest iteration that have rollouts."""
    rolled = [index for index, keys in enumerate(run.state.iterations) if "rollout" in keys]
    return tuple(sample for index in dict.fromkeys(rolled[:1] + rolled[-1:]) for sample in _samples(run, index))


def _samples(run: OpenRun, iteration: int) -> list[Sample]:
    artifact = run.stage(iteration, "rollout")
    if artifact is None:
        return []
    kinds = _choose(frame(artifact, ROLLOUTS, ["rollout_id", "example_id", "rollout_index", "reward", "status"]))
    rollouts = {row["rollout_id"]: row for row in _matching(artifact, ROLLOUTS, _ROLLOUT_COLUMNS, set(kinds))}
    calls = _calls(run, iteration, artifact, set(kinds))
    inputs = _inputs(run, {row["example_id"] for row in rollouts.values()})
    return [_sample(rollouts[name], kind, iteration, inputs, calls.get(name, [])) for name, kind in kinds.items()]


def _choose(table: pl.DataFrame) -> dict[str, Any]:
    """Rollout id -> kind. Each kind shows different examples; ties go to the lowest (example_id, rollout_index)."""
    ok = table.filter((pl.col("status") == "ok") & pl.col("reward").is_not_null())
    failed = table.filter(pl.col("status") != "ok")
    best = _top(ok.sort("reward", "example_id", "rollout_index", descending=[True, False, False]))
    worst = _top(ok.filter(~pl.col("rollout_id").is_in(best)).sort("reward", "example_id", "rollout_index"))
    kinds = dict.fromkeys(best, "best") | dict.fromkeys(worst, "worst")
    return kinds | dict.fromkeys(_top(failed.sort("example_id", "rollout_index")), "failed")


def _top(ordered: pl.DataFrame) -> list[str]:
    ids: list[str] = (
        ordered.unique("example_id", keep="first", maintain_order=True).head(PER_KIND)["rollout_id"].to_list()
    )
    return ids


def _matching(artifact: Artifact, spec: TableSpec, columns: list[str], ids: set[str]) -> list[dict[str, Any]]:
    """Rows of a table whose first column (an id) is among `ids`, read batch by batch."""
    wanted = pa.array(sorted(ids), pa.string())
    rows: list[dict[str, Any]] = []
    for path in table_files(artifact, spec):
        preflight(path, spec)
        for batch in pq.ParquetFile(path).iter_batches(_BATCH, columns=columns):
            rows += batch.filter(pc.is_in(batch.column(columns[0]), wanted)).to_pylist()
    return rows


def _calls(run: OpenRun, iteration: int, artifact: Artifact, ids: set[str]) -> dict[str, list[Call]]:
    """The calls of each sample rollout in order, with what the group stage made of them."""
    group = run.stage(iteration, "group")
    members: dict[tuple[str, int], list[dict[str, Any]]] = {}
    reasons: dict[tuple[str, int], str] = {}
    if group is not None:
        for row in _matching(group, GROUPS, ["rollout_id", "call_index", "copy_kind", "reward", "advantage"], ids):
            members.setdefault((row["rollout_id"], row["call_index"]), []).append(row)
        for row in _matching(group, EXCLUDED, ["rollout_id", "call_index", "reason"], ids):
            reasons[row["rollout_id"], row["call_index"]] = row["reason"]
    calls: dict[str, list[Call]] = {}
    rows = _matching(artifact, INVOCATIONS, _CALL_COLUMNS, ids)
    for row in sorted(rows, key=lambda row: (row["rollout_id"], row["call_index"])):
        place = row["rollout_id"], row["call_index"]
        calls.setdefault(row["rollout_id"], []).append(_call(row, members.get(place, []), reasons.get(place)))
    return calls


def _call(row: dict[str, Any], members: list[dict[str, Any]], reason: str | None) -> Call:
    originals = [member for member in members if member["copy_kind"] == "none"]
    shown = (originals or members or [{}])[0]
    messages = json.loads(row["messages"])
    kept = _ends(messages, MESSAGES)
    return Call(
        call_index=row["call_index"],
        module=row["module"],
        invocation_index=row["invocation_index"],
        attempt=row["attempt"],
        lm=row["lm"],
        messages=tuple(Message(str(item.get("role", "")), _content(item.get("content"))) for item in kept),
        messages_left_out=len(messages) - len(kept),
        completion=None if row["completion"] is None else clip(row["completion"], COMPLETION_LENGTH),
        finish_reason=row["finish_reason"],
        parse_status=row["parse_status"],
        reward=shown.get("reward"),
        advantage=shown.get("advantage"),
        copies=len(members) - len(originals),
        excluded=reason,
    )


def _sample(row: dict[str, Any], kind: Any, iteration: int, inputs: dict[str, str], calls: list[Call]) -> Sample:
    kept = _ends(calls, CALLS)
    return Sample(
        kind=kind,
        iteration=iteration,
        rollout_id=row["rollout_id"],
        example_id=row["example_id"],
        rollout_index=row["rollout_index"],
        reward=row["reward"],
        reward_parts=json.loads(row["reward_parts"]) if row["reward_parts"] else {},
        status=row["status"],
        error=_field(row["error"]),
        inputs=_field(inputs.get(row["example_id"])),
        output=_field(row["output"]),
        calls=tuple(kept),
        calls_left_out=len(calls) - len(kept),
    )


def _inputs(run: OpenRun, example_ids: set[str]) -> dict[str, str]:
    artifact = run.store.find("examples", run.state.setup.get("examples", ""))
    rows = _matching(artifact, EXAMPLES, ["example_id", "inputs"], example_ids) if artifact else []
    return {row["example_id"]: row["inputs"] for row in rows}


def _field(value: str | None) -> Clipped | None:
    """An optional text, JSON laid out readably."""
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except ValueError:
        return clip(value, FIELD_LENGTH)
    return _content(parsed, FIELD_LENGTH)


def _content(value: Any, length: int = MESSAGE_LENGTH) -> Clipped:
    """Text as it is; anything else (parts of a message, structured fields) as JSON."""
    if isinstance(value, str):
        return clip(value, length)
    return clip(json.dumps(value, ensure_ascii=False, indent=1), length)


def _ends(items: list[Any], most: int) -> list[Any]:
    """At most `most` items: the first ones and the last ones, which carry the task and its result."""
    return items if len(items) <= most else [*items[: most // 2], *items[-(most - most // 2) :]]


def clip(text: str, length: int) -> Clipped:
    """A text of at most `length` characters: its two ends, and how much is missing between them."""
    if len(text) <= length:
        return Clipped(text)
    half = length // 2
    return Clipped(text[:half], len(text) - 2 * half, text[-half:])
