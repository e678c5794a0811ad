"""Forgeries: an artifact changed together with every digest that follows from it, so that only its content tells."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from pipeline.manifests import MANIFEST, read_manifest
from pipeline.runfile import RunFile, read_run, write_run
from pipeline.store import Store
from schemas.canonical import canonical_json, digest, digest_file
from schemas.manifest import FileEntry, Manifest, artifact_digest
from schemas.parquet import read_frame, write_table
from schemas.table import TableSpec
from stages.contract import Artifact

Frame = Callable[[pl.DataFrame], pl.DataFrame]
Metrics = Callable[[dict[str, Any]], None]


def forge(folder: Path, artifact: Artifact, spec: TableSpec | None, rows: Frame | None, metrics: Metrics) -> Path:
    """Change rows of a table and figures of the manifest, then reseal it, all that it went into, and run.json.

    Returns:
        The changed artifact's folder.
    """
    manifest = artifact.manifest.model_copy(deep=True)
    metrics(manifest.metrics)
    files = dict(manifest.files)
    if spec is not None and rows is not None:
        path = artifact.file(f"{spec.name}.parquet")
        write_table(rows(read_frame(path, spec)), path, spec)
        old = files[path.name]
        count = pq.read_metadata(path).num_rows
        files[path.name] = FileEntry.model_validate(
            old.model_dump() | {"sha256": digest_file(path), "bytes": path.stat().st_size, "rows": count}
        )
    _seal(artifact.path, manifest.model_copy(update={"files": files, "digest": artifact_digest(files)}))
    _follow(folder, artifact.digest, artifact_digest(files))
    return artifact.path


def _follow(folder: Path, old: str, new: str) -> None:
    """Everything that was made from a digest says that it was made from another one."""
    document = canonical_json(read_run(folder).model_dump(mode="json"))
    for stage, path in Store(folder / "artifacts").all():
        manifest = read_manifest(path / MANIFEST)
        if old == new or old not in manifest.payload["inputs"].values():
            continue
        inputs = {role: new if value == old else value for role, value in manifest.payload["inputs"].items()}
        payload = manifest.payload | {"inputs": inputs}
        key = digest(payload)
        _seal(path, manifest.model_copy(update={"payload": payload, "key": key}))
        path.rename(Store(folder / "artifacts").folder(stage, key))
        document = document.replace(manifest.key, key)
    write_run(folder, RunFile.model_validate_json(document))


def _seal(path: Path, manifest: Manifest) -> None:
    (path / MANIFEST).write_text(canonical_json(manifest.sealed().model_dump(mode="json")) + "\n")


def copied(run: Path, folder: Path) -> Path:
    """A copy of a run to change."""
    shutil.copytree(run, folder)
    return folder
