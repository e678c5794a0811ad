"""Parts of the trainer on their own: batch plan, prefix tree, packed forward, head, schedule, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from schemas.recipe_training import TrainSection
from stages.training import checkpoint, scorer
from stages.training.cutting import split
from stages.training.head import target_log_probs
from stages.training.members import Row
from stages.training.optimizer import rate_factor
from stages.training.plan import make_plan, plan_rows
from stages.training.prefix_tree import build, common_prefix, cut
from stages.training.ratio import effective_share
from stages.training.scorer import Scorer, why_plain
from tests.test_stages.model_kit import KINDS, SIZES, assert_packed_equals_plain, lora_model, tree_rows

ids = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(lambda values: np.array(values, np.int64))
sequences = st.lists(ids, min_size=1, max_size=12)


@given(
    groups=st.dictionaries(st.text("abcdef", min_size=1), st.sampled_from(["x", "y", "z", "w", "v"]), min_size=1),
    seed=st.integers(0, 99),
    size=st.integers(1, 4),
    shuffle=st.randoms(),
)
def test_the_plan_holds_every_group_once_an_epoch_and_whole_examples(
    groups: dict[str, str], seed: int, size: int, shuffle: Any
) -> None:
    plan = make_plan(groups, seed=seed, epochs=2, examples_per_step=size)
    items = list(groups.items())
    shuffle.shuffle(items)
    assert make_plan(dict(items), seed=seed, epochs=2, examples_per_step=size) == plan
    rows = plan_rows(plan)
    for epoch in (0, 1):
        seen = [row["group_id"] for row in rows if row["epoch"] == epoch]
        assert sorted(seen) == sorted(groups)
    holders: dict[tuple[int, str], set[int]] = {}
    for row in rows:
        holders.setdefault((row["epoch"], row["example_id"]), set()).add(row["step"])
    assert all(len(steps) == 1 for steps in holders.values())
    sizes = [len({example for example, _ in step.groups}) for step in plan]
    assert all(sizes[i] == size for i in range(len(plan)) if i + 1 < len(plan) and plan[i].epoch == plan[i + 1].epoch)


def test_the_plan_differs_by_seed_and_epoch() -> None:
    groups = {f"g{index}": f"e{index}" for index in range(30)}
    first = make_plan(groups, seed=1, epochs=2, examples_per_step=30)
    assert first[0].groups != first[1].groups
    assert first[0].groups != make_plan(groups, seed=2, epochs=1, examples_per_step=30)[0].groups


@given(sequences)
def test_a_tree_holds_every_distinct_prefix_once(rows: list[np.ndarray[Any, Any]]) -> None:
    tree = build(rows)
    prefixes = {tuple(row[: end + 1]) for row in rows for end in range(len(row))}
    assert len(tree.tokens) == len(prefixes)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.tokens[path].tolist() == row.tolist()
        assert tree.depth[path].tolist() == list(range(len(row)))
    for node in range(len(tree.tokens)):
        below = {int(q) for path in tree.paths for q in path if node in path[: path.tolist().index(q) + 1]}
        assert below == set(range(node, int(tree.ends[node]))), "descendants follow a node without a gap"


@given(sequences, st.integers(1, 7))
def test_blocks_show_every_node_its_ancestors_and_nothing_else(rows: list[np.ndarray[Any, Any]], size: int) -> None:
    tree = build(rows)
    blocks = cut(tree, size)
    for path in tree.paths:
        for depth, node in enumerate(path):
            block, line = divmod(int(node), size)
            seen = blocks[block].keys[blocks[block].visible[line]]
            assert sorted(seen) == sorted(path[: depth + 1])
    assert sum(len(block.visible) for block in blocks) == len(tree.tokens)


@given(
    st.lists(st.lists(st.tuples(ids, ids), min_size=1, max_size=3), min_size=1, max_size=9),
    st.integers(1, 30),
    st.booleans(),
)
def test_micro_batches_hold_every_block_once_and_keep_the_budget(
    calls: list[list[tuple[Any, Any]]], budget: int, packed: bool
) -> None:
    blocks = [[Row(str(i), 0, *pair, None, 1.0) for pair in pairs] for i, pairs in enumerate(calls)]
    parts = list(split(blocks, budget, packed=packed))
    assert sorted(index for part in parts for index in part) == list(range(len(blocks)))
    for part in parts:
        fed = [row.fed for index in part for row in blocks[index]]
        cost = len(build(fed).tokens) if packed else len(fed) * max(map(len, fed))
        assert cost <= budget or len(part) == 1


def test_common_prefix_counts_equal_leading_ids() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2])) == 2


@pytest.mark.parametrize("queries", [5, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_the_packed_path_equals_the_plain_one(kind: Any, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "QUERIES", queries)
    model, rows = lora_model(kind(**SIZES)), tree_rows()
    assert why_plain(model.config, 0.0, wanted=True) is None
    assert_packed_equals_plain(model, rows, values=2e-5, gradients=2e-5)


def test_bfloat16_packed_stays_within_that_dtypes_own_noise() -> None:
    model, rows = lora_model(LlamaConfig(**SIZES)), tree_rows()
    with torch.no_grad():
        exact = Scorer(model, packed=False, autocast=False)(rows).log_probs
        noise, packed = (
            float((Scorer(model, packed=packed, autocast=True)(rows).log_probs - exact).abs().max())
            for packed in (False, True)
        )
    assert 0 < packed < 3 * noise


@pytest.mark.parametrize(
    ("config", "dropout", "wanted", "reason"),
    [
        (LlamaConfig(), 0.05, True, "dropout"),
        (LlamaConfig(), 0.0, False, "prefix_sharing is off"),
        (MistralConfig(), 0.0, True, "model type 'mistral'"),
        (Qwen2Config(use_sliding_window=True, max_window_layers=0), 0.0, True, "sliding window"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), 0.0, True, "length"),
    ],
)
def test_the_plain_path_says_why(config: Any, dropout: float, wanted: bool, reason: str) -> None:
    assert reason in (why_plain(config, dropout, wanted) or "")


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(0, 5))
def test_the_head_equals_log_softmax_in_any_number_of_chunks(chunk: int, seed: int) -> None:
    from stages.training import head as module

    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.nn.Linear(4, 11, bias=False, dtype=torch.float64).requires_grad_(False)
    position, target = torch.tensor([0, 0, 3, 5, 5, 2]), torch.tensor([1, 10, 4, 0, 0, 7])
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0, 0.7], dtype=torch.float64)
    before, module._CHUNK_ELEMENTS = module._CHUNK_ELEMENTS, chunk
    try:
        got, entropy = target_log_probs(hidden, head, temperature, position, target, dtype=torch.float64)
    finally:
        module._CHUNK_ELEMENTS = before
    logs = torch.log_softmax(head(hidden) / temperature[:, None], -1)
    want = logs[position, target]
    factors = torch.arange(1.0, 7.0, dtype=torch.float64)
    (left,) = torch.autograd.grad((got * factors).sum(), hidden)
    (right,) = torch.autograd.grad((want * factors).sum(), hidden)
    assert torch.allclose(got, want)
    assert torch.allclose(left, right)
    assert torch.allclose(entropy, -(logs.exp() * logs).sum(-1))


def test_schedules_span_the_run() -> None:
    linear = TrainSection(schedule="linear", total_steps=10, warmup_steps=2)
    factors = [rate_factor(linear, step) for step in range(10)]
    assert factors[:3] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]
    assert factors[-1] == pytest.approx(1 / 8)
    assert rate_factor(TrainSection(schedule="cosine", total_steps=10), 5) == pytest.approx(0.5)
    assert rate_factor(TrainSection(), 10**6) == 1.0


def test_the_effective_share_is_that_of_the_formula() -> None:
    rho = torch.tensor([0.1, 1.0, 3.0, 0.5])
    assert effective_share(rho.log()) == pytest.approx(float(rho.sum() ** 2 / (4 * (rho**2).sum())))
    assert effective_share(torch.full((5,), 800.0)) == pytest.approx(1.0), "no overflow"


def test_of_two_checkpoints_the_later_counts_and_a_torn_one_does_not(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path) is None
    for count in (1, 2):
        adapter = {"w": torch.full((2,), float(count))}
        checkpoint.save(tmp_path, checkpoint.Checkpoint(adapter, {}, [{"step": i} for i in range(count)]))
    (tmp_path / ".checkpoint-partial").mkdir()
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert found.adapter["w"].tolist() == [2.0, 2.0]
    assert len(found.steps) == 2
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1
