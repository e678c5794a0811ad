"""Which code a program is made of: the files its modules import, outside the standard library and site-packages.

The walk reads sources rather than `sys.modules`, so that it gives the same answer in every process, whatever was
imported before. It follows every `import` statement, also those inside functions. What a program imports by a name
that it computes is not seen: list such files in `program.code`.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from schemas.canonical import digest_file
from schemas.errors import RecipeError

OWN = ("pipeline", "schemas", "stages")
TASKS = "pipeline.tasks"
"""Our packages are no part of a program's code (the stage versions stand for them), the shipped programs are."""


def code_digests(modules: Iterable[str]) -> dict[str, str]:
    """sha256 of every source file reachable from `modules` by imports, by module name.

    Raises:
        RecipeError: naming a file among them that cannot be parsed.
    """
    found: dict[str, str] = {}
    queue = [name for module in modules for name in _with_parents(module)]
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = _spec(name)
        path = _program_file(name, spec)
        if path is None or spec is None:
            continue
        found[name] = digest_file(path)
        if path.suffix == ".py":
            queue.extend(_imports(path, name, is_package=spec.submodule_search_locations is not None))
    return dict(sorted(found.items()))


def script_digests(path: Path) -> dict[str, str]:
    """As `code_digests`, of a file that is run as a script rather than imported."""
    return {"__main__": digest_file(path), **code_digests(_imports(path, "__main__", is_package=False))}


def file_digests(root: Path, entries: Iterable[str]) -> dict[str, str]:
    """sha256 of the files named in `program.code`, folders taken whole, by path relative to the recipe.

    Raises:
        RecipeError: when an entry is not there or leaves the recipe's folder.
    """
    found: dict[str, str] = {}
    for entry in entries:
        path = (root / entry).resolve()
        if not path.is_relative_to(root.resolve()):
            raise RecipeError(f"program.code: '{entry}' leaves the recipe's folder {root}; copy it there")
        if not path.exists():
            raise RecipeError(f"program.code: no file or folder '{entry}' in {root}")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                found[file.relative_to(root.resolve()).as_posix()] = digest_file(file)
    return dict(sorted(found.items()))


@cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_installed(path: Path) -> bool:
    """Whether a file belongs to the standard library or to an installed package."""
    resolved = path.resolve()
    if {"site-packages", "dist-packages"} & set(resolved.parts):
        return True
    return any(resolved.is_relative_to(folder) for folder in _installed())


def _program_file(name: str, spec: ModuleSpec | None) -> Path | None:
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin)
    if name.partition(".")[0] in OWN:
        return path if name.startswith(f"{TASKS}.") else None
    return None if is_installed(path) else path


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module, without importing anything: parents are located, not run."""
    top, *rest = name.split(".")
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) or _find_top(top)
    for index, _ in enumerate(rest):
        if spec is None or spec.submodule_search_locations is None:
            return None
        if name.partition(".")[0] not in OWN and spec.origin and is_installed(Path(spec.origin)):
            return None
        spec = PathFinder.find_spec(".".join([top, *rest[: index + 1]]), list(spec.submodule_search_locations))
    return spec


def _find_top(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: index + 1]) for index in range(len(parts))]


def _imports(path: Path, module: str, *, is_package: bool) -> list[str]:
    package = module if is_package else module.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    return [full for name in names for full in _with_parents(name)]


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RecipeError(f"{path}{line}: the program imports this file, but it is not Python: {error}") from None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")
    kept = above[: len(above) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)
