"""Rejection fine-tuning: which members, and that it is the negative log-likelihood written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from schemas.groups import GROUPS
from schemas.parquet import read_rows, write_table
from schemas.recipe import Recipe
from stages import train
from stages.contract import Inputs
from stages.training.rejection import as_rejection, params_of
from tests.oracle_loss import Example, log_probs
from tests.test_stages import train_kit
from tests.test_stages.loss_kit import (
    FIXED,
    Setting,
    assert_gradient,
    call_zoo,
    exact,
    gradients,
    make_setting,
    trajectory_zoo,
)
from tests.test_stages.train_kit import Call, Killed, KillsOnce, LocalOut, execution, with_logprobs, write_artifacts

REWARDS = (1.0, 0.5, 1.0, 0.0)
"""Of the members of each group, in order: the first and the third are the best."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Data of the base, and an adapter to continue from."""
    return make_setting(tmp_path_factory.mktemp("start"), call_zoo())


def rewarded(start: Setting, folder: Path, calls: list[Call]) -> Setting:
    """Data with rewards in the group table, and the start's adapter to go on from."""
    inputs, base = write_artifacts(folder, calls, start.cache)
    file = inputs["group"].file("groups.parquet")
    rows, seen = read_rows(file, GROUPS), {}
    for row in rows:
        units = seen.setdefault(row["group_id"], [])
        units += [] if row["rollout_id"] in units else [row["rollout_id"]]
        row["reward"] = REWARDS[units.index(row["rollout_id"]) % 4]
    write_table(rows, file, GROUPS)
    inputs = Inputs({**inputs.artifacts, "previous": start.inputs["previous"]}, {"iteration": 1}, folder)
    return Setting(inputs, base, start.cache, calls)


def recipe(rejection: dict[str, Any], **fields: Any) -> Recipe:
    document = train_kit.recipe(**FIXED | fields).model_dump()
    return Recipe.model_validate(document | {"rejection": {"iterations": 9, **rejection}})


def reject(data: Setting, folder: Path, rejection: dict[str, Any], tokens: int = 45, **fields: Any) -> Any:
    """Metrics and `Out` of one run of the stage."""
    how = recipe(rejection, **fields)
    given = with_logprobs(data.inputs, as_rejection(how), data.cache, folder / "scored", tokens)
    params = {"iteration": 1, **params_of(how, 1)}
    out = LocalOut(folder)
    metrics = train.run(Inputs(given.artifacts, params, given.root), how, execution(data.cache, tokens), out)
    return metrics, out


def best(data: Setting, per_group: int) -> list[Call]:
    """The members to be trained on, by hand: copies are no samples of their own."""
    chosen: list[Call] = []
    for group in dict.fromkeys(call.group for call in data.calls):
        names = list(dict.fromkeys(call.rollout or str(id(call)) for call in data.calls if call.group == group))
        order = sorted(range(len(names)), key=lambda index: -REWARDS[index % 4])
        wanted = {names[index] for index in order[:per_group] if REWARDS[index % 4] > 0}
        chosen += [call for call in data.calls if call.group == group and (call.rollout or str(id(call))) in wanted]
    return chosen


def nll(model: Any, calls: list[Call], *, balance: str = "sequence") -> torch.Tensor:
    """The negative log-likelihood: mean over completions of their mean, over tokens, or over modules."""
    losses = [-log_probs(model, Example(c.prompt, c.completion, c.sampling, 1.0, c.temperature or 1.0)) for c in calls]
    if balance == "token":
        return torch.cat(losses).mean()
    if balance == "trajectory":
        units = dict.fromkeys(call.rollout for call in calls)
        own = [torch.cat([loss for loss, call in zip(losses, calls, strict=True) if call.rollout == u]) for u in units]
        return torch.stack([loss.mean() for loss in own]).mean()
    means = torch.stack([loss.mean() for loss in losses])
    if balance == "module":
        modules = dict.fromkeys(call.module for call in calls)
        of = torch.tensor([list(modules).index(call.module) for call in calls])
        return torch.stack([means[of == index].mean() for index in range(len(modules))]).mean()
    return means.mean()


@pytest.mark.parametrize(("balance", "per_group"), [("sequence", 1), ("sequence", 2), ("token", 2), ("module", 3)])
@pytest.mark.parametrize("sharing", [True, False])
def test_a_step_is_the_negative_log_likelihood_of_the_best_members(
    start: Setting, tmp_path: Path, balance: str, per_group: int, sharing: bool
) -> None:
    data = rewarded(start, tmp_path / "data", call_zoo())
    metrics, out = reject(data, tmp_path / "o", {"best": per_group}, balance=balance, prefix_sharing=sharing)
    chosen = best(data, per_group)
    model = exact(data.base, data.previous)
    expected = nll(model, chosen, balance=balance)
    expected.backward()
    assert pl.read_parquet(out.committed()["steps.parquet"])["loss"][0] == pytest.approx(expected.item(), abs=2e-5)
    assert_gradient(gradients(out), model)
    assert metrics["objective"] == "rejection fine-tuning"
    assert metrics["members"] == len(chosen)
    assert metrics["sources"] == {"student": {"members": len(chosen), "share": 1.0, "pull_share": 1.0}}
    copies = sum(call.copies - 1 for call in data.calls)
    assert sum(out.excluded.values()) == len(data.calls) + copies - len(chosen)
    assert out.excluded["copy"] == copies


def test_a_second_step_is_plain_likelihood_too_and_the_kl_comes_with_its_weight(start: Setting, tmp_path: Path) -> None:
    data = rewarded(start, tmp_path / "data", call_zoo())
    for name, rejection in {"plain": {}, "kl": {"beta": 0.3}}.items():
        fields = {"beta": 5.0, "learning_rate": 0.02}
        _, one = reject(data, tmp_path / name / "one", rejection, **fields)
        _, two = reject(data, tmp_path / name / "two", rejection, epochs=2, **fields)
        model = exact(data.base, one.committed()["adapter/adapter_config.json"].parent)
        expected = nll(model, best(data, 1))
        if name == "kl":
            reference = exact(data.base, None)
            rows = [Example(c.prompt, c.completion, c.sampling, 1.0, c.temperature or 1.0) for c in best(data, 1)]
            with torch.no_grad():
                far = [log_probs(reference, row) for row in rows]
            gaps = [there - log_probs(model, row) for there, row in zip(far, rows, strict=True)]
            expected = expected + 0.3 * torch.stack([(gap.exp() - gap - 1).mean() for gap in gaps]).mean()
        expected.backward()
        assert pl.read_parquet(two.committed()["steps.parquet"])["loss"][1] == pytest.approx(expected.item(), abs=3e-5)
        assert_gradient(gradients(two), model)


def test_a_trajectory_is_chosen_and_weighs_as_a_whole(start: Setting, tmp_path: Path) -> None:
    data = rewarded(start, tmp_path / "data", trajectory_zoo())
    _, out = reject(data, tmp_path / "o", {}, group={"unit": "trajectory"})
    model = exact(data.base, data.previous)
    expected = nll(model, best(data, 1), balance="trajectory")
    expected.backward()
    assert pl.read_parquet(out.committed()["steps.parquet"])["loss"][0] == pytest.approx(expected.item(), abs=2e-5)
    assert_gradient(gradients(out), model)


def test_members_below_the_threshold_are_left_out_and_counted(start: Setting, tmp_path: Path) -> None:
    data = rewarded(start, tmp_path / "data", call_zoo())
    metrics, out = reject(data, tmp_path / "some", {"best": 4, "threshold": 0.5})
    assert (metrics["members"], out.excluded["rejection_below_threshold"]) == (9, 2)
    metrics, out = reject(data, tmp_path / "none", {"threshold": 1.5})
    assert metrics["trained"] is False
    assert metrics["reason"].startswith("no member of a group earned 1.5 or more")
    assert out.excluded["rejection_below_threshold"] == 11


def test_killed_at_any_step_it_ends_with_the_same_bytes(start: Setting, tmp_path: Path) -> None:
    data = rewarded(start, tmp_path / "data", call_zoo())
    how = recipe({"best": 2}, epochs=3, examples_per_step=1)
    _, whole = reject(data, tmp_path / "whole", {"best": 2}, epochs=3, examples_per_step=1)
    given = with_logprobs(data.inputs, as_rejection(how), data.cache, tmp_path / "scored", 45)
    inputs = Inputs(given.artifacts, {"iteration": 1, **params_of(how, 1)}, given.root)
    out = LocalOut(tmp_path / "killed", KillsOnce())
    for _ in range(40):
        try:
            train.run(inputs, how, execution(data.cache, 45), out)
            break
        except Killed:
            continue
    one, other = whole.committed(), out.committed()
    assert one.keys() == other.keys()
    assert all(one[name].read_bytes() == other[name].read_bytes() for name in one)
