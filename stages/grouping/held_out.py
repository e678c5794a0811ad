"""Which examples are held out: policies are scored on them, so that nothing logged of them may be trained on."""

from __future__ import annotations

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
    do not count, unless the run trains on an example of that very id.
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
    return frozenset(found.difference(trained["example_id"].to_list()))


def _told(artifact: Artifact) -> pl.LazyFrame:
    """`example_id`, `split`, and `told`: the canonical inputs without quotes, and with white space as one space.

    A scan: a snapshot's examples may be more than memory holds.
    """
    preflight(artifact.file(_TABLE), EXAMPLES)
    plain = pl.col("inputs").str.replace_all(r"(\\[nrt]|\s)+", " ").str.replace_all(r' ?\\?" ?', "")
    return pl.scan_parquet(artifact.file(_TABLE)).select("example_id", "split", told=plain)
