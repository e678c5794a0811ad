"""What every check of an audit says, and which artifacts it may look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.audit.recorded import CannotRedoError, Recorded, recorded
from pipeline.graph import Graph
from pipeline.tombstones import tombstone_of
from schemas.errors import RecipeError
from stages.contract import Artifact


@dataclass
class Check:
    """One thing that was computed anew, for any number of artifacts."""

    what: str
    """In words, such as `groups, made again from their rollouts`."""
    looked: int = 0
    problems: list[str] = field(default_factory=list)
    """Each names its file."""
    skipped: list[str] = field(default_factory=list)
    """What could not be computed here, and why."""

    def __str__(self) -> str:
        right = self.looked - len({problem.partition(": ")[0] for problem in self.problems})
        told = f"{self.what}: {max(right, 0)} of {self.looked}"
        return f"{told}, {len(self.skipped)} not looked at" if self.skipped else told


@dataclass(frozen=True)
class Run:
    """What an audit looks at."""

    graph: Graph
    recipe: Mapping[str, Any]
    """The run's recipe, resolved."""
    root: Path | None = None
    """The recipe's folder, where it is not the one that manifests name."""
    damaged: Collection[Path] = ()
    """Folders of artifacts whose bytes are not those of their manifests: nothing can be said of what came of them."""

    def job(self, artifact: Artifact) -> Recorded:
        """The job that made an artifact.

        Raises:
            CannotRedoError: when it cannot be done again.
        """
        return recorded(artifact, self.graph, self.recipe, self.root)


def each(run: Run, check: Check, stages: Iterable[str], look: Callable[[Artifact], Iterable[str]]) -> Check:
    """Look at every artifact of some stages; `look` gives problems, or raises where it cannot."""
    for artifact in run.graph.of(*stages):
        if tombstone_of(artifact.path) is not None:
            continue
        if broken := _broken(run, artifact):
            check.skipped.append(f"{artifact.path}: {broken} is damaged")
            continue
        try:
            found = list(look(artifact))
        except (CannotRedoError, RecipeError) as error:
            check.skipped.append(f"{artifact.path}: {error}")
            continue
        except Exception as error:  # noqa: BLE001 - forged tables may break anything, and the others are still looked at
            found = [f"{artifact.path}: {type(error).__name__}: {error}"]
        check.looked += 1
        check.problems += found
    return check


def _broken(run: Run, artifact: Artifact) -> Path | None:
    sources = [artifact, *(item for item in run.graph.inputs(artifact).values() if item is not None)]
    return next((item.path for item in sources if item.path in run.damaged), None)
