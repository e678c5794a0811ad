"""Snapshots by their folders: opened with their bytes checked, and as parents of others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.manifests import MANIFEST, check_files, read_manifest
from pipeline.tombstones import refuse_deleted, tombstone_of
from schemas.addresses import is_address
from schemas.errors import DataError, RecipeError
from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.rollouts import ROLLOUTS
from stages.contract import Artifact
from stages.ingest import snapshot
from stages.places import place_of


def open_snapshot(folder: Path) -> Artifact:
    """The snapshot in a folder, every byte as its manifest says.

    Raises:
        RecipeError: when there is none.
        DataError: when it is damaged, or was deleted by request.
    """
    if not (folder / MANIFEST).exists():
        raise RecipeError(f"{folder}: no snapshot there. `mmgrpo ingest` prints the folder of the one that it makes")
    manifest = read_manifest(folder / MANIFEST)
    if manifest.stage != snapshot.NAME:
        raise RecipeError(f"{folder}: an artifact of the stage {manifest.stage}, expected a snapshot of traces")
    artifact = Artifact(folder, manifest)
    refuse_deleted(artifact)
    if problems := check_files(folder, manifest):
        raise DataError("\n  - ".join([f"{folder} does not verify:", *problems]))
    return artifact


def refuse_missing(recipe: Recipe, root: Path) -> None:
    """Stop when a recipe names a snapshot that is not there.

    Raises:
        RecipeError: saying where it was looked for.
    """
    named = recipe.traces.snapshot
    if named is not None and not (place_of(root, named) / MANIFEST).exists():
        raise RecipeError(
            f"traces.snapshot: no snapshot at {_where(root, named)}. `mmgrpo ingest` prints the folder, or the "
            "address, of the one that it makes: name that"
        )


def refuse_forgotten(recipe: Recipe, root: Path) -> None:
    """Stop when a recipe names a snapshot that was deleted by request.

    Raises:
        RecipeError: saying what to name instead.
    """
    for name, value in (("traces.snapshot", recipe.traces.snapshot), ("examples.path", recipe.examples.path)):
        stone = None if value is None else tombstone_of(place_of(root, value))
        if stone is not None:
            instead = f"set {name} to {stone.successor}" if stone.successor else f"set {name} to something else"
            raise RecipeError(
                f"{name}: {_where(root, str(value))} was {stone}. In the recipe, {instead}: `mmgrpo run` then makes "
                "anew what the traces had reached, from the last clean policy on"
            )


def refuse_unknown(recipe: Recipe, root: Path) -> None:
    """Stop when a recipe names a snapshot with rollouts that it does not admit, before anything is sampled beside them.

    Raises:
        RecipeError: saying what admits them.
        DataError: when the snapshot's table of rollouts is damaged.
    """
    if recipe.traces.snapshot is None or recipe.group.unknown_policy != "refuse":
        return
    path = place_of(root, recipe.traces.snapshot) / f"{ROLLOUTS.name}.parquet"
    unknown = read_frame(path, ROLLOUTS, columns=["policy"])["policy"].null_count()
    if unknown:
        raise RecipeError(
            f"traces.snapshot: nobody knows what sampled {unknown} of its rollouts, so that they can be no mmGRPO. Set "
            "group.unknown_policy = 'exclude' to leave them out, or 'admit', with train.unknown_behaviour = "
            "'likelihood', to train on them as advantage-weighted likelihood"
        )


def _where(root: Path, named: str) -> str:
    return named if is_address(named) else str(root / named)


def parent_of(folder: Path, recipe: Mapping[str, Any], params: Mapping[str, Any]) -> Artifact:
    """The snapshot that new traces come onto.

    Args:
        folder: of it.
        recipe: the part of the recipe that decides how traces become rows.
        params: what else does.

    Raises:
        RecipeError: when its rows were made in another way: those of one snapshot are made alike.
    """
    from pipeline.jobs import changes

    parent = open_snapshot(folder)
    payload = parent.manifest.payload
    before, now = ({name: v for name, v in each.items() if name not in _OWN} for each in (payload["params"], params))
    old = {"stage_version": payload["stage_version"], "recipe": payload["recipe"], "params": before}
    if differ := changes(old, {"stage_version": snapshot.VERSION, "recipe": recipe, "params": now}):
        raise RecipeError(
            f"--onto {folder}: it was made with other settings of [ingest], other inputs or another base than this "
            f"recipe has: {'; '.join(differ)}. Take the recipe that it was made with, or ingest all traces anew "
            "without --onto"
        )
    return parent


_OWN = ("traces", "parent", "forgotten", "labels")
"""What each snapshot has of its own among the params. Labels may be others: all its rows are scored anew by them."""
