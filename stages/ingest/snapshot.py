"""The ingest stage: a spool of traces becomes a snapshot, the tables that the rollout stage writes and an account.

A snapshot's bytes are decided by the traces and the recipe alone. Rows are cut into ranges of example_id, each sorted
and written for itself, so that memory is bounded by the largest range.
"""

from __future__ import annotations

import hashlib
import hmac
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.canonical import digest_file
from schemas.errors import DataError, RecipeError
from schemas.execution import Execution
from schemas.foreign import read_json
from schemas.made_up import manifest_problem
from schemas.manifest import Manifest
from schemas.pieces import PieceWriter
from schemas.recipe import Recipe
from stages.contract import Inputs, Out
from stages.engines.keys import key_from
from stages.ingest.account import Account
from stages.ingest.assemble import Assembled
from stages.ingest.inputs import NO_INPUT, UNKNOWN_INPUTS, id_of
from stages.ingest.modules import NO_MODULE
from stages.ingest.ranges import TABLES, Made, Ranges, made_of, ranges_for
from stages.ingest.records import Record
from stages.places import place_of

NAME = "ingest"
VERSION = 4
_DIFFER = {
    "recipe": "other settings of [ingest] or other examples.inputs",
    "params": "another base, secret or metric",
    "stage_version": "another release's reading of traces",
}


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides how traces become rows; the base model's digests stand in the params."""
    return {"ingest": recipe.ingest.model_dump(mode="json"), "examples": {"inputs": list(recipe.examples.inputs)}}


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Take the snapshot that the recipe names into the run, byte for byte.

    Raises:
        RecipeError: when it was not made by this recipe's `[ingest]` and base, or is not there any more.
        DataError: when its bytes are not those of its manifest.
    """
    folder, manifest = open_snapshot(recipe, inputs.root)
    wanted = {"recipe": recipe_slice(recipe), "params": dict(inputs.params), "stage_version": VERSION}
    if differ := [_DIFFER[name] for name, value in wanted.items() if manifest.payload.get(name) != value]:
        raise RecipeError(
            f"traces.snapshot: {folder} was made with {' and '.join(differ)} than this recipe has: run `mmgrpo ingest` "
            "again and name the snapshot that it makes"
        )
    for name, entry in manifest.files.items():
        draft = out.scratch / "taken"
        shutil.copyfile(folder / name, draft)
        if digest_file(draft) != entry.sha256:
            raise DataError(f"{folder / name}: its bytes are not those of the snapshot's manifest. Ingest again")
        out.commit_shard(name, draft)
    for reason, count in manifest.excluded.items():
        out.exclude(reason, count)
    return manifest.metrics


def open_snapshot(recipe: Recipe, root: Path) -> tuple[Path, Manifest]:
    """The folder and manifest of the snapshot that a recipe names.

    Raises:
        RecipeError: when there is none.
    """
    folder = place_of(root, str(recipe.traces.snapshot))
    try:
        manifest = Manifest.model_validate(read_json(folder / "manifest.json"))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"traces.snapshot: {folder} is no snapshot ({reason}); `mmgrpo ingest` makes one") from None
    if manifest.stage != NAME:
        raise RecipeError(f"traces.snapshot: {folder} holds no snapshot; `mmgrpo ingest` makes one")
    if problem := manifest_problem(manifest):
        raise RecipeError(f"traces.snapshot: {folder} holds no intact snapshot ({problem}); `mmgrpo ingest` makes one")
    return folder, manifest


def secret_of(recipe: Recipe) -> bytes | None:
    """The secret of example ids.

    Raises:
        RecipeError: when its environment variable is not set.
    """
    return key_from(recipe.ingest.key_env, "ingest.key_env").encode() or None


def key_id(recipe: Recipe) -> str | None:
    """What tells one secret from another without giving it away; None where ids are not keyed.

    Raises:
        RecipeError: when its environment variable is not set.
    """
    secret = secret_of(recipe)
    return None if secret is None else hmac.new(secret, b"mmgrpo example ids", hashlib.sha256).hexdigest()[:16]


def record_of(made: Assembled, secret: bytes | None) -> tuple[Record, int]:
    """What a snapshot holds of a trace, and how many of its spans' records were a further one of a span."""
    identity = id_of(made.inputs, secret) if made.inputs is not None and made.rollout else None
    rollout = {**made.rollout, "example_id": identity} if made.rollout else None
    row = {**made.trace, "example_id": identity}
    return Record(made.inputs, row, rollout, made.invocations, made.left_out), made.repeated


@dataclass(frozen=True)
class Size:
    """How much is to be written."""

    traces: int
    spans: int


def write(records: Iterable[Record], size: Size, dev: float, out: Out) -> dict[str, Any]:
    """Write the tables of a snapshot from the records of its traces, in any order. See `finish`."""
    account, count, folder = Account(), ranges_for(size.spans), out.scratch / "ranges"
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    ranges = Ranges(folder, count)
    for record in records:
        account.count(record)
        ranges.add(record)
        out.progress(account.traces, size.traces, "traces")
    ranges.flush()
    made = (made_of([folder], place, dev) for place in range(count))
    return finish(account, made, count, out)


_NEXT = {
    NO_MODULE: ". The same command with --suggest-modules proposes [[ingest.modules]] for the recipe",
    UNKNOWN_INPUTS: ". [ingest] inputs says where each of examples.inputs stands in the input of the root span",
    NO_INPUT: ". [ingest] inputs says where each of examples.inputs stands in the input of the root span",
}


def finish(account: Account, made: Iterable[Made], count: int, out: Out) -> dict[str, Any]:
    """Write `examples`, `rollouts`, `invocations`, `traces` and `left_out`, a Parquet file each.

    Args:
        account: of all records.
        made: the tables of the ranges, in order. Nothing of them is made where no trace is a rollout.
        count: of ranges.
        out: where they go.

    Returns:
        Metrics: what was read, what became of it, and how far it can be trusted.

    A process that is killed here leaves nothing but what a metric said (`kept_scores`): for a million spans it takes
    some 12 CPU seconds, of 84 for all of an ingest.

    Raises:
        DataError: when no trace is a rollout.
    """
    if not account.rollouts:
        told = ", ".join(f"{name} {count}" for name, count in account.reasons.most_common()) or "no trace was found"
        if account.calls:
            told += "; calls left out: " + ", ".join(f"{name} {count}" for name, count in account.calls.most_common())
        next_step = next((step for name, step in _NEXT.items() if name in account.reasons | account.calls), "")
        raise DataError(f"none of {account.traces} traces is a rollout of the recipe's program: {told}{next_step}")
    with ExitStack() as stack:
        drafts = {spec.name: out.scratch / f"{spec.name}.parquet" for spec in TABLES}
        writers = {spec.name: stack.enter_context(PieceWriter(drafts[spec.name], spec)) for spec in TABLES}
        for number, item in enumerate(made, start=1):
            account.siblings.update(item.siblings)
            account.rewards.update(item.rewards)
            for name, table in item.tables.items():
                writers[name].write(table)
            out.progress(number, count, "ranges")
    for draft in drafts.values():
        out.commit_shard(draft.name, draft)
    for reason, number in sorted((account.reasons + account.calls).items()):
        out.exclude(reason, number)
    return account.metrics()
