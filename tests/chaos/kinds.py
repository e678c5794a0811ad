"""How many kinds of bad input the tests hand in: `python -m tests.chaos.kinds` counts them by folder.

A kind is a test, or a parameter of one, that asserts a refusal: it expects an error of ours, or an exit code that
stands for one. Tests are read, not run, and collected by pytest, so that parameters count one by one.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

ERRORS = {
    "MmgrpoError",
    "RecipeError",
    "DataError",
    "ContractError",
    "StageError",
    "LockedError",
    "ParseError",
    "ValidationError",
}
CODES = {2, 3, 4, 75}
HELPERS = {"fails", "refused", "refuses"}
"""What tests call their own helpers that run something which must be refused."""


def refuses(source: str) -> bool:
    """Whether a test's source asserts a refusal."""
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            named = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}
            if name in HELPERS or (name == "raises" and named & ERRORS):
                return True
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            wanted = node.comparators[0]
            calls = any(isinstance(each, ast.Call) for each in ast.walk(node.left))
            code = "code" in ast.dump(node.left)
            if isinstance(wanted, ast.Constant) and wanted.value in CODES and (calls or code) and _exits(node.left):
                return True
    return False


def _exits(node: ast.expr) -> bool:
    """Whether a compared expression is an exit code: of the command line, or of a process."""
    text = ast.unparse(node)
    return text.startswith(("mmgrpo(", "main(", "run(", "cli.main(")) or text.endswith(("returncode", ".code"))


class Collector:
    """A pytest plugin: keeps the tests that were collected."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep those that assert a refusal."""
        known: dict[Callable[..., Any], bool] = {}
        for item in items:
            function = getattr(item, "function", None)
            if function is None:
                continue
            inner = inspect.unwrap(getattr(getattr(function, "hypothesis", None), "inner_test", function))
            if inner not in known:
                known[inner] = refuses(inspect.getsource(inner))
            if known[inner]:
                self.found.append((item.path.parent.name, item.nodeid))


def kinds() -> dict[str, int]:
    """Tests and parameters that assert a refusal, by folder."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-m", "", "tests"], plugins=[collector])
    return dict(sorted(Counter(folder for folder, _ in set(collector.found)).items()))


if __name__ == "__main__":
    found = kinds()
    print(json.dumps({"kinds": sum(found.values()), **found}))
