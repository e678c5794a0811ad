"""verify: does every byte of a run still match its manifest, and does the chain of manifests hold together?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline import runfile
from pipeline.jobs import stage_of
from pipeline.runfile import RunFile
from pipeline.store import MANIFEST, Store, check_files, read_manifest
from pipeline.tombstones import problems_of, tombstone_of
from schemas.errors import DataError
from schemas.parquet import read_rows
from schemas.policies import POLICIES, policy_digest
from stages.contract import Artifact


@dataclass(frozen=True)
class Verification:
    """What was looked at, and every problem found; each problem names its file."""

    artifacts: int
    files: int
    problems: tuple[str, ...]
    deleted: tuple[str, ...] = ()
    """Artifacts whose bytes were deleted by request: who asked, when and why."""


def verify(folder: Path) -> Verification:
    """Check run.json, every artifact below the run (chosen or not), and the chain that run.json names.

    The folder may be that of one artifact, such as a snapshot of traces, too.
    """
    if (folder / MANIFEST).exists():
        return _alone(folder)
    store = Store(folder / "artifacts")
    problems: list[str] = []
    intact: dict[tuple[str, str], Artifact] = {}
    deleted: list[str] = []
    files = 0
    for stage, path in store.all():
        try:
            manifest = read_manifest(path / MANIFEST)
        except DataError as error:
            problems.append(str(error))
            continue
        if (stone := tombstone_of(path)) is not None:
            deleted.append(f"{path}: {stone}")
        problems += check_files(path, manifest) if stone is None else problems_of(path, manifest)
        files += len(manifest.files) if stone is None else 0
        if manifest.stage != stage or manifest.key[:16] != path.name:
            problems.append(f"{path / MANIFEST}: it is {manifest.stage}/{manifest.key[:16]}, but lies elsewhere")
        intact[stage, manifest.key] = Artifact(path, manifest)
    try:
        run = runfile.read_run(folder)
        problems += _chain(folder, run, intact)
    except DataError as error:
        problems.append(str(error))
    return Verification(len(intact), files, tuple(problems), tuple(deleted))


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
            yield from _adapter_is_the_policy(artifact)


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


def _adapter_is_the_policy(artifact: Artifact) -> Iterator[str]:
    """The bytes of the adapters give their digests, and those the policy which later stages say they sampled from."""
    from stages.engines.adapters import read_adapters

    policy = artifact.manifest.metrics["policy"]
    path = artifact.file("policies.parquet")
    rows = {row["policy"]: row for row in read_rows(path, POLICIES)}
    row = rows.get(policy)
    if row is None:
        yield f"{path}: lacks the policy {policy[:12]} that the manifest names"
        return
    adapters = json.loads(row["adapters"])
    if policy_digest(row["base"], adapters) != policy:
        yield f"{path}: policy {policy[:12]} does not follow from its base and adapters"
    there = read_adapters(artifact.path)
    found = there.digests()
    for module in sorted(adapters.keys() | found.keys()):
        if adapters.get(module) != found.get(module):
            where = there.by_module.get(module, artifact.path)
            was, named = (str(digests.get(module))[:12] for digests in (found, adapters))
            yield f"{where}: the digest of the adapter of '{module}' is {was}, the policy names {named}"
    before = json.loads(rows[row["parent"]]["adapters"]) if row["parent"] in rows else {}
    yield from _kept(artifact, before, adapters)


def _kept(artifact: Artifact, before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """An adapter that took no step is the one that it was."""
    told = artifact.manifest.metrics.get("adapters", {})  # earlier releases had one adapter, which took every step
    for name, figures in told.items():
        changed = [module for module in figures["modules"] if before.get(module) != now.get(module)]
        if changed and not figures["steps"]:
            modules = ", ".join(changed)
            yield f"{artifact.path}: the adapter '{name}' of {modules} took no step, but is another than before"
