"""Our own tables: `rollouts` and `invocations` of a run's rollout artifact, or of another snapshot.

Known by the footers of the files. The two stand beside each other; the inputs of the examples are in `examples.parquet`
beside them, or in the run that they lie in. Ids, log-probabilities and policies are kept. A snapshot's traces keep
their ids, users and scores, so that forgetting one reaches it here too. Other tables hold no rollouts.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.capture import CAPTURE
from schemas.errors import ContractError
from schemas.examples import EXAMPLES
from schemas.foreign import LARGEST, parse_json
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import NAME_KEY, VERSION_KEY, TableSpec
from schemas.traces import TRACES
from stages.ingest.memory import allowance, at_most
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call, Item, Refused, Score, Span
from stages.ingest.own import OF_CALLS, ROLLOUT, own_of
from stages.ingest.shape import Shape, Value
from stages.ingest.trajectory import ROOT

NAME = "mmgrpo_tables"
_BATCH = 1024
_TEACHER = "teacher:"
_IDS = ("exact", "ids")
_RECORDS = ({"stage", "stage_version", "payload", "manifest_digest"}, {"files", "refused"}, {"seconds", "core_seconds"})
"""Keys of what lies beside the tables of an artifact: its manifest, and what is told of how it was made."""
Row = dict[str, Any]


@dataclass(frozen=True)
class _Known:
    """What is known of a rollout when its calls are read."""

    trace: str
    policy: str | None


def recognises(value: Any, shape: Shape) -> bool:
    """What lies beside the tables of an artifact. The tables are known by their bytes."""
    return isinstance(value, Mapping) and any(keys <= value.keys() for keys in _RECORDS)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """What a row says: of a rollout the root, of an invocation a call. Manifests say nothing of traces."""
    if "rollout" in value:
        yield from _rollout(value, where)
    elif "invocation" in value:
        yield _call(value["invocation"], value["trace"], value["policy"], where)


def values_of(address: str) -> Iterator[Value | Refused] | None:
    """The rows of a rollouts table and of the invocations beside it; nothing of our other tables; else None."""
    table = _table(address)
    if table is None or table == CAPTURE.name:
        return None
    if table == ROLLOUTS.name:
        return _rows(address)
    if table == INVOCATIONS.name and not _there(_beside(address, INVOCATIONS, ROLLOUTS)):
        return iter([Refused("no_rollouts", "no table of rollouts lies beside these invocations", address)])
    return iter(())


def _table(address: str) -> str | None:
    """The name of the table that a file says it is."""
    with fsspec.open(address, "rb") as raw:
        if raw.read(4) != b"PAR1":
            return None
        try:
            found = (pq.ParquetFile(raw).metadata.metadata or {}).get(NAME_KEY)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            return None  # said when it is read
    return None if found is None else found.decode(errors="replace")


def _beside(address: str, this: TableSpec, other: TableSpec) -> str:
    folder, slash, name = address.rpartition("/")
    named = name.replace(this.name, other.name) if this.name in name else f"{other.name}.parquet"
    return f"{folder}{slash}{named}"


def _there(address: str) -> bool:
    system, path = fsspec.core.url_to_fs(address)
    return bool(system.exists(path))


def _rows(address: str) -> Iterator[Value | Refused]:
    calls = _beside(address, ROLLOUTS, INVOCATIONS)
    try:
        if not _there(calls):
            yield Refused("no_invocations", f"no table of invocations lies beside it at {calls}", address)
            return
        _check_bytes(address, calls)
        inputs, traces = _inputs(address), _traces(address)
        known: dict[str, _Known | None] = {}
        for where, row in _table_rows(address, ROLLOUTS):
            known[row["rollout_id"]], value = _of_rollout(row, inputs, traces, where)
            yield value
        for where, row in _table_rows(calls, INVOCATIONS):
            if row["rollout_id"] not in known:
                yield Refused("no_rollout", f"the rollout {row['rollout_id']} is not in the table beside it", where)
            elif (of := known[row["rollout_id"]]) is not None:
                policy = of.policy if row["lm"] == "student" else None
                yield Value({"invocation": row, "trace": of.trace, "policy": policy}, "rows", where)
    except ContractError as error:
        yield Refused("unknown_version" if "schema version" in str(error) else "broken", str(error), address)


def _of_rollout(
    row: Row, inputs: Mapping[str, str], traces: Mapping[str, Row], where: str
) -> tuple[_Known | None, Value | Refused]:
    name = row["rollout_id"]
    if row["source"].startswith(_TEACHER):
        return None, Refused("of_a_teacher", f"rollout {name} of {row['source']}: teachers are run, not read", where)
    if row["example_id"] not in inputs:
        detail = f"the inputs of example {row['example_id']} are in no examples.parquet beside it or in its run"
        return None, Refused("unknown_example", detail, where)
    trace = traces.get(name)
    value = {"rollout": row, "inputs": inputs[row["example_id"]], "trace": trace}
    return _Known(name if trace is None else trace["trace"], row["policy"]), Value(value, "rows", where)


def _table_rows(address: str, spec: TableSpec) -> Iterator[tuple[str, Row]]:
    """The rows of a table, each with its place.

    Raises:
        ContractError: for another version of it, or rows that break its rules.
    """
    from schemas.errors import Violation
    from schemas.validate import check_columns, check_rows

    with fsspec.open(address, "rb") as raw:
        file, size = _opened(raw, address, spec), raw.seek(0, io.SEEK_END)
        batches, number = file.iter_batches(batch_size=_BATCH, use_threads=False), 0
        while True:
            try:
                with at_most(allowance(size)):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    table = check_columns(pa.Table.from_batches([batch]), spec, address)
                    check_rows(table, spec, address)
                    rows = table.to_pylist()
            except (pa.ArrowException, UnicodeDecodeError) as error:
                rule = f"the file is readable Parquet ({str(error).splitlines()[0]})"
                raise ContractError(spec.name, address, [Violation(rule, file.metadata.num_rows)]) from None
            except MemoryError:
                rule = f"{_BATCH} rows take at most {allowance(size):,} bytes of memory"
                raise ContractError(spec.name, address, [Violation(rule, file.metadata.num_rows)]) from None
            for row in rows:
                number += 1
                yield f"{address}, row {number}", row


def _opened(raw: IO[bytes], address: str, spec: TableSpec) -> pq.ParquetFile:
    from schemas.errors import Violation

    try:
        file = pq.ParquetFile(raw)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ContractError(spec.name, address, [Violation(f"the file is readable Parquet ({error})", 1)]) from None
    held = file.metadata.metadata or {}
    name, version = (held.get(key, b"").decode(errors="replace") for key in (NAME_KEY, VERSION_KEY))
    if name != spec.name:
        raise ContractError(spec.name, address, [Violation(f"footer says table '{name}', expected '{spec.name}'", 1)])
    if version != str(spec.version):
        rule = f"schema version {version} is known (this release reads {spec.version})"
        raise ContractError(spec.name, address, [Violation(rule, file.metadata.num_rows)])
    return file


def _check_bytes(*addresses: str) -> None:
    """Hold the files to the digests of the manifest beside them, if there is one.

    Raises:
        ContractError: naming the file whose bytes are others.
    """
    from schemas.errors import Violation

    folder = addresses[0].rpartition("/")[0]
    manifest = f"{folder}/manifest.json"
    if not _there(manifest):
        return
    try:
        with fsspec.open(manifest, "rb") as raw:
            told = {name: entry["sha256"] for name, entry in parse_json(raw.read(LARGEST))["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        rule = f"it is a manifest of this release ({type(error).__name__}: {error})"
        raise ContractError("artifact", manifest, [Violation(rule, 1)]) from None
    for address in addresses:
        expected = told.get(address.rpartition("/")[2])
        with fsspec.open(address, "rb") as raw:
            if expected is not None and hashlib.file_digest(raw, "sha256").hexdigest() != expected:
                raise ContractError("artifact", address, [Violation("its bytes are those of its manifest", 1)])


def _inputs(address: str) -> dict[str, str]:
    """Inputs by example_id: of the examples beside a file, or of the run that it lies in."""
    beside = _beside(address, ROLLOUTS, EXAMPLES)
    system, path = fsspec.core.url_to_fs(beside)
    found = [path] if system.exists(path) else system.glob(f"{path.rsplit('/', 3)[0]}/examples/*/examples.parquet")
    addresses = [system.unstrip_protocol(name) if "://" in address else name for name in sorted(found)]
    return {row["example_id"]: row["inputs"] for one in addresses for _, row in _table_rows(one, EXAMPLES)}


def _traces(address: str) -> dict[str, Row]:
    """Of a snapshot: its traces by their rollout."""
    path = _beside(address, ROLLOUTS, TRACES)
    rows = _table_rows(path, TRACES) if _there(path) else ()
    return {row["rollout_id"]: row for _, row in rows if row["rollout_id"] is not None}


def _rollout(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    row, trace = value["rollout"], value["trace"] or {}
    name = trace.get("trace") or row["rollout_id"]
    metadata = json.loads(trace["metadata"]) if trace.get("metadata") else {}
    yield Span(
        name,
        ROOT,
        kind="chain",
        start=trace.get("start"),
        error=row["error"] if row["status"] != "ok" else None,
        inputs=json.loads(value["inputs"]),
        outputs=None if row["output"] is None else json.loads(row["output"]),
        user=trace.get("user"),
        metadata={"from": {"source": row["source"], "iteration": row["iteration"]}, **metadata},
        own=own_of(row, ROLLOUT),
        where=where,
    )
    for score, values in json.loads(trace.get("scores") or "{}").items():
        for found in values:
            yield Score(name, score, found, where=where)


def _call(row: Mapping[str, Any], trace: str, policy: str | None, where: str) -> Span:
    ids = row["fidelity"] in _IDS  # those of a text were made by us, and are made again
    return Span(
        trace,
        f"call-{row['call_index']}",
        ROOT,
        "llm",
        order=row["call_index"] + 1,
        module=row["module"],
        invocation_index=row["invocation_index"],
        attempt=row["attempt"],
        policy=policy,
        inputs=None if row["inputs"] is None else json.loads(row["inputs"]),
        outputs=None if row["outputs"] is None else json.loads(row["outputs"]),
        call=Call(
            messages_of(row["messages"]) or (),
            row["completion"],
            prompt_ids=_tuple(row["prompt_ids"]) if ids else None,
            completion_ids=_tuple(row["completion_ids"]) if ids else None,
            logprobs=_tuple(row["sampling_logprobs"]) if ids else None,
            logprob_kind=row["logprob_kind"] if ids else None,
            **{name: row[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens", "seed")},
        ),
        own=own_of(row, OF_CALLS),
        where=where,
    )


def _tuple(values: list[Any] | None) -> tuple[Any, ...] | None:
    return tuple(values) if values else None
