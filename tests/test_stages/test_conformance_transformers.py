"""The embedded engine does what every engine must."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stages.engines.models import resolve_base
from stages.engines.transformers_engine import TransformersEngine
from tests.test_stages.conformance import TWENTY, EngineConformance, Subject
from tests.test_stages.engines_kit import make_adapter, requests_for, tiny


def failing_once(engine: TransformersEngine) -> Any:
    """What lets the engine's next batch fail, and each part that it is tried in again, down to single calls."""
    serve, left = engine._sampler.serve, [0]

    def dying(rows: Any, adapter: str) -> Iterable[Any]:
        if left[0] < 0:
            left[0] = 2 * len(rows) - 1  # halves of halves: as many tries as a binary tree has nodes
        if left[0]:
            left[0] -= 1
            raise RuntimeError("the engine dies, as it was told to")
        return serve(rows, adapter)

    def die() -> None:
        left[0] = -1

    engine._sampler.serve = dying  # type: ignore[method-assign]
    return die


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("conformance")
    base, other = tiny(folder), tiny(folder, seed=1)
    engine = TransformersEngine(base, "float32", 512)
    return Subject(
        engine=engine,
        base=base,
        context=512,
        adapters=(make_adapter(base, folder / "a", 1), make_adapter(base, folder / "b", 2)),
        foreign=make_adapter(other, folder / "foreign", 3),
        mean=1e-5,
        worst=1e-4,
        die=failing_once(engine),
    )


class TestTransformersEngine(EngineConformance):
    pass


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("dtype", "mean", "worst"),
    [("float32", 1e-4, 1e-3), pytest.param("bfloat16", 0.1, 1.0, marks=pytest.mark.slow)],
)
def test_the_real_models_logprobs_are_those_of_a_teacher_forced_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, mean: float, worst: float
):
    base = resolve_base("smollm2-135m-instruct", Path())
    adapter = make_adapter(base, tmp_path / "adapter", 1, scale=0.02)
    engine = TransformersEngine(base, dtype, 2048)
    real = Subject(engine, base, 2048, (adapter,), adapter, mean, worst, lambda: None)
    prompts = real.prompts(2)
    requests = requests_for(prompts, 2, TWENTY) + requests_for(prompts, 1, TWENTY, adapter)
    told = real.assert_near(requests, engine.generate(requests))
    with capsys.disabled():
        print(f"\n{engine.name} against transformers in float32, real model: {told}")
