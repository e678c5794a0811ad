"""Which rows are served together: clusters of prompts, cut so that keys and values stay within a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stages.engines.prefix import Cluster, Ids, clusters
from stages.engines.rows import Row

BATCH_ROWS = 256
"""Most rows decoded together: more are no faster on CPUs, and each holds scores over the vocabulary."""
_PREFILL_TOKENS = 4096
"""Most tokens (padding included) of one prefill pass."""


@dataclass
class Work:
    """Rows that are served together, by cluster and prompt."""

    parts: list[tuple[Cluster, dict[Ids, list[Row]]]]


def plan(rows: Sequence[Row], batch_tokens: int) -> Iterator[Work]:
    """Cut rows into batches of at most `batch_tokens` tokens of keys and values (or one row, if it needs more)."""
    waiting: dict[Ids, list[Row]] = {}
    for row in rows:
        waiting.setdefault(row.prompt, []).append(row)
    work, tokens, count = Work([]), 0, 0
    for cluster in clusters(list(waiting)):
        part: dict[Ids, list[Row]] = {}
        for prompt in sorted(cluster.prompts, key=lambda prompt: (len(prompt), prompt)):
            for row in waiting[prompt]:
                price = _price(row, cluster, part)
                if count and (tokens + price > batch_tokens or count == BATCH_ROWS):
                    yield _with(work, cluster, part)
                    work, tokens, count, part = Work([]), 0, 0, {}
                    price = _price(row, cluster, part)
                part.setdefault(prompt, []).append(row)
                tokens, count = tokens + price, count + 1
        work = _with(work, cluster, part)
    if count:
        yield work


def _price(row: Row, cluster: Cluster, part: dict[Ids, list[Row]]) -> int:
    """Tokens that a row adds: its own, its prompt if it is the first of it, the prefix if it is the first at all."""
    prefix = 0 if part else cluster.shared
    prompt = 0 if row.prompt in part else len(row.prompt) - cluster.shared
    return prefix + prompt + row.limit


def _with(work: Work, cluster: Cluster, part: dict[Ids, list[Row]]) -> Work:
    return Work([*work.parts, (cluster, part)]) if part else work


def buckets(prompts: Sequence[Ids], known: int) -> Iterator[list[Ids]]:
    """Cut prompts, sorted by length, into prefill batches of like length; `known` first tokens are not computed."""
    batch: list[Ids] = []
    for prompt in prompts:
        length = len(prompt) - known
        if batch and (length * (len(batch) + 1) > _PREFILL_TOKENS or length > 1.5 * (len(batch[0]) - known) + 16):
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch
