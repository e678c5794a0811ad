"""vLLM in this process does what every engine must, and what is its own. Run by `make test-vllm`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError, RecipeError, StageError
from schemas.execution import Execution
from stages.engines.interface import Engine, Request, Sampling
from stages.engines.models import resolve_base
from stages.engines.vllm_engine import VllmEngine
from stages.engines.vllm_keeper import DEATHS
from stages.engines.vllm_process import VllmProcess
from tests.test_stages.conformance import TWENTY, EngineConformance, Subject, wide_tiny
from tests.test_stages.engines_kit import make_adapter, requests_for, tiny

pytestmark = pytest.mark.vllm
SMALL = Execution(engine="vllm", batch_tokens=16_384)


def kill(engine: VllmEngine) -> None:
    for process in running(engine).processes:
        os.kill(process, signal.SIGKILL)


def running(engine: Engine) -> VllmProcess:
    assert isinstance(engine, VllmEngine)
    assert engine._keeper.process is not None
    return engine._keeper.process


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("conformance")
    base, other = (wide_tiny(tiny(folder, seed), folder / f"wide{seed}") for seed in (0, 1))
    engine = VllmEngine(base, "float32", 512, "cpu", SMALL)
    adapters = (make_adapter(base, folder / "a", 1), make_adapter(base, folder / "b", 2))
    engine.generate([Request((5, 6), TWENTY, 1, adapter) for adapter in adapters])  # it starts with room for both
    yield Subject(
        engine=engine,
        base=base,
        context=512,
        adapters=adapters,
        foreign=make_adapter(other, folder / "foreign", 3),
        mean=1e-5,
        worst=2e-4,
        die=lambda: kill(engine),
    )
    engine.close()


class TestVllmEngine(EngineConformance):
    def test_an_adapter_that_vllm_lacks_the_means_for_is_refused_and_the_engine_works_on(
        self, subject: Subject, tmp_path: Path
    ):
        prompt = subject.prompts(1)[0]
        weighted = make_adapter(subject.base, tmp_path / "dora", 4, use_dora=True)
        with pytest.raises(DataError, match="vLLM cannot serve the adapter"):
            subject.engine.generate([Request(prompt, TWENTY, 1, weighted)])
        high = make_adapter(subject.base, tmp_path / "high", 4, r=4, rank_pattern={"q_proj": 600})
        with pytest.raises(DataError, match="has rank 600; vLLM serves ranks up to 512"):
            subject.engine.generate([Request(prompt, TWENTY, 1, high)])
        assert subject.engine.generate([Request(prompt, TWENTY, 1, subject.adapters[0])])[0].completion_ids

    def test_more_adapters_than_there_is_room_for_take_turns_and_the_base_keeps_its_own(
        self, subject: Subject, tmp_path: Path
    ):
        prompts = subject.prompts(3)
        process = running(subject.engine)
        for seed in range(6, 10):
            adapter = make_adapter(subject.base, tmp_path / str(seed), seed)
            requests = requests_for(prompts, 1, TWENTY, adapter) + requests_for(prompts, 1, TWENTY)
            subject.assert_near(requests, subject.engine.generate(requests))
        assert running(subject.engine) is process

    def test_adapters_of_a_higher_rank_wait_for_an_engine_that_has_room_for_them(
        self, subject: Subject, tmp_path: Path
    ):
        engine = subject.engine
        assert isinstance(engine, VllmEngine)
        high = make_adapter(subject.base, tmp_path / "high", 5, r=12)
        prompts = subject.prompts(4)
        requests = requests_for(prompts, 2, TWENTY, subject.adapters[0]) + requests_for(prompts, 2, TWENTY, high)
        outcomes: dict[int, Any] = {}
        for ticket, request in enumerate(requests[:8]):
            engine.add(ticket, request)
        outcomes |= dict(engine.poll(0.0))
        for ticket, request in enumerate(requests[8:], start=8):
            engine.add(ticket, request)
        while len(outcomes) < 16:
            outcomes |= dict(engine.poll(0.02))
        assert set(list(outcomes)[:8]) == set(range(8))
        subject.assert_near(requests, [outcomes[ticket] for ticket in range(16)])
        assert running(engine).rank == 16

    def test_a_temperature_that_vllm_would_raise_fails_alone(self, subject: Subject):
        engine = subject.engine
        assert isinstance(engine, VllmEngine)
        prompt = subject.prompts(1)[0]
        engine.add(1, Request(prompt, Sampling(temperature=0.001), 1))
        engine.add(2, Request(prompt, TWENTY, 1))
        outcomes = {}
        while len(outcomes) < 2:
            outcomes |= dict(engine.poll(0.02))
        assert "temperature 0.001" in str(outcomes[1])
        assert outcomes[2].completion_ids

    def test_an_engine_that_keeps_dying_ends_the_stage(self, subject: Subject):
        engine = subject.engine
        assert isinstance(engine, VllmEngine)
        long = Request(subject.prompts(1)[0], Sampling(max_new_tokens=200), 1)
        for death in range(1, DEATHS + 1):
            engine.add(death, long)
            engine._send_waiting()
            kill(engine)
            if death < DEATHS:
                failed = _poll_until_something(engine)
                assert [ticket for ticket, _ in failed] == [death]
                assert isinstance(failed[0][1], RuntimeError)
        with pytest.raises(StageError, match="died 3 times"):
            _poll_until_something(engine)
        engine.cancel(DEATHS)
        assert engine.generate([long])[0].completion_ids

    def test_closing_ends_the_processes(self, subject: Subject):
        engine = subject.engine
        assert isinstance(engine, VllmEngine)
        engine.generate([Request(subject.prompts(1)[0], TWENTY, 1)])
        own = running(engine).processes
        engine.close()
        assert not [process for process in own if Path(f"/proc/{process}").exists()]


def _poll_until_something(engine: VllmEngine) -> list[tuple[int, object]]:
    for _ in range(1000):
        if out := engine.poll(0.05):
            return list(out)
    raise AssertionError("the engine's death was not seen")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 4}, "vllm.max_num_seq is no setting of this vLLM; did you mean 'max_num_seqs'"),
        ({"logprobs_mode": "raw_logprobs"}, "vllm.logprobs_mode cannot be set here: what is recorded"),
        ({"enable_chunked_prefill": True}, "cannot be set on a CPU: requests with seeds"),
    ],
)
def test_settings_that_are_unknown_or_break_the_contract_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
):
    with pytest.raises(RecipeError, match=message):
        VllmEngine(tiny(tmp_path), "float32", 512, "cpu", Execution(engine="vllm", vllm=options))


def test_a_model_that_vllm_has_no_kernels_for_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match="attention heads of size 16"):
        VllmEngine(tiny(tmp_path), "float32", 512, "cpu", Execution(engine="vllm"))


def test_settings_that_vllm_refuses_are_the_users_fault(tmp_path: Path):
    base = wide_tiny(tiny(tmp_path), tmp_path / "wide")
    engine = VllmEngine(base, "float32", 512, "cpu", Execution(vllm={"max_num_batched_tokens": 16}))
    with pytest.raises(RecipeError, match="vLLM refuses the model or its settings"):
        engine.generate([Request((5, 6), TWENTY, 1)])


@pytest.mark.real_model
@pytest.mark.parametrize(("dtype", "mean", "worst"), [("float32", 1e-4, 1e-3), ("bfloat16", 0.1, 1.0)])
def test_the_real_models_logprobs_are_those_of_a_teacher_forced_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, mean: float, worst: float
):
    base = resolve_base("smollm2-135m-instruct", Path())
    adapter = make_adapter(base, tmp_path / "adapter", 1, scale=0.02)
    engine = VllmEngine(base, dtype, 2048, "cpu", SMALL)
    try:
        real = Subject(engine, base, 2048, (adapter,), adapter, mean, worst, lambda: None)
        prompts = real.prompts(4)
        requests = requests_for(prompts, 2, TWENTY) + requests_for(prompts, 1, TWENTY, adapter)
        told = real.assert_near(requests, engine.generate(requests))
    finally:
        engine.close()
    with capsys.disabled():
        print(f"\n{engine.name} against transformers in float32, real model: {told}")
