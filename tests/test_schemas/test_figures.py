"""Figures of manifests that somebody made up are told by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.manifests import MANIFEST, read_manifest
from schemas.canonical import canonical_json
from schemas.errors import DataError
from schemas.figures import OF_STAGE, Provenance
from schemas.manifest import Manifest
from schemas.shapes import first_problem
from tests.test_pipeline.test_store import make

TRAIN = {
    "trained": True,
    "policy": "0" * 64,
    "steps": 3,
    "loss": 0.5,
    "adapters": {"shared": {"steps": 3, "modules": ["*"], "more": "?"}},
}


@pytest.mark.parametrize(
    ("stage", "metrics", "told"),
    [
        ("train", TRAIN | {"steps": "3"}, "metrics.steps: Input should be a valid integer (got '3')"),
        ("train", TRAIN | {"trained": "no"}, "metrics.trained: Input should be a valid boolean"),
        ("train", TRAIN | {"trained": False}, "metrics: trained is false, and no reason is given"),
        ("train", TRAIN | {"policy": None}, "metrics: trained is true, and no policy is named"),
        ("train", {"steps": 3}, "metrics.trained: Field required"),
        ("train", TRAIN | {"adapters": {"shared": {"steps": None}}}, "metrics.adapters.shared.steps: "),
        ("train", TRAIN | {"loss": [0.5]}, "metrics.loss: Input should be a valid number"),
        ("train", TRAIN | {"steps": 10**400}, "metrics.steps: "),
        ("drift", {"calls": 3, "alarms": "all is well"}, "metrics.alarms: Input should be a valid list"),
        ("examples", {"examples": 3, "splits": {"dev": True}}, "metrics.splits.dev: "),
        ("evaluate", {"split": "dev", "mean": None, "n": 1, "statuses": {}, "failures": {}}, "metrics.mean: "),
    ],
)
def test_a_figure_of_another_kind_is_named(stage: str, metrics: dict[str, Any], told: str) -> None:
    assert told in str(first_problem("metrics", OF_STAGE[stage], metrics))


def test_figures_that_nobody_reads_are_free() -> None:
    assert first_problem("metrics", OF_STAGE["train"], TRAIN | {"of_yours": ["?"]}) is None
    assert first_problem("provenance", Provenance, {"code": {"commit": None}, "more": 5}) is None
    assert first_problem("provenance", Provenance, {"packages": ["torch"]}) == (
        "provenance.packages: Input should be a valid dictionary (got \"['torch']\")"
    )


def test_a_sealed_manifest_with_made_up_figures_is_refused_by_its_name_and_the_figures(tmp_path: Path) -> None:
    path = make(tmp_path).path / MANIFEST
    document = json.loads(path.read_bytes()) | {"provenance": {"root": 5}}
    path.write_text(canonical_json(Manifest.model_validate(document).sealed().model_dump(mode="json")))
    with pytest.raises(DataError, match=r"manifest\.json: provenance\.root: .*\(got '5'\).*made up|made it up"):
        read_manifest(path)


def test_every_stage_that_has_figures_is_known() -> None:
    """What stages write passes: every end-to-end test reads what it wrote. Here: none was forgotten."""
    from pipeline.stages_in_order import STAGES

    assert {*STAGES, "ingest"} - set(OF_STAGE) == {"program", "logprobs"}
