"""What a reproduction takes over from a run: artifacts, as hard links or copies whose bytes have been compared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from pipeline.manifests import MANIFEST, check_files
from pipeline.store import Store
from schemas.errors import DataError
from stages.contract import Artifact


def take_over(artifacts: Iterable[Artifact], folder: Path) -> list[Artifact]:
    """Put artifacts below `folder`, where they are not there already. A process killed meanwhile leaves none half done.

    Raises:
        DataError: naming a file whose bytes are not those of its manifest.
    """
    store = Store(folder)
    taken = []
    for artifact in artifacts:
        target = store.folder(artifact.manifest.stage, artifact.manifest.key)
        if not target.exists():
            _take(artifact, target)
        if problems := check_files(target, artifact.manifest):
            lines = "\n".join(f"  - {problem}" for problem in problems)
            raise DataError(f"{artifact.path} is damaged, nothing can be made from it:\n{lines}")
        taken.append(Artifact(target, artifact.manifest))
    return taken


def _take(artifact: Artifact, target: Path) -> None:
    draft = target.with_name(f".{target.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    for name in (*artifact.manifest.files, MANIFEST):
        place = draft / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not artifact.file(name).is_file():
            raise DataError(f"{artifact.file(name)}: listed in the manifest but missing")
        _link(artifact.file(name).resolve(), place)
    draft.replace(target)


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, place)
