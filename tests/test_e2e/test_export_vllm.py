"""What `mmgrpo export adapter` writes is served by vLLM as PEFT computes it. Run by `make test-vllm`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.execution import Execution
from stages.engines.adapters import adapter_digest
from stages.engines.interface import Adapter
from stages.engines.models import BaseModel
from stages.engines.vllm_engine import VllmEngine
from tests.test_e2e.export_kit import alone, drawn, model_of, with_peft, worst_difference
from tests.test_e2e.kit import TINY, mmgrpo
from tests.test_stages.conformance import wide_tiny
from tests.test_stages.engines_kit import tiny

pytestmark = pytest.mark.vllm
WORST = 2e-4
SMALL = Execution(engine="vllm", batch_tokens=16_384)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    folder = tmp_path_factory.mktemp("base")
    return wide_tiny(tiny(folder), folder / "wide")


@pytest.fixture(scope="module")
def run(base: BaseModel) -> Path:
    """One iteration on a model that vLLM has kernels for."""
    folder = base.path.parent / "run"
    options = ("--iterations", "1", "--set", "run.evaluate_every=0", "--set", f"model.base={base.path}")
    assert mmgrpo("run", TINY, "--run-dir", folder, "--exec", "progress=off", *options) == 0
    return folder


@pytest.fixture
def engines() -> Iterator[list[VllmEngine]]:
    made: list[VllmEngine] = []
    yield made
    for engine in made:
        engine.close()


def test_the_adapter_has_the_same_log_probabilities(base: BaseModel, run: Path, engines: list[VllmEngine]) -> None:
    target = run.parent / "adapter"
    assert mmgrpo("export", "adapter", run, target, "--policy", "newest", "--base", str(base.path)) == 0
    engines.append(VllmEngine(base, "float32", 512, "cpu", SMALL))
    results = drawn(engines[0], Adapter(target, adapter_digest(target)))
    assert worst_difference(with_peft(base.path, target), results) < WORST
    assert worst_difference(alone(base.path), results) > 10 * WORST  # it is served, not passed over


def test_merged_weights_have_the_same_log_probabilities(base: BaseModel, run: Path, engines: list[VllmEngine]) -> None:
    target, adapter = run.parent / "merged", run.parent / "to-compare"
    options = ("--policy", "newest", "--base", str(base.path))
    assert mmgrpo("export", "adapter", run, adapter, *options) == 0
    assert mmgrpo("export", "adapter", run, target, "--merged", *options) == 0
    engines.append(VllmEngine(model_of(target), "float32", 512, "cpu", SMALL))
    assert worst_difference(with_peft(base.path, adapter), drawn(engines[0], None)) < WORST
