from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import DataError, RecipeError
from stages.engines import lora
from stages.engines.interface import Adapter, Request, Sampling
from stages.engines.models import BaseModel, load_model
from stages.engines.plain import PlainSampler
from stages.engines.transformers_engine import TransformersEngine
from tests.test_stages.engines_kit import (
    chat,
    full_logprobs,
    make_adapter,
    of_tokens,
    questions,
    requests_for,
    small_config,
    tiny,
    tiny_like,
)

TWENTY = Sampling(max_new_tokens=20)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return tiny(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def engine(base: BaseModel) -> TransformersEngine:
    return TransformersEngine(base, "float32", 512)


def prompts_of(engine: TransformersEngine, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    return [engine.encode_chat(chat(question)) for question in questions(count, seed)]


def assert_faithful(engine: TransformersEngine, model: object, requests: list[Request]) -> None:
    for request, result in zip(requests, engine.generate(requests), strict=True):
        expected = of_tokens(full_logprobs(model, request, result), result)
        torch.testing.assert_close(torch.tensor(result.logprobs), expected, atol=1e-4, rtol=0)


def test_sampled_logprobs_are_those_of_a_plain_forward_pass(engine: TransformersEngine, base: BaseModel) -> None:
    requests = requests_for(prompts_of(engine, 12), 3, TWENTY)
    assert_faithful(engine, load_model(base, "float32"), requests)
    assert engine.usage.prefilled_tokens < engine.usage.prompt_tokens / 4  # it did share


def test_prompts_that_share_nothing_stay_faithful_beside_known_prefixes(
    engine: TransformersEngine, base: BaseModel
) -> None:
    model = load_model(base, "float32")
    assert_faithful(engine, model, requests_for(prompts_of(engine, 4), 2, TWENTY))
    strangers = [prompts_of(engine, 1, seed=9)[0], (5, 6, 7), (50, *range(10, 90)), (8, *range(10, 60))]
    assert_faithful(engine, model, requests_for(strangers, 2, TWENTY))


def test_several_modules_prompts_are_served_in_one_batch(engine: TransformersEngine, base: BaseModel) -> None:
    systems = ["Rewrite the question so that it names nobody at all, please. " * 3, "Answer in one word. " * 8]
    prompts = [engine.encode_chat(chat(question, system)) for system in systems for question in questions(6)]
    assert_faithful(engine, load_model(base, "float32"), requests_for(prompts, 2, TWENTY))
    assert engine.usage.batches == 1
    assert engine.usage.prefilled_tokens < engine.usage.prompt_tokens / 4


def test_prompts_of_very_different_lengths_go_in_step_and_stay_faithful(
    engine: TransformersEngine, base: BaseModel
) -> None:
    system = "Say how many letters there are. "
    texts = ["ab" * length for length in (1, 9, 20, 24, 28, 30, 31)] + ["cd" * 45, "ef" * 50, "gh" * 2]
    prompts = [engine.encode_chat(chat(text, system * 4)) for text in texts]
    requests = requests_for(prompts, 2, Sampling(max_new_tokens=24))
    assert_faithful(engine, load_model(base, "float32"), requests)
    assert engine.usage.batches == 1  # of 2 to 100 tokens of their own


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "lfm2"])
def test_greedy_text_is_that_of_transformers_own_generate(base: BaseModel, tmp_path: Path, kind: str) -> None:
    own = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
        "mistral": {"sliding_window": 40},
        "lfm2": {"layer_types": ["conv", "full_attention"]},
    }
    other = tiny_like(base, tmp_path / kind, small_config(kind, **own.get(kind, {})))
    engine = TransformersEngine(other, "float32", 512)
    assert isinstance(engine._sampler, PlainSampler) == (kind in {"mistral", "gpt2", "lfm2"})
    requests = requests_for(prompts_of(engine, 5), 1, Sampling(temperature=0, max_new_tokens=12))
    model = load_model(other, "float32")
    results = engine.generate(requests)
    lengths = {len(request.prompt_ids) for request in requests}
    assert engine.usage.batches == (len(lengths) if kind == "lfm2" else 1)  # no padding for what keeps a state
    for request, result in zip(requests, results, strict=True):
        prompt = torch.tensor([request.prompt_ids])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
        assert result.completion_ids == tuple(out[0, len(request.prompt_ids) :].tolist())
        expected = of_tokens(full_logprobs(model, request, result), result)
        torch.testing.assert_close(torch.tensor(result.logprobs), expected, atol=1e-4, rtol=0)


def test_a_model_without_a_cache_of_keys_and_values_is_refused(base: BaseModel, tmp_path: Path) -> None:
    other = tiny_like(base, tmp_path / "mamba", small_config("mamba"))
    with pytest.raises(RecipeError, match="models of type 'mamba'"):
        TransformersEngine(other, "float32", 512)


def test_what_else_is_in_the_batch_does_not_change_a_completion(engine: TransformersEngine, base: BaseModel) -> None:
    requests = requests_for(prompts_of(engine, 7), 3, TWENTY)
    together = engine.generate(requests)
    alone = [TransformersEngine(base, "float32", 512).generate([request])[0] for request in requests[::5]]
    small = TransformersEngine(base, "float32", 512, batch_tokens=200)
    cut = small.generate(requests[::-1])[::-1]
    assert small.usage.batches > 3
    assert [one.completion_ids for one in alone] == [one.completion_ids for one in together[::5]]
    assert [one.completion_ids for one in cut] == [one.completion_ids for one in together]
    assert len({one.completion_ids for one in together}) > 15  # different seeds do differ


def test_each_request_is_answered_by_its_own_adapter(
    engine: TransformersEngine, base: BaseModel, tmp_path: Path
) -> None:
    from peft import PeftModel

    adapters = [None, *(make_adapter(base, tmp_path / str(seed), seed) for seed in (1, 2))]
    prompts = prompts_of(engine, 4)
    mixed = [
        Request(prompt, TWENTY, 10 * place + which, adapter)
        for place, prompt in enumerate(prompts)
        for which, adapter in enumerate(adapters)
    ]
    for _ in range(2):  # the second time with known adapters and prefixes
        results = engine.generate(mixed)
        for which, adapter in enumerate(adapters):
            model = load_model(base, "float32")
            policy = PeftModel.from_pretrained(model, adapter.path).eval() if adapter else model
            for request, result in list(zip(mixed, results, strict=True))[which::3]:
                expected = of_tokens(full_logprobs(policy, request, result), result)
                torch.testing.assert_close(torch.tensor(result.logprobs), expected, atol=1e-4, rtol=0)


def test_an_adapter_changes_the_distribution(engine: TransformersEngine, base: BaseModel, tmp_path: Path) -> None:
    adapter = make_adapter(base, tmp_path / "a", 1)
    request = Request(prompts_of(engine, 1)[0], Sampling(max_new_tokens=1), 5)
    plain, adapted = engine.generate([request, Request(request.prompt_ids, request.sampling, 5, adapter)])
    assert plain.completion_ids != adapted.completion_ids or abs(plain.logprobs[0] - adapted.logprobs[0]) > 1e-3


def test_more_adapters_than_are_kept_take_turns(
    engine: TransformersEngine, base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "KEPT", 4)
    adapters = [make_adapter(base, tmp_path / str(seed), seed) for seed in range(6)]
    requests = [Request(prompts_of(engine, 1)[0], TWENTY, 3, adapter) for adapter in adapters]
    first = engine.generate(requests)
    assert engine.generate(requests[::-1])[::-1] == first


@pytest.mark.parametrize("other", [{}, {"use_dora": True}, {"r": 6}], ids=["same shape", "DoRA", "another rank"])
def test_an_adapter_in_the_place_of_another_answers_as_in_a_fresh_engine(
    base: BaseModel, tmp_path: Path, other: dict[str, Any]
) -> None:
    first = [make_adapter(base, tmp_path / str(seed), seed) for seed in (1, 2)]
    later = [make_adapter(base, tmp_path / str(seed), seed, **other) for seed in (3, 4)]
    engines = [TransformersEngine(base, "bfloat16", 256) for _ in range(2)]
    requests = [Request(prompts_of(engines[0], 1)[0], TWENTY, 3, adapter) for adapter in [*first, *later, None]]
    engines[0].generate(requests[:2])
    engines[0].expect({first[1].digest})
    engines[0].generate(requests[2:3])
    engines[0].expect({adapter.digest for adapter in later})
    for _ in range(2):
        assert engines[0].generate(requests[2:]) == engines[1].generate(requests[2:])
    known = engines[0]._adapters
    assert len(known._places) + len(known._free) == (4 if other else 2)
    assert engines[0].generate(requests) == engines[1].generate(requests)


def test_an_adapter_of_another_base_is_refused(engine: TransformersEngine, base: BaseModel, tmp_path: Path) -> None:
    other = tiny(base.path.parent, seed=1)
    foreign = make_adapter(other, tmp_path / "foreign", 1)
    with pytest.raises(DataError, match="was trained on the base"):
        engine.generate([Request((5, 6), TWENTY, 0, Adapter(foreign.path, foreign.digest))])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules"),
        ({"bias": "lora_only"}, "bias = 'lora_only'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
    ],
)
def test_an_adapter_that_the_engine_would_apply_wrongly_is_refused(
    engine: TransformersEngine, base: BaseModel, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    adapter = make_adapter(base, tmp_path / "a", 1)
    file = adapter.path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=f"has {named}.* not supported"):
        engine.generate([Request((5, 6), TWENTY, 0, adapter)])


def test_a_prompt_over_the_context_is_a_named_result(base: BaseModel) -> None:
    engine = TransformersEngine(base, "float32", 60)
    prompt = tuple(range(3, 63))
    over, edge, short = engine.generate([Request(ids, TWENTY, 1) for ids in (prompt, prompt[:59], prompt[:10])])
    assert (over.finish_reason, over.completion_ids, over.logprobs) == ("context_overflow", (), ())
    assert len(edge.completion_ids) == 1
    assert short.completion_ids


def test_the_context_never_passes_what_the_model_was_made_for(base: BaseModel) -> None:
    engine = TransformersEngine(base, "float32", 100_000)
    over, edge = engine.generate([Request((5,) * length, TWENTY, 1) for length in (4096, 4095)])
    assert (over.finish_reason, len(edge.completion_ids)) == ("context_overflow", 1)


def test_a_completion_stops_at_eos_or_at_its_length(engine: TransformersEngine) -> None:
    requests = requests_for(prompts_of(engine, 10), 10, Sampling(max_new_tokens=4))
    results = engine.generate(requests)
    assert {result.finish_reason for result in results} == {"stop", "length"}
    for result in results:
        assert len(result.logprobs) == len(result.completion_ids) <= 4
        assert (result.completion_ids[-1] == 2) == (result.finish_reason == "stop")
        assert 2 not in result.completion_ids[:-1]
        assert "<|" not in result.text


def test_a_completion_may_be_empty_text(engine: TransformersEngine) -> None:
    results = engine.generate(requests_for(prompts_of(engine, 10), 10, Sampling(max_new_tokens=4)))
    empty = [result for result in results if result.completion_ids == (2,)]
    assert empty
    assert {(result.text, result.finish_reason) for result in empty} == {("", "stop")}


@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, None), (None, 5), (0.8, 20)])
def test_logprobs_are_those_of_the_cut_and_renormalised_distribution(
    engine: TransformersEngine, base: BaseModel, top_p: float | None, top_k: int | None
) -> None:
    model = load_model(base, "float32")
    sampling = Sampling(temperature=0.6, top_p=top_p, top_k=top_k, max_new_tokens=10)
    for request in (requests := requests_for(prompts_of(engine, 6), 2, sampling)):
        assert request.adapter is None
    for request, result in zip(requests, engine.generate(requests), strict=True):
        for row, (token, logprob) in enumerate(zip(result.completion_ids, result.logprobs, strict=True)):
            weights = (full_logprobs(model, request, result)[row] / 0.6).double().softmax(-1)
            order = weights.argsort(descending=True)[: top_k or None]
            kept = weights[order] / weights[order].sum()
            kept = kept[: int((kept.cumsum(-1) < (top_p or 1.0)).sum()) + 1]
            place = order[: len(kept)].tolist().index(token)
            assert logprob == pytest.approx(float((kept / kept.sum())[place].log()), abs=1e-4)


def test_two_hundred_requests_of_mixed_kinds_come_back_in_order(engine: TransformersEngine) -> None:
    prompts = prompts_of(engine, 50)
    kinds = [Sampling(max_new_tokens=3), Sampling(temperature=0, max_new_tokens=9), Sampling(0.5, 0.9, 8, 5), TWENTY]
    requests = [Request(prompt, kind, 7) for prompt in prompts for kind in kinds]
    results = engine.generate(requests)
    assert len(results) == 200
    for request, result in zip(requests, results, strict=True):
        assert 0 < len(result.completion_ids) <= request.sampling.max_new_tokens
    assert engine.generate([requests[101]])[0].completion_ids == results[101].completion_ids
    assert engine.usage.completion_tokens == sum(len(r.completion_ids) for r in results) + len(
        results[101].completion_ids
    )


def test_a_known_prefix_is_not_computed_again(engine: TransformersEngine) -> None:
    engine.generate(requests_for(prompts_of(engine, 8), 2, TWENTY))
    first = engine.usage.prefilled_tokens
    new = prompts_of(engine, 8, seed=1)
    engine.generate(requests_for(new, 2, TWENTY))
    shared = len(engine.encode_chat(chat(""))) - len("<\n<assistant\n")  # up to the question
    second = engine.usage.prefilled_tokens - first
    assert second <= sum(map(len, new)) - len(new) * (shared - 32)
    assert second < first


def test_bfloat16_logprobs_stay_near_those_of_float32(base: BaseModel) -> None:
    engine = TransformersEngine(base, "bfloat16", 512)
    assert engine.name.endswith("/bfloat16")
    requests = requests_for(prompts_of(engine, 8), 2, TWENTY)
    model = load_model(base, "float32")
    pairs = list(zip(requests, engine.generate(requests), strict=True))
    apart = torch.cat(
        [of_tokens(full_logprobs(model, *pair), pair[1]) - torch.tensor(pair[1].logprobs) for pair in pairs]
    )
    assert apart.abs().mean() < 0.03
