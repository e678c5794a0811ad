from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from tests import stage_versions


@pytest.mark.parametrize("stage", stage_versions.STAGES)
def test_a_stage_whose_code_changed_has_a_new_version_or_a_new_record(stage: str) -> None:
    now, then = stage_versions.current()[stage], stage_versions.recorded()[stage]
    where = stage_versions.PACKAGES.get(stage, f"stages.{stage}")
    assert now == then, (
        f"the code of stage '{stage}' changed. If a result can change, raise VERSION in {where}; "
        "then record it: python -m tests.stage_versions"
    )


def test_comments_and_docstrings_are_no_logic_but_an_operator_is(tmp_path: Path) -> None:
    def dump(text: str) -> str:
        return ast.dump(stage_versions._without_docstrings(ast.parse(text)))

    assert dump('def f(a):\n    """Doc."""\n    return a + 1  # why\n') == dump("def f(a): return a + 1")
    assert dump("def f(a): return a + 1") != dump("def f(a): return a - 1")


def test_a_helper_module_counts_as_the_stage_that_uses_it() -> None:
    path = stage_versions._path("stages.engines.interface")
    assert path is not None
    assert path.name == "interface.py"
    found = stage_versions._imports(ast.parse("from stages.engines import interface\nimport torch"))
    assert found == ["stages.engines", "stages.engines.interface"]


def test_a_format_that_nothing_imports_counts_as_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(stage_versions.ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "stages" / "ingest" / "langfuse.py"
    changed.write_text(changed.read_text() + "\nODD = 1\n")
    before = {name: stage_versions.code_digest(*stage_versions.modules_of(name)) for name in ("ingest", "group")}
    monkeypatch.setattr(stage_versions, "ROOT", tmp_path)
    after = {name: stage_versions.code_digest(*stage_versions.modules_of(name)) for name in before}
    assert [name for name in before if before[name] != after[name]] == ["ingest"]
