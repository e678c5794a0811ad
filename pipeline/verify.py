"""verify: does every byte of a run still match its manifest, and does the chain of manifests hold together?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import runfile
from pipeline.audit.policies import adapter_problems
from pipeline.graph import Graph
from pipeline.jobs import stage_of
from pipeline.manifests import MANIFEST, check_files, read_manifest, read_stored
from pipeline.release.checks import record_problems
from pipeline.runfile import RunFile
from pipeline.store import Store
from pipeline.tombstones import problems_of, tombstone_of
from schemas.errors import DataError, RecipeError
from stages.contract import Artifact

if TYPE_CHECKING:
    from pipeline.audit.check import Check


@dataclass(frozen=True)
class Verification:
    """What was looked at, and every problem found; each problem names its file."""

    artifacts: int
    files: int
    problems: tuple[str, ...]
    deleted: tuple[str, ...] = ()
    """Artifacts whose bytes were deleted by request: who asked, when and why."""
    checks: tuple[Check, ...] = ()
    """What was computed anew; their problems stand among `problems` too."""


def verify(folder: Path, *, deep: bool = False, root: Path | None = None) -> Verification:
    """Check run.json, every artifact below the run (chosen or not), and the chain that run.json names.

    The folder may be that of one artifact, such as a snapshot of traces, too.

    Args:
        folder: of the run.
        deep: compute anew, too, what follows from other artifacts: groups from rollouts, batch plans from groups,
            policies from adapters, means from rows. It finds artifacts that were changed together with every digest.
        root: the recipe's folder, where it is not the one that manifests name.

    Raises:
        RecipeError: for a deep look at the folder of one artifact.
    """
    if (folder / MANIFEST).exists():
        if deep:
            raise RecipeError(f"{folder} is one artifact: --deep compares those of a run; name the run's folder")
        return _alone(folder)
    store = Store(folder / "artifacts")
    problems: list[str] = []
    intact: dict[tuple[str, str], Artifact] = {}
    deleted: list[str] = []
    damaged: set[Path] = set()
    files = 0
    for stage, path in store.all():
        try:
            manifest = read_stored(path)
        except DataError as error:
            problems.append(str(error))
            continue
        if (stone := tombstone_of(path)) is not None:
            deleted.append(f"{path}: {stone}")
        found = check_files(path, manifest) if stone is None else problems_of(path, manifest)
        problems += found
        damaged |= {path} if found else set()
        files += len(manifest.files) if stone is None else 0
        intact[stage, manifest.key] = Artifact(path, manifest)
    try:
        run = runfile.read_run(folder)
        problems += _chain(folder, run, intact)
    except DataError as error:
        problems.append(str(error))
        return Verification(len(intact), files, tuple(problems), tuple(deleted))
    problems += record_problems(folder)
    checks = _deep(run, intact, root, damaged) if deep else ()
    problems += [problem for check in checks for problem in check.problems]
    return Verification(len(intact), files, tuple(dict.fromkeys(problems)), tuple(deleted), checks)


def _deep(
    run: RunFile, intact: dict[tuple[str, str], Artifact], root: Path | None, damaged: set[Path]
) -> tuple[Check, ...]:
    from pipeline.audit.check import Run
    from pipeline.audit.deep import audit

    return tuple(audit(Run(Graph(intact.values()), run.recipe, root, damaged)))


def _alone(folder: Path) -> Verification:
    manifest = read_manifest(folder / MANIFEST)
    if (stone := tombstone_of(folder)) is not None:
        return Verification(1, 0, tuple(problems_of(folder, manifest)), (f"{folder}: {stone}",))
    return Verification(1, len(manifest.files), tuple(check_files(folder, manifest)))


def _chain(folder: Path, run: RunFile, intact: dict[tuple[str, str], Artifact]) -> Iterator[str]:
    """Follow run.json: every key is there, and every input of an artifact is an artifact of this run."""
    for stage, key in chosen_keys(run):
        artifact = intact.get((stage, key))
        if artifact is None:
            where = Store(folder / "artifacts").folder(stage, key) / MANIFEST
            yield f"{where}: missing or damaged, but run.json names it"
            continue
        yield from _inputs_known(artifact, intact, run)
        if stage == "train" and artifact.manifest.metrics["trained"]:
            yield from _of_adapter(artifact)


def _of_adapter(artifact: Artifact) -> Iterator[str]:
    """One that cannot be read hides nothing of what else is wrong."""
    try:
        yield from adapter_problems(artifact)
    except DataError as error:
        yield str(error)


def chosen_keys(run: RunFile) -> Iterator[tuple[str, str]]:
    """(stage, key) of everything that run.json names."""
    yield from run.setup.items()
    for stages in run.iterations:
        yield from ((stage_of(name), key) for name, key in stages.items())
    for scores in run.evaluations.values():
        yield from (("evaluate", key) for key in scores.values())
    for drifts in run.drifts.values():
        yield from (("drift", key) for key in drifts.values())


def _inputs_known(artifact: Artifact, intact: dict[tuple[str, str], Artifact], run: RunFile) -> Iterator[str]:
    known = {other.digest for other in intact.values()} | set(run.policies)
    for role, digest in artifact.manifest.payload["inputs"].items():
        if digest not in known:
            where = artifact.path / MANIFEST
            yield f"{where}: its input '{role}' ({digest[:12]}) is no artifact of this run: it was changed or removed"
