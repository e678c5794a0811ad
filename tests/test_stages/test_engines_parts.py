from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import StageError
from stages.engines import attention
from stages.engines.attention import causal_part, merge, part
from stages.engines.batches import buckets, plan
from stages.engines.cascade import Memory
from stages.engines.draw import draw, inverse_cdf
from stages.engines.interface import Request, Sampling
from stages.engines.prefix import PrefixStore, clusters, common_prefix
from stages.engines.rows import make_row, uniform_stream
from stages.engines.scripted import ScriptedEngine
from tests.test_stages.engines_kit import chat, tiny


def test_drawn_tokens_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0] + [-30.0] * 996])
    count = 20_000
    tokens, _ = draw(logits.expand(count, -1), [Sampling()] * count, list(uniform_stream(7, count)))
    seen = Counter(tokens)
    for token, expected in enumerate(logits[0].softmax(-1)[:4].tolist()):
        assert abs(seen[token] / count - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, 1 - 2.0**-53])
def test_a_token_of_probability_zero_is_never_drawn(number: float) -> None:
    weights = torch.zeros(3, 1000)
    weights[0, 999], weights[1, [300, 700]], weights[2, 0] = 1.0, 0.5, 1e-30
    tokens = inverse_cdf(weights, torch.full((3, 1), number, dtype=torch.float64)).squeeze(-1).tolist()
    assert tokens == [999, 300 if number < 0.5 else 700, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1, exclude_max=True), st.integers(1, 2000))
def test_the_inverse_cdf_is_that_of_a_plain_running_sum(seed: int, number: float, size: int) -> None:
    weights = torch.rand(1, size, generator=torch.Generator().manual_seed(seed)) ** 4
    token = int(inverse_cdf(weights, torch.tensor([[number]], dtype=torch.float64)))
    running = weights[0].double().cumsum(-1)
    target = number * float(running[-1])
    slack = 1e-6 * float(running[-1])  # the sums of blocks are single precision
    assert (float(running[token - 1]) if token else 0.0) <= target + slack
    assert float(running[token]) >= target - slack


def test_a_large_nucleus_is_found_beyond_the_tokens_looked_at_first() -> None:
    logits = torch.zeros(2, 5000)
    logits[:, 0], logits[1, 1] = 1e-3, 20.0
    numbers = [1 - 1e-9, 1 - 1e-9]
    tokens, logprobs = draw(logits, [Sampling(top_p=0.9)] * 2, numbers)
    assert tokens[0] > 4000  # ties with the last token of the nucleus are kept
    assert logprobs[0] == pytest.approx(-8.517, abs=1e-2)
    assert (tokens[1], logprobs[1]) == (1, 0.0)


def test_each_row_is_drawn_by_its_own_rules() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    kinds = [Sampling(0), Sampling(1.0), Sampling(0.5, top_k=3)] * 2
    numbers = [0.1, 0.9, 0.4, 0.3, 0.2, 0.8]
    together = draw(logits, kinds, numbers)
    alone = [draw(logits[[row]], [kinds[row]], [numbers[row]]) for row in range(6)]
    assert together[0] == [tokens[0] for tokens, _ in alone]
    assert together[1] == pytest.approx([logprobs[0] for _, logprobs in alone])
    assert together[0][0] == int(logits[0].argmax())
    assert together[1][0] == pytest.approx(float(logits[0].log_softmax(-1).max()))


def test_uniform_numbers_are_fixed_for_good() -> None:
    assert uniform_stream(0, 3).tolist() == [0.011546754286331562, 0.24154919656271812, 0.11142585551493822]
    assert uniform_stream(5, 100)[:10].tolist() == uniform_stream(5, 10).tolist()
    assert 0.45 < uniform_stream(9, 10_000).mean() < 0.55


@pytest.mark.parametrize("keys", [5, 200])
def test_attention_in_parts_is_attention_over_everything(keys: int) -> None:
    torch.manual_seed(0)
    queries, memory = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 4, keys, 8)
    cut = keys // 3
    found = merge([part(queries, *memory[..., cut:, :], 0.3), part(queries, *memory[..., :cut, :], 0.3)])
    expected = torch.nn.functional.scaled_dot_product_attention(queries, *memory, scale=0.3)
    torch.testing.assert_close(found, expected)


def test_the_kernel_and_the_plain_products_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    queries, keys, values = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 90, 8), torch.randn(2, 4, 90, 8)
    mask = torch.zeros(2, 1, 1, 90).masked_fill(torch.rand(2, 1, 1, 90) > 0.7, -torch.inf)
    by_kernel = part(queries, keys, values, 0.3, mask)
    monkeypatch.setattr(attention, "_KERNEL_KEYS", 1000)
    torch.testing.assert_close(by_kernel, part(queries, keys, values, 0.3, mask))


def test_causal_attention_shares_keys_between_heads() -> None:
    torch.manual_seed(0)
    queries, keys, values = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(causal_part(queries, keys, values, 0.3)[0], expected)


def test_prompts_of_two_modules_make_two_clusters_under_a_common_beginning() -> None:
    start = tuple(range(20))
    first = [(*start, *[30] * 300, place) for place in range(5)]
    second = [(*start, *[40] * 300, place, place) for place in range(5)]
    found = clusters(first + second)
    assert [(cluster.shared, len(cluster.prompts)) for cluster in found] == [(320, 5), (320, 5)]


def test_a_prefix_of_a_prompt_that_is_a_prompt_leaves_it_a_token() -> None:
    prompts = [tuple(range(50)), tuple(range(60))]
    (cluster,) = clusters(prompts)
    assert cluster.shared == 49


ids = st.lists(st.integers(0, 2), min_size=1, max_size=60).map(tuple)


@given(st.lists(ids, min_size=1, max_size=20))
def test_clusters_hold_every_prompt_once_and_share_what_they_say(prompts: list[tuple[int, ...]]) -> None:
    found = clusters(prompts)
    assert sorted(prompt for cluster in found for prompt in cluster.prompts) == sorted(set(prompts))
    for cluster in found:
        assert len({prompt[: cluster.shared] for prompt in cluster.prompts}) == 1
        assert all(len(prompt) > cluster.shared for prompt in cluster.prompts)


@given(ids, ids)
def test_the_common_prefix_is_the_longest(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    length = common_prefix(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]


def test_batches_hold_every_row_once_within_the_budget() -> None:
    stream = random.Random(0)
    prompts = [tuple(stream.choices(range(9), k=stream.randint(1, 40))) for _ in range(30)]
    prompts += [(*[7] * 30, place) for place in range(9)]
    wanted = [Request(prompt, Sampling(max_new_tokens=10), 0) for prompt in prompts for _ in range(4)]
    rows = [row for index, request in enumerate(wanted) if (row := make_row(index, request, 1000))]
    served = []
    for work in plan(rows, 400):
        tokens = 0
        for cluster, part_rows in work.parts:
            tokens += cluster.shared
            for prompt, owned in part_rows.items():
                assert all(row.prompt == prompt for row in owned)
                tokens += len(prompt) - cluster.shared + 10 * len(owned)
                served += [row.index for row in owned]
        assert tokens <= 400
    assert sorted(served) == list(range(len(rows)))


def test_prefill_batches_hold_prompts_of_like_length() -> None:
    prompts = [(1,) * length for length in (20, 22, 25, 300, 310, 2000, 2100, 2200)]
    found = [[len(prompt) for prompt in bucket] for bucket in buckets(prompts, 0)]
    assert found == [[20, 22, 25], [300, 310], [2000], [2100], [2200]]


def test_known_prefixes_are_found_continued_and_forgotten() -> None:
    def memory(tokens: int) -> Memory:
        return Memory([torch.zeros(1, 1, tokens, 1)], [torch.zeros(1, 1, tokens, 1)])

    store = PrefixStore(100)
    store.put("a", (1,) * 50, memory(50))
    assert store.longest("a", (1,) * 30)[0] == 30
    assert store.longest("a", (1,) * 8)[0] == 0  # too short to matter
    assert store.longest("b", (1,) * 30) == (0, None)
    store.put("a", (1,) * 60, memory(60))
    assert store.longest("a", (1,) * 80)[0] == 60
    store.put("a", (2,) * 60, memory(60))  # over the limit: the first goes
    assert store.longest("a", (1,) * 80)[0] == 0
    found = store.longest("a", (2,) * 40)[1]
    assert found is not None
    assert found.keys[0].shape[2] == 40


def test_scripted_answers_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    engine = ScriptedEngine(tiny(tmp_path), {"capital": "paris", "hello": "hi there"})
    prompts = [engine.encode_chat(chat(text)) for text in ("the capital?", "hello", "capital, hello")]
    requests = [Request(prompt, Sampling(max_new_tokens=8), 1) for prompt in prompts]
    results = engine.generate(requests)
    assert [(one.text, one.finish_reason) for one in results] == [
        ("paris", "stop"),
        ("hi there", "length"),
        ("paris", "stop"),
    ]
    assert results[0].completion_ids[-1] == 2
    assert all(len(one.logprobs) == len(one.completion_ids) for one in results)
    with pytest.raises(StageError, match="no answer to this prompt"):
        engine.generate([Request(engine.encode_chat(chat("what?")), Sampling(), 1)])


def test_a_scripted_engine_fails_when_told_and_sees_seeds(tmp_path: Path) -> None:
    engine = ScriptedEngine(tiny(tmp_path), lambda request, prompt: str(request.seed), context=40, fail_at=2)
    results = engine.generate([Request((5,) * 10, Sampling(), 17), Request((5,) * 40, Sampling(), 17)])
    assert [one.text for one in results] == ["17", ""]
    assert results[1].finish_reason == "context_overflow"
    with pytest.raises(StageError, match="fails at call 2"):
        engine.generate([])
