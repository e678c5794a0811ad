"""What a started process is told of its job: one file of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.manifests import MANIFEST, read_manifest
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Artifact, Inputs

FILE = "job.json"
LINK = "link"


@dataclass(frozen=True)
class Description:
    """A job of the train stage, as every process of it sees it."""

    inputs: Inputs
    recipe: Recipe
    execution: Execution
    partial: Path
    """The folder of the artifact in the making, which the first node has begun."""

    def write(self, folder: Path) -> None:
        """Put it into a folder."""
        document = {
            "artifacts": {role: str(artifact.path) for role, artifact in self.inputs.artifacts.items()},
            "params": dict(self.inputs.params),
            "root": str(self.inputs.root),
            "recipe": self.recipe.model_dump(mode="json"),
            "execution": self.execution.model_dump(mode="json"),
            "partial": str(self.partial),
        }
        (folder / FILE).write_text(json.dumps(document), encoding="utf-8")


def read_description(folder: Path) -> Description:
    """What `write` wrote."""
    document: Mapping[str, Any] = json.loads((folder / FILE).read_bytes())
    artifacts = {
        role: Artifact(Path(path), read_manifest(Path(path) / MANIFEST)) for role, path in document["artifacts"].items()
    }
    return Description(
        Inputs(artifacts, document["params"], Path(document["root"])),
        Recipe.model_validate(document["recipe"]),
        Execution.model_validate(document["execution"]),
        Path(document["partial"]),
    )
