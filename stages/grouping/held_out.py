"""Which examples are held out: policies are scored on them, so that nothing logged of them may be trained on."""

from __future__ import annotations

import json

import polars as pl

from schemas.examples import EXAMPLES, example_id
from schemas.parquet import read_frame
from stages.contract import Artifact, Inputs

ROLE = "examples"
"""The run's examples: an input where rollouts come in that the run has not sampled on its own training examples."""
SPLIT = "split"
"""The parameter that names the split which is trained on."""
_TABLE = "examples.parquet"


def held_out(inputs: Inputs) -> frozenset[str]:
    """Ids of the examples of the run's other splits, also as snapshots know them whose ids are keyed by a secret."""
    if ROLE not in inputs.artifacts:
        return frozenset()
    examples = read_frame(inputs[ROLE].file(_TABLE), EXAMPLES, columns=["example_id", "split"])
    held = frozenset(examples.filter(pl.col("split") != inputs.params[SPLIT])["example_id"].to_list())
    keyed = [artifact for artifact in inputs.artifacts.values() if _keyed(artifact)]
    return held.union(*(_known_as(artifact, held) for artifact in keyed)) if held else held


def _keyed(artifact: Artifact) -> bool:
    return "key_id" in artifact.manifest.payload.get("params", {})


def _known_as(snapshot: Artifact, held: frozenset[str]) -> set[str]:
    """Ids that a snapshot has given to inputs which are held out, whatever it calls them."""
    rows = read_frame(snapshot.file(_TABLE), EXAMPLES, columns=["example_id", "inputs"]).iter_rows()
    return {name for name, inputs in rows if example_id(json.loads(inputs)) in held}
