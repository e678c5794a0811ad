"""The ingest stage: a spool of traces becomes a snapshot, the tables that the rollout stage writes and an account.

A snapshot's bytes are decided by the traces and the recipe alone. Rows are cut into ranges of example_id, each sorted
and written for itself, so that memory is bounded by the largest range.
"""

from __future__ import annotations

import hashlib
import hmac
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from schemas.canonical import digest_file
from schemas.errors import DataError, RecipeError
from schemas.examples import EXAMPLES, example_row
from schemas.execution import Execution
from schemas.manifest import Manifest
from schemas.pieces import PieceWriter
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.traces import LEFT_OUT, TRACES
from stages.contract import Inputs, Out
from stages.engines.keys import key_from
from stages.ingest.account import Account
from stages.ingest.assemble import Assembled, Assembler, Trace
from stages.ingest.content import Content
from stages.ingest.inputs import id_of, split_of
from stages.ingest.onto import Onto
from stages.ingest.records import Record
from stages.ingest.rescore import Rescorer

NAME = "ingest"
VERSION = 2
RANGE = 100_000
"""Spans of a range of examples, about."""
TABLES = (EXAMPLES, ROLLOUTS, INVOCATIONS, TRACES, LEFT_OUT)


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
    if any(manifest.payload.get(name) != value for name, value in wanted.items()):
        raise RecipeError(
            f"traces.snapshot: {folder} was made with other settings of [ingest], other inputs or another base than "
            "this recipe has: run `mmgrpo ingest` again and name the snapshot that it makes"
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
    folder = root / str(recipe.traces.snapshot)
    try:
        manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"traces.snapshot: {folder} is no snapshot ({reason}); `mmgrpo ingest` makes one") from None
    if manifest.stage != NAME or manifest.manifest_digest != manifest.own_digest():
        raise RecipeError(f"traces.snapshot: {folder} holds no intact snapshot; `mmgrpo ingest` makes one")
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


def build(
    traces: Iterable[Trace],
    content: Content,
    assembler: Assembler,
    recipe: Recipe,
    out: Out,
    *,
    rescorer: Rescorer | None = None,
    onto: Onto | None = None,
) -> dict[str, Any]:
    """Write `examples`, `rollouts`, `invocations`, `traces` and `left_out`, a Parquet file each.

    Args:
        traces: all of them, once each.
        content: what they are. The number of spans decides that of ranges.
        assembler: of the recipe.
        recipe: the whole recipe.
        out: where they go.
        rescorer: scores them anew; None for the logged scores.
        onto: the snapshot that they come onto.

    Returns:
        Metrics: what was read, what became of it, and how far it can be trusted.

    Raises:
        DataError: when no trace is a rollout.
    """
    secret, repeated = secret_of(recipe), Counter[str]()

    def made() -> Iterator[Record]:
        for trace in traces:
            found = assembler.assemble(trace)
            repeated["spans"] += found.repeated
            yield _record(found, secret)

    records = made() if onto is None else onto.merged(made())
    more = (0, 0) if onto is None else (onto.traces, onto.spans)
    size = Size(content.traces + more[0], content.spans + more[1])
    metrics = write(records, size, recipe.ingest.dev, out, rescorer=rescorer) | {"repeated_spans": repeated["spans"]}
    return metrics if onto is None else metrics | {"onto": dict(sorted(onto.counts.items()))}


def _record(made: Assembled, secret: bytes | None) -> Record:
    identity = id_of(made.inputs, secret) if made.inputs is not None and made.rollout else None
    rollout = {**made.rollout, "example_id": identity} if made.rollout else None
    return Record(made.inputs, {**made.trace, "example_id": identity}, rollout, made.invocations, made.left_out)


@dataclass(frozen=True)
class Size:
    """How much is to be written."""

    traces: int
    spans: int


def write(
    records: Iterable[Record], size: Size, dev: float, out: Out, *, rescorer: Rescorer | None = None
) -> dict[str, Any]:
    """Write the tables of a snapshot from the records of its traces, in any order. See `build`."""
    account = Account()
    ranges = _Ranges(out.scratch / "ranges", max(1, min(256, -(-size.spans // RANGE))))
    for record in records:
        account.count(record)
        ranges.add(record)
        out.progress(account.traces, size.traces, "traces")
    if not account.rollouts:
        reasons = ", ".join(f"{name} {count}" for name, count in account.reasons.most_common()) or "no trace was found"
        raise DataError(f"none of {account.traces} traces is a rollout of the recipe's program: {reasons}")
    with ExitStack() as stack:
        drafts = {spec.name: out.scratch / f"{spec.name}.parquet" for spec in TABLES}
        writers = {spec.name: stack.enter_context(PieceWriter(drafts[spec.name], spec)) for spec in TABLES}
        for rows in ranges.read():
            tables = _tables(rows, dev, account)
            if rescorer is not None:
                rescorer.score(tables)
            account.rewards.update(row["reward_reason"] for row in tables["traces"] if row["reward_reason"])
            for name, found in tables.items():
                writers[name].write(found)
    for draft in drafts.values():
        out.commit_shard(draft.name, draft)
    for reason, count in sorted((account.reasons + account.calls).items()):
        out.exclude(reason, count)
    return account.metrics()


class _Ranges:
    """Rows on their way, in as many files as there are ranges of example_id."""

    def __init__(self, folder: Path, count: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed here
        folder.mkdir(parents=True)
        self._files = [(folder / f"{number:03d}").open("wb") for number in range(count)]
        self._count = count

    def add(self, record: Record) -> None:
        identity = record.trace["example_id"]
        place = 0 if identity is None else int(identity[:4], 16) * self._count >> 16
        row = [record.inputs, record.trace, record.rollout, record.invocations, record.left_out]
        self._files[place].write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def read(self) -> Iterable[list[list[Any]]]:
        for file in self._files:
            file.close()
            path = Path(file.name)
            with path.open("rb") as lines:
                rows = [orjson.loads(line) for line in lines]
            path.unlink()
            yield rows


def _tables(rows: list[list[Any]], dev: float, account: Account) -> dict[str, list[dict[str, Any]]]:
    """The rows of one range, by table. The rollouts of an example are numbered by their start."""
    rows.sort(key=lambda row: (row[1]["example_id"] or "", row[1]["start"] or 0, row[1]["trace"]))
    tables: dict[str, list[dict[str, Any]]] = {spec.name: [] for spec in TABLES}
    counts: Counter[str] = Counter()
    for inputs, trace, rollout, invocations, left_out in rows:
        tables["traces"].append(trace)
        tables["left_out"] += left_out
        if rollout is None:
            continue
        identity = rollout["example_id"]
        if not counts[identity]:
            tables["examples"].append(_example(identity, inputs, dev))
        tables["rollouts"].append({**rollout, "rollout_index": counts[identity]})
        tables["invocations"] += invocations
        counts[identity] += 1
    account.siblings.update(counts.values())
    return tables


def _example(identity: str, inputs: dict[str, Any], dev: float) -> dict[str, Any]:
    row = example_row(split_of(identity, dev), inputs, None, None)
    return {**row, "example_id": identity}
