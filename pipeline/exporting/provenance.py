"""Where an exported adapter comes from: the chain of manifests behind it, by digests. No text of a run is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.exporting.chosen import Chosen
from pipeline.provenance import package_versions
from pipeline.reporting.opened import OpenRun
from schemas.canonical import digest, digest_file
from stages.contract import Artifact

FORMAT = 1
NAME = "provenance.json"


def provenance_of(run: OpenRun, chosen: Chosen, folder: Path, *, merged: str | None) -> dict[str, Any]:
    """The contents of provenance.json.

    Args:
        run: where it comes from.
        chosen: what is exported.
        folder: with the files that are exported, all but the card and this one.
        merged: dtype of merged weights; None for an adapter.
    """
    files = {path.relative_to(folder).as_posix(): digest_file(path) for path in folder.rglob("*") if path.is_file()}
    document: dict[str, Any] = {
        "format": FORMAT,
        "run": run.state.name,
        "run_digest": run.state.digest,
        "policy": chosen.policy,
        "iterations": chosen.position,
        "base": chosen.base,
        "adapters": chosen.digests,
        "merged": merged,
        "train": chosen.train.digest,
        "code": chosen.train.manifest.provenance.get("code"),
        "packages": chosen.train.manifest.provenance.get("packages"),
        "exported_with": package_versions().get("mmgrpo"),
        "chain": [_link(*entry) for entry in chain(run, chosen)],
        "files": dict(sorted(files.items())),
    }
    return document | {"digest": digest(document)}


def chain(run: OpenRun, chosen: Chosen) -> Iterator[tuple[str, int | None, Artifact]]:
    """(stage, iteration, artifact) of everything that led to the policy, and of its scores and those of the base."""
    for stage, iteration, key in run.chosen():
        artifact = run.store.find(stage, key)
        if artifact is None or (iteration is not None and iteration >= chosen.position):
            continue
        scored = {run.state.policies[0], chosen.policy}
        if stage in {"evaluate", "drift"} and artifact.manifest.payload["params"].get("policy") not in scored:
            continue
        yield stage, iteration, artifact


def _link(stage: str, iteration: int | None, artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "stage": stage,
        "iteration": iteration,
        "key": manifest.key,
        "digest": manifest.digest,
        "manifest": manifest.manifest_digest,
        "stage_version": manifest.stage_version,
        "inputs": dict(sorted(manifest.payload["inputs"].items())),
    }
