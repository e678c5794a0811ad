"""Made-up rollouts and invocations of a given size, shaped like a multi-hop program's.

A rollout plans once, makes 0 to 3 hops (a query and a note each) and answers: 2 to 8 calls of 4 modules. 6 % of the
rollouts end early with a completion that does not parse; 2 % of the other calls were retried once. Twelve rollouts an
example; 24 prompt and 12 completion ids a call. Written in the order in which the rollout stage writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.rollouts import INVOCATIONS, ROLLOUTS

GROUP = 12
PROMPT, COMPLETION = 24, 12
MODULES = np.array(["answer", "hop.note", "hop.query", "plan"])
CALLS_PER_ROLLOUT = 5.04
EXAMPLES_A_BATCH = 2000


def write_tables(folder: Path, invocations: int, seed: int = 0) -> tuple[Path, Path, int]:
    """Write rollouts.parquet and invocations.parquet of about `invocations` rows; returns both and the exact count."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "rollouts.parquet", folder / "invocations.parquet"
    examples = max(1, round(invocations / CALLS_PER_ROLLOUT / GROUP))
    rows = 0
    with _writer(paths[0], ROLLOUTS) as rollouts, _writer(paths[1], INVOCATIONS) as calls:
        for first in range(0, examples, EXAMPLES_A_BATCH):
            rng = np.random.default_rng([seed, first])
            batch, table = _batch(rng, first, min(EXAMPLES_A_BATCH, examples - first))
            rollouts.write_table(batch)
            calls.write_table(table)
            rows += table.num_rows
    return *paths, rows


def _writer(path: Path, spec: object) -> pq.ParquetWriter:
    schema = spec.schema.with_metadata(
        {b"mmgrpo.table": spec.name.encode(), b"mmgrpo.version": str(spec.version).encode()}
    )
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=3)


def _batch(rng: np.random.Generator, first: int, examples: int) -> tuple[pa.Table, pa.Table]:
    n = examples * GROUP
    number = first * GROUP + np.arange(n)
    hops = rng.integers(0, 4, n)
    planned = 2 + 2 * hops
    failing = rng.random(n) < 0.06
    made = np.where(failing, rng.integers(1, planned + 1), planned)
    ids = np.array([f"{x * 0x9E3779B97F4A7C15 % 2**80:020x}" for x in number.tolist()])
    level = np.repeat(rng.beta(1.0, 1.0, examples), GROUP)
    graded = np.repeat(rng.random(examples) < 0.5, GROUP)
    reward = np.where(graded, rng.binomial(8, level) / 8, rng.random(n) < level)
    rollouts = {
        "example_id": np.repeat([f"{x:016x}" for x in range(first, first + examples)], GROUP),
        "rollout_index": np.tile(np.arange(GROUP), examples),
        "rollout_id": ids,
        "iteration": np.zeros(n),
        "source": pa.array(["student"]).take(pa.array(np.zeros(n, dtype="i4"))),
        "policy": pa.array(["0" * 64]).take(pa.array(np.zeros(n, dtype="i4"))),
        "reward": pa.array(reward, mask=failing),
        "status": np.where(failing, "parse_failed", "ok"),
        "error": pa.array(np.where(failing, "completion lacks answer", ""), mask=~failing),
        "seed": number,
    }
    return _table(rollouts, n, ROLLOUTS), _calls(rng, ids, made, planned, failing)


def _calls(
    rng: np.random.Generator, ids: np.ndarray, made: np.ndarray, planned: np.ndarray, failing: np.ndarray
) -> pa.Table:
    of = np.repeat(np.arange(len(ids)), made)
    at = np.arange(len(of)) - np.repeat(np.cumsum(made) - made, made)
    answer = at == planned[of] - 1
    module = np.where(at == 0, 3, np.where(answer, 0, np.where(at % 2 == 1, 2, 1)))
    position = np.where((at == 0) | answer, 0, (at - 1) // 2)
    failed = failing[of] & (at == made[of] - 1)
    tries = 1 + (failed | (rng.random(len(of)) < 0.02))
    row = np.repeat(np.arange(len(of)), tries)
    attempt = np.arange(len(row)) - np.repeat(np.cumsum(tries) - tries, tries)
    bad = failed[row] | ((tries[row] == 2) & (attempt == 0))
    firsts = np.flatnonzero(np.r_[True, np.diff(of[row]) != 0])
    n = len(row)
    call_index = np.arange(n) - np.repeat(firsts, np.diff(np.r_[firsts, n]))
    columns = {
        "rollout_id": ids[of[row]],
        "call_index": call_index,
        "module": MODULES[module[row]],
        "invocation_index": position[row],
        "attempt": attempt,
        "lm": _constant("student", n),
        "messages": _constant('[{"content":"…","role":"user"}]', n),
        "prompt_ids": _lists(rng.integers(0, 50_000, n * PROMPT, dtype=np.int32), PROMPT),
        "completion_ids": _lists(rng.integers(0, 50_000, n * COMPLETION, dtype=np.int32), COMPLETION),
        "sampling_logprobs": _lists(-rng.random(n * COMPLETION, dtype=np.float32), COMPLETION),
        "finish_reason": _constant("stop", n),
        "parse_status": np.where(bad, "failed", "ok"),
        "parsed_share": pa.array(rng.integers(0, 3, n) / 2, mask=~bad),
        "temperature": np.ones(n),
        "seed": rng.integers(0, 2**62, n),
        "logprob_kind": _constant("processed", n),
        "trainable": np.ones(n, dtype=bool),
        "concurrent": np.zeros(n, dtype=bool),
        "fidelity": _constant("exact", n),
    }
    return _table(columns, n, INVOCATIONS)


def _constant(text: str, n: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(n, dtype="i4")))


def _lists(values: np.ndarray, width: int) -> pa.Array:
    offsets = np.arange(0, len(values) + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _table(columns: dict[str, object], n: int, spec: object) -> pa.Table:
    arrays = []
    for field in spec.schema:
        column = columns.get(field.name)
        column = pa.nulls(n, field.type) if column is None else pa.array(column)
        arrays.append(column.cast(field.type))
    return pa.table(arrays, schema=spec.schema)


def sizes() -> Iterator[tuple[str, int]]:
    """The sizes that are measured."""
    yield from (("100k", 100_000), ("1M", 1_000_000), ("10M", 10_000_000))
