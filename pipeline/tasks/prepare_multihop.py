"""The multi-hop task's files: hard questions and claims of three data sets, and one corpus for all of them.

Taken are 2WikiMultihopQA's questions with four gold titles, MuSiQue's with three or four hops, and the HoVer claims
whose pages are all there. Those that share a gold page, or come from the same HotpotQA question, lie in one split.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.tasks.draw import Row, shuffled, write_examples
from pipeline.tasks.text import normalise
from schemas.errors import DataError

SEED = 4
SPLITS = {"train": 200, "dev": 100}
"""Least rows of these splits, whole clusters at a time; the others are the test split."""
CORPORA = ("2wiki", "hotpotqa", "musique")
TEXT = pa.string()
SCHEMA = pa.schema(
    [pa.field(name, TEXT, nullable=False) for name in ("split", "question")]
    + [pa.field("titles", pa.list_(pa.field("item", TEXT, nullable=False)), nullable=False)]
    + [pa.field("source", TEXT, nullable=False), pa.field("hops", pa.int32(), nullable=False)]
    + [pa.field("id", TEXT, nullable=False)]
)
PASSAGES = pa.schema([pa.field(name, TEXT, nullable=False) for name in ("title", "text")])


def write(multihop: Path, hover: Path, folder: Path, sizes: dict[str, int] | None = None) -> dict[str, int]:
    """Write examples.parquet and passages.parquet; returns counts.

    Args:
        multihop: folder with `NAME_passages.parquet` and `NAME_queries.jsonl.gz` of the three corpora.
        hover: folder with `hover_covered.jsonl`.
        folder: where to write.
        sizes: least rows of `train` and `dev`; default `SPLITS`.

    Raises:
        DataError: when a source file is missing or not of the expected form.
    """
    try:
        passages = {name: pq.read_table(multihop / f"{name}_passages.parquet").to_pylist() for name in CORPORA}
        rows = [*_two_wiki(multihop), *_musique(multihop, passages["musique"]), *_hover(hover)]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{multihop} and {hover}: expected the files that SOURCE.md names ({error!r})") from None
    every = [{"title": row["title"], "text": row["text"]} for name in CORPORA for row in passages[name]]
    distinct = list({(row["title"], row["text"]): row for row in every}.values())
    write_examples(folder / "passages.parquet", distinct, PASSAGES)
    titles = {row["title"] for row in distinct}
    if absent := sorted({title for row in rows for title in row["titles"]} - titles):
        raise DataError(f"{multihop}: no passage of the gold page {absent[0]!r} ({len(absent)} are missing)")
    placed = _split(rows, SPLITS if sizes is None else sizes)
    write_examples(folder / "examples.parquet", [{name: row[name] for name in SCHEMA.names} for row in placed], SCHEMA)
    return _counts(placed) | {"passages": len(distinct), "repeated passages": len(every) - len(distinct)}


def _two_wiki(folder: Path) -> Iterator[Row]:
    for row in _lines(folder / "2wiki_queries.jsonl.gz"):
        if len(set(row["gold_titles"])) == 4:
            yield _row("2wiki", row["question"], row["gold_titles"], 4, row["id"])


def _musique(folder: Path, passages: list[dict[str, Any]]) -> Iterator[Row]:
    titles = {row["id"]: row["title"] for row in passages}
    for row in _lines(folder / "musique_queries.jsonl.gz"):
        if row["num_hops"] >= 3:
            gold = [titles[place] for place in row["gold_passage_ids"]]
            yield _row("musique", row["question"], gold, row["num_hops"], row["id"])


def _hover(folder: Path) -> Iterator[Row]:
    for row in _lines(folder / "hover_covered.jsonl"):
        made = _row("hover", row["claim"], row["gold_titles"], row["num_hops"], str(row["id"]))
        yield made | {"made from": row["hpqa_id"]}


def _row(source: str, question: str, titles: list[str], hops: int, name: str) -> Row:
    gold = list(dict.fromkeys(titles))
    return {"source": source, "question": question.strip(), "titles": gold, "hops": hops, "id": name}


def _lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _split(rows: list[Row], sizes: dict[str, int]) -> list[Row]:
    """Rows with their split: clusters in a seeded order fill one split after another, and the rest is `test`."""
    clusters = shuffled(_clusters(rows), SEED, lambda cluster: min(normalise(row["question"]) for row in cluster))
    placed: list[Row] = []
    names = iter([*sizes.items(), ("test", len(rows))])
    split, room = next(names)
    for cluster in clusters:
        while room <= 0:
            split, room = next(names)
        placed += [{"split": split, **row} for row in shuffled(cluster, SEED, lambda row: normalise(row["question"]))]
        room -= len(cluster)
    return placed


def _clusters(rows: list[Row]) -> list[list[Row]]:
    """Rows that are linked, directly or through others, by a gold page or by the question they were made from."""
    leader = list(range(len(rows)))
    holders: dict[str, int] = {}
    for index, row in enumerate(rows):
        links = [f"page {title.casefold()}" for title in row["titles"]]
        links += [f"question {row['made from']}"] if row.get("made from") else []
        for link in links:
            _join(leader, holders.setdefault(link, index), index)
    found: dict[int, list[Row]] = {}
    for index, row in enumerate(rows):
        found.setdefault(_lead(leader, index), []).append(row)
    return list(found.values())


def _lead(leader: list[int], index: int) -> int:
    while leader[index] != index:
        index = leader[index]
    return index


def _join(leader: list[int], left: int, right: int) -> None:
    leader[_lead(leader, left)] = _lead(leader, right)


def _counts(rows: list[Row]) -> dict[str, int]:
    counts: dict[str, int] = {"clusters": len(_clusters(rows))}
    for row in rows:
        for name in (row["split"], f"{row['split']} {row['source']}"):
            counts[name] = counts.get(name, 0) + 1
    return counts
