"""Reading the file that describes a cluster, and writing the files made for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from pipeline.files import replace_file
from pipeline.recipes import read_toml
from schemas.cluster import Cluster
from schemas.errors import RecipeError


def load_cluster(path: Path) -> Cluster:
    """Read a cluster's file.

    Raises:
        RecipeError: when it is missing, is no TOML, or has fields that are unknown or wrong.
    """
    document = read_toml(path)
    try:
        return Cluster.model_validate(document)
    except ValidationError as error:
        lines = [f"  - {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise RecipeError("\n".join([f"{path}: not a description of a cluster:", *lines])) from None


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files into a new or empty folder; scripts can be executed.

    Raises:
        RecipeError: when something lies there already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} is not empty: name another folder, or remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace_file(folder / name, text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
