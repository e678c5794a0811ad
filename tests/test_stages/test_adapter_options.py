"""PEFT's own options: what the trainer trains with them is what the embedded engine samples from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from schemas.errors import DataError, RecipeError
from stages.contract import Inputs
from stages.engines.adapters import adapter_digest, check_adapter
from stages.engines.interface import Adapter, Sampling
from stages.engines.models import load_model, resolve_base
from stages.engines.transformers_engine import TransformersEngine
from tests.test_stages.engines_kit import chat, full_logprobs, of_tokens, questions, requests_for
from tests.test_stages.train_kit import as_previous, make_calls, run, write_artifacts

PLAIN: dict[str, Any] = {"r": 4, "alpha": 8}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Inputs:
    return write_artifacts(tmp_path_factory.mktemp("data"), make_calls(), cache)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"use_rslora": True},
        # DoRA divides by the norms of the weights' rows, and the tiny model has rows of zeros in o_proj and down_proj.
        {"use_dora": True, "targets": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]},
        {"init_lora_weights": "gaussian"},
        {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 32}},
        {"layers": [1], "targets": ["q_proj", "up_proj"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_was_trained_is_what_is_sampled_from(
    inputs: Inputs, cache: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    import torch
    from peft import PeftModel

    run(inputs, cache, tmp_path / "o", adapter=PLAIN | options, learning_rate=0.05, epochs=2)
    folder = tmp_path / "o" / "files" / "adapter"
    base = resolve_base("tiny-random", tmp_path, cache)
    check_adapter(folder, base)
    engine = TransformersEngine(base, "float32", 512)
    prompts = [engine.encode_chat(chat(question)) for question in questions(3)]
    requests = requests_for(prompts, 2, Sampling(max_new_tokens=12), Adapter(folder, adapter_digest(folder)))
    policy = PeftModel.from_pretrained(load_model(base, "float32"), folder).eval()
    apart = 0.0
    for request, result in zip(requests, engine.generate(requests), strict=True):
        sampled = torch.tensor(result.logprobs)
        expected = of_tokens(full_logprobs(policy, request, result), result)
        torch.testing.assert_close(sampled, expected, atol=1e-4, rtol=0)
        with policy.disable_adapter():
            apart = max(apart, float((of_tokens(full_logprobs(policy, request, result), result) - sampled).abs().max()))
    assert apart > 1e-2, "the adapter changes what is sampled"


def test_patterns_and_layers_shape_the_adapter(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    options = {"rank_pattern": {"down_proj": 2, r"layers\.0\.self_attn\.q_proj": 6}, "layers": [0]}
    _, out = run(inputs, cache, tmp_path / "o", adapter=PLAIN | options)
    tensors = load_file(out.committed()["adapter/adapter_model.safetensors"])
    ranks = {
        name.split(".layers.")[1].rpartition(".lora_A")[0]: len(value)
        for name, value in tensors.items()
        if "A." in name
    }
    assert {name.partition(".")[0] for name in ranks} == {"0"}
    assert ranks["0.mlp.down_proj"] == 2
    assert ranks["0.self_attn.q_proj"] == 6
    assert ranks["0.self_attn.k_proj"] == 4


@pytest.mark.filterwarnings("ignore:The following:RuntimeWarning")  # PEFT's own, of what is refused here
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [0, 99]}, r"adapter\.layers = \[0, 99\]: the model has layers 0 to \d"),
        ({"layers": []}, r"adapter\.layers = \[\]"),
        ({"rank_pattern": {"dwon_proj": 2}}, r"adapter\.rank_pattern: 'dwon_proj' fits no linear layer"),
        ({"alpha_pattern": {"lm_head": 2}}, r"adapter\.alpha_pattern: 'lm_head' fits no linear layer"),
    ],
)
def test_an_option_that_fits_nothing_is_refused(
    inputs: Inputs, cache: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        run(inputs, cache, tmp_path, adapter=PLAIN | options)


def test_another_shape_in_the_next_iteration_is_refused(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    _, out = run(inputs, cache, tmp_path / "1", adapter=PLAIN | {"rank_pattern": {"down_proj": 2}})
    with pytest.raises(DataError, match=r"has rank_pattern = \{'down_proj': 2\}, the recipe asks for \{\}"):
        run(as_previous(out, inputs, tmp_path / "p"), cache, tmp_path / "2", adapter=PLAIN)
