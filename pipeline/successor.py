"""Which traces of a snapshot are to be forgotten, and the snapshot without them."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.jobs import key_of
from pipeline.metering import meter_of
from pipeline.partial import Reporter
from pipeline.provenance import provenance
from pipeline.store import Store
from pipeline.tombstones import trace_digest
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.parquet import read_frame
from schemas.traces import TRACES
from stages.contract import Artifact
from stages.ingest import snapshot as stage
from stages.ingest.records import records_of
from stages.ingest.redact import user_key


@dataclass(frozen=True)
class Affected:
    """A snapshot that holds traces to be forgotten."""

    snapshot: Artifact
    traces: frozenset[str]
    rollouts: frozenset[str]
    """Of these traces."""
    examples: frozenset[str]
    """That no other trace of the snapshot has."""
    left: stage.Size
    """What stays."""
    rollouts_left: int


def affected(snapshot: Artifact, traces: Collection[str], users: Collection[str]) -> Affected | None:
    """What a snapshot holds of some traces and users; None where it holds nothing of them.

    Raises:
        RecipeError: when users' keys are kept under a secret that is not set.
    """
    columns = ["trace", "rollout_id", "example_id", "user", "spans"]
    rows = read_frame(snapshot.file("traces.parquet"), TRACES, columns=columns).to_dicts()
    keys = _keys(snapshot, users)
    gone = [row for row in rows if row["trace"] in traces or row["user"] in keys]
    if not gone:
        return None
    names = frozenset(row["trace"] for row in gone)
    stay = [row for row in rows if row["trace"] not in names]
    kept = {row["example_id"] for row in stay if row["rollout_id"]}
    return Affected(
        snapshot,
        names,
        frozenset(row["rollout_id"] for row in gone if row["rollout_id"]),
        frozenset(row["example_id"] for row in gone if row["rollout_id"]) - kept,
        stage.Size(len(stay), sum(row["spans"] for row in stay)),
        sum(row["rollout_id"] is not None for row in stay),
    )


def _keys(snapshot: Artifact, users: Collection[str]) -> set[str]:
    """How a snapshot knows users: by their keys, or under the secret of its recipe where it was redacted."""
    section = snapshot.manifest.payload["recipe"]["ingest"]
    name, redact = section["key_env"], section["redact"]
    redacted = redact["kinds"] or redact["patterns"] or redact["entities"]
    if not users or not name or not redacted:
        return set(users)
    secret = os.environ.get(name)
    if not secret:
        raise RecipeError(
            f"--user: {snapshot.path} keeps users under the secret of the environment variable {name}, which is not "
            f"set: export {name}=…, or name traces with --trace"
        )
    return {*users, *(user_key(user, secret.encode()) for user in users)}


def successor(item: Affected, store: Store, reporter: Reporter) -> Path | None:
    """Make the snapshot without the traces, or find it. None where no rollout would be left."""
    if not item.rollouts_left:
        return None
    before = item.snapshot.manifest
    forgotten = sorted(trace_digest(name) for name in item.traces)
    params = {**before.payload["params"], "parent": item.snapshot.digest, "forgotten": forgotten}
    payload: dict[str, Any] = {**before.payload, "params": params}
    key = key_of(payload)
    if (found := store.find(stage.NAME, key)) is not None:
        return found.path
    started, clock = datetime.now(UTC), time.monotonic()
    with store.begin(stage.NAME, key, reporter, meter_of(stage.NAME, Execution())) as out:
        records = (record for record in records_of(item.snapshot.path) if record.id not in item.traces)
        metrics = stage.write(records, item.left, before.payload["recipe"]["ingest"]["dev"], out)
        return out.finish(
            stage=stage.NAME,
            version=before.stage_version,
            key=key,
            payload=payload,
            metrics={**before.metrics, **metrics},
            # Without the arguments, which say what is to be forgotten.
            provenance=provenance(started, time.monotonic() - clock) | {"command": "mmgrpo forget"},
        ).path
