"""What each stage's version stands for: a digest of its code, and of the code of ours that it uses.

Comments, docstrings and layout do not count. Ingest, which no run meets by name, is recorded with all of its package:
formats are found by their names there, not imported. `python -m tests.stage_versions` records the state of now; do that
after raising a stage's VERSION, or after a change that cannot change any result.
"""

from __future__ import annotations

import ast
import importlib
import json
from functools import cache
from pathlib import Path

from pipeline import stages_in_order
from schemas.canonical import canonical_json, digest

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".json")
PACKAGES = {"ingest": "stages.ingest.snapshot"}
"""Stages that are a package below `stages`, and the module of theirs that holds the version."""
STAGES = (*stages_in_order.STAGES, *PACKAGES)


def current() -> dict[str, dict[str, object]]:
    """Version and code digest of every stage as the tree is now."""
    return {name: {"version": _version(name), "code": code_digest(*modules_of(name))} for name in STAGES}


def recorded() -> dict[str, dict[str, object]]:
    """Version and code digest of every stage as last recorded."""
    record: dict[str, dict[str, object]] = json.loads(RECORD.read_text())
    return record


def modules_of(stage: str) -> list[str]:
    """The modules that a stage consists of, those aside that they import."""
    if stage not in PACKAGES:
        return [f"stages.{stage}"]
    package = f"stages.{stage}"
    return [f"{package}.{path.stem}" for path in sorted((ROOT / "stages" / stage).glob("*.py"))]


def code_digest(*modules: str) -> str:
    """Digest of the code of modules and of every module below `stages` that they import, at any depth."""
    seen: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in seen or path is None:
            continue
        seen[name], imports = _read(path)
        waiting += imports
    return digest(seen)


@cache
def _read(path: Path) -> tuple[str, list[str]]:
    """Digest of a file's code, and what it imports below `stages`."""
    tree = ast.parse(path.read_text())
    return digest(ast.dump(_without_docstrings(tree))), _imports(tree)


def _version(stage: str) -> int:
    version: int = importlib.import_module(PACKAGES.get(stage, f"stages.{stage}")).VERSION
    return version


def _path(module: str) -> Path | None:
    path = ROOT / Path(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def _imports(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if name.split(".")[0] == "stages"]


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


if __name__ == "__main__":
    RECORD.write_text(json.dumps(json.loads(canonical_json(current())), indent=1) + "\n")
