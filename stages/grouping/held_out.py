"""Which examples are held out: policies are scored on them, so that nothing logged of them may be trained on."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import polars as pl

from schemas.examples import EXAMPLES
from schemas.parquet import preflight
from stages.contract import Artifact, Inputs

ROLE = "examples"
"""The run's examples: an input where rollouts come in that the run has not sampled on its own training examples."""
SPLIT = "split"
"""The parameter that names the split which is trained on."""
_TABLE = "examples.parquet"


def held_out(inputs: Inputs) -> frozenset[str]:
    """Ids of the examples of the run's other splits, and those that snapshots have given to the same inputs.

    Either side may have keyed its ids by a secret, so that it is inputs that are compared. A log and a data file write
    them down each in its own way: numbers or texts of numbers, with white space at an end or without. Such differences
    do not count, unless the run trains on an example of that very id. What was taken out of a log stands there as a
    pseudonym, which may stand for anything.
    """
    if ROLE not in inputs.artifacts:
        return frozenset()
    examples = _told(inputs[ROLE]).collect()
    held = pl.col("split") != inputs.params[SPLIT]
    scored, trained = examples.filter(held), examples.filter(~held)
    found = set(scored["example_id"].to_list())
    for role, artifact in inputs.artifacts.items():
        if role != ROLE and artifact.file(_TABLE).is_file():
            logged = _told(artifact).join(scored.select("told").lazy(), on="told", how="semi").select("example_id")
            found.update(logged.collect(engine="streaming")["example_id"].to_list())
            found.update(_redacted(artifact, sorted(scored["told"].to_list())))
    return frozenset(found.difference(trained["example_id"].to_list()))


def _redacted(artifact: Artifact, scored: Sequence[str]) -> Iterator[str]:
    """Ids of examples that something was taken out of, and which may have been one of those that are scored.

    Args:
        artifact: a snapshot.
        scored: what those are told as, sorted.
    """
    kinds = artifact.manifest.metrics.get("redacted")
    if not kinds or not scored:
        return
    pseudonym = f"<(?:{'|'.join(map(re.escape, sorted(kinds)))})_[0-9]+>"
    rows = _told(artifact).filter(pl.col("told").str.contains(pseudonym)).select("example_id", "told")
    for name, told in rows.collect(engine="streaming").iter_rows():
        start, *others = re.split(pseudonym, told)
        whole = re.compile(".+".join(map(re.escape, (start, *others))), re.DOTALL)
        if any(map(whole.fullmatch, _starting(scored, start))):
            yield name


def _starting(texts: Sequence[str], start: str) -> Iterator[str]:
    """Those of sorted texts that start so."""
    for place in range(bisect_left(texts, start), len(texts)):
        if not texts[place].startswith(start):
            return
        yield texts[place]


def _told(artifact: Artifact) -> pl.LazyFrame:
    """`example_id`, `split`, and `told`: the canonical inputs without quotes, and with white space as one space.

    A scan: a snapshot's examples may be more than memory holds.
    """
    preflight(artifact.file(_TABLE), EXAMPLES)
    plain = pl.col("inputs").str.replace_all(r"(\\[nrt]|\s)+", " ").str.replace_all(r' ?\\?" ?', "")
    return pl.scan_parquet(artifact.file(_TABLE)).select("example_id", "split", told=plain)
