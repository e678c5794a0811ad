"""mu and its absence: engine mismatch apart from ESS, recomputed mu, likelihood, teachers; figures by age."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError

from schemas.errors import ContractError, RecipeError, StageError
from schemas.training import RATIO_EDGES
from stages.training.norms import ModuleNorms
from stages.training.ratio import effective_share
from tests.oracle_loss import step_loss
from tests.test_stages.loss_kit import (
    FIXED,
    Setting,
    assert_step,
    call_zoo,
    exact,
    make_setting,
    oracle_rows,
    second_step,
)
from tests.test_stages.train_kit import Call, LocalOut, policies, recipe, run, score, write_artifacts

STEP = FIXED | {"beta": 0.0}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Data of the base, one policy older than the adapter that is trained on."""
    return make_setting(tmp_path_factory.mktemp("behaviour"), call_zoo())


def steps(out: LocalOut, table: str = "steps") -> pl.DataFrame:
    return pl.read_parquet(out.committed()[f"{table}.parquet"])


def scored(setting: Setting, policy: str, folder: Path) -> list[torch.Tensor]:
    """Log-probabilities of every member's completion by the trainer."""
    rows = pl.read_parquet(score(setting.inputs, recipe(), policy, setting.cache, folder)[1].file("logprobs.parquet"))
    found = [torch.tensor(values, dtype=torch.float64) for values in rows["logprobs"]]
    return [values for values, call in zip(found, setting.calls, strict=True) for _ in range(call.copies)]


def logged(setting: Setting) -> list[torch.Tensor]:
    return [torch.tensor(call.sampling).double() for call in setting.calls for _ in range(call.copies)]


def share(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return effective_share(torch.stack([(one - other).sum() for one, other in zip(left, right, strict=True)]))


def test_on_policy_data_have_an_effective_sample_size_of_1_and_the_engine_is_measured_apart(
    setting: Setting, tmp_path: Path
) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", setting.calls, setting.cache)
    _, out = run(inputs, setting.cache, tmp_path / "o", **STEP | {"ess_floor": 1.0})
    row = steps(out).row(0, named=True)
    base, engine = scored(setting, policies(setting.inputs)[0], tmp_path / "scores"), logged(setting)
    apart = torch.cat([one - other for one, other in zip(base, engine, strict=True)]).abs()
    assert row["ess"] == pytest.approx(1.0)
    assert row["mismatch_ess"] == pytest.approx(share(base, engine), rel=1e-4)
    assert row["mismatch_ess"] < 0.9
    assert row["mismatch_mean"] == pytest.approx(float(apart.mean()), rel=1e-4)
    assert row["mismatch_max"] == pytest.approx(float(apart.max()), rel=1e-4)


def test_older_data_are_measured_with_the_adapter_that_sampled_them_and_below_the_floor_the_stage_refuses(
    setting: Setting, tmp_path: Path
) -> None:
    _, out = run(setting.inputs, setting.cache, tmp_path / "o", **STEP | {"ess_floor": 0.01})
    row = steps(out).row(0, named=True)
    base, current = (scored(setting, policy, tmp_path / policy[:6]) for policy in policies(setting.inputs))
    assert row["ess"] == pytest.approx(share(current, base), rel=1e-4)
    assert row["ess"] < 1.0
    assert row["mismatch_ess"] == pytest.approx(share(base, logged(setting)), rel=1e-4)
    assert steps(out, "ages")["age"].to_list() == [1]
    with pytest.raises(StageError, match=r"effective sample size is 0\.\d+ of \d+ members, below train\.ess_floor"):
        run(setting.inputs, setting.cache, tmp_path / "refused", **STEP | {"ess_floor": 1.0})


def test_recomputed_mu_is_that_of_the_archived_adapter_whatever_was_logged(setting: Setting, tmp_path: Path) -> None:
    fields = STEP | {"behaviour": "recomputed", "rho_max": 100.0}
    _, out = run(setting.inputs, setting.cache, tmp_path / "o", **fields)
    rows = oracle_rows(setting)
    for row in rows:
        row.sampling = row.reference.tolist()  # the base sampled them
    with torch.no_grad():
        model = exact(setting.base, setting.previous)
        expected = step_loss(model, rows, loss="grpo", beta=0.0, rho="truncate", rho_max=100.0)
    assert steps(out)["loss"][0] == pytest.approx(expected.item(), abs=2e-5)
    told = run(setting.inputs, setting.cache, tmp_path / "logged", **fields | {"behaviour": "logged"})[1]
    assert steps(told)["loss"][0] != pytest.approx(expected.item(), abs=1e-3)
    on_policy, _ = write_artifacts(tmp_path / "data", setting.calls, setting.cache)
    _, first = run(on_policy, setting.cache, tmp_path / "first", **fields)
    assert steps(first, "ages")["rho_histogram"][0].to_list() == only_one(steps(first)["completion_tokens"][0])


def only_one(tokens: int) -> list[int]:
    """A histogram of tokens whose ratio is 1."""
    bins = [0] * (len(RATIO_EDGES) + 1)
    bins[int(np.searchsorted(RATIO_EDGES, 1.0))] = tokens
    return bins


def test_recomputing_what_was_cut_by_top_p_is_refused(setting: Setting, tmp_path: Path) -> None:
    calls = call_zoo()
    calls[3].fields = {"top_p": 0.9}
    inputs, _ = write_artifacts(tmp_path / "data", calls, setting.cache)
    with pytest.raises(
        ContractError, match=r"not narrowed by top_p or top_k: 1 row.*r003(?s:.*)behaviour = \"logged\""
    ):
        run(inputs, setting.cache, tmp_path / "o", behaviour="recomputed", truncated_sampling="renormalised")


def unknown() -> list[Call]:
    """The zoo, of which nobody knows what sampled it."""
    calls = call_zoo()
    for call in calls:
        call.policy = None
        call.fields = {"sampling_logprobs": None, "fidelity": "ids"}
    return calls


def test_members_of_an_unknown_policy_are_refused_unless_the_recipe_names_what_they_become(
    setting: Setting, tmp_path: Path
) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", unknown(), setting.cache)
    for fields in ({}, {"rho": "none"}, {"behaviour": "recomputed"}):
        with pytest.raises(ContractError, match=r"policy is present: 11 rows(?s:.*)unknown_behaviour = \"likelihood\""):
            run(inputs, setting.cache, tmp_path / "o", **fields)
    with pytest.raises(ValidationError, match="needs beta above 0, or likelihood_kl = 'optional'"):
        recipe(unknown_behaviour="likelihood", beta=0.0)
    assert recipe(unknown_behaviour="likelihood", beta=0.0, likelihood_kl="optional").train.beta == 0


@pytest.mark.parametrize("which", ["positive", "all"])
def test_likelihood_without_mu_is_reinforce_with_kl_and_never_clips(
    setting: Setting, tmp_path: Path, which: str
) -> None:
    calls = unknown()
    inputs, _ = write_artifacts(tmp_path / "data", calls, setting.cache)
    aside = Setting(setting.inputs, setting.base, setting.cache, calls)
    aside.inputs = type(inputs)(
        {**inputs.artifacts, "previous": setting.inputs["previous"]}, {"iteration": 1}, tmp_path
    )
    fields = {"unknown_behaviour": "likelihood", "likelihood_advantages": which, "beta": 0.2, "epsilon_high": 0.01}
    row, got, adapter = second_step(aside, tmp_path, 45, fields)
    rows = [example for example in oracle_rows(aside) if which == "all" or example.advantage > 0]
    for example in rows:
        example.old = None  # the ratio is 1 by construction
    assert_step(row["loss"], got, exact(setting.base, adapter), rows, {"beta": 0.2, "rho": "none"})
    assert row["clip_share"] == 0.0
    assert (row["ess"], row["mismatch_ess"]) == (None, None)
    assert row["members"] == len(rows)


def test_the_manifest_calls_it_by_its_name_and_counts_every_member(setting: Setting, tmp_path: Path) -> None:
    calls = unknown()
    inputs, _ = write_artifacts(tmp_path / "all", calls, setting.cache)
    metrics, out = run(inputs, setting.cache, tmp_path / "o1", unknown_behaviour="likelihood")
    copies = sum(call.copies for call in calls)
    good = sum(call.copies for call in calls if call.advantage > 0)
    assert metrics["objective"] == "advantage-weighted likelihood"
    assert metrics["likelihood_sources"] == {"student": good}
    assert out.excluded == {"likelihood_not_positive": copies - good}
    assert steps(out, "ages")["age"].to_list() == [None]
    calls = call_zoo()
    calls[0].policy, calls[0].advantage = None, 1.0
    inputs, _ = write_artifacts(tmp_path / "one", calls, setting.cache)
    metrics, out = run(inputs, setting.cache, tmp_path / "o2", unknown_behaviour="likelihood")
    assert (metrics["objective"], metrics["likelihood_members"]) == ("mmGRPO and advantage-weighted likelihood", 1)
    assert steps(out, "ages")["age"].to_list() == [0, None]
    assert run(inputs, setting.cache, tmp_path / "o3", rho="truncate", unknown_behaviour="likelihood")[0]["trained"]


def test_teachers_without_mu_train_on_good_samples_up_to_their_share_of_a_group(
    setting: Setting, tmp_path: Path
) -> None:
    calls = [call for call in call_zoo() if call.group == "g0"]
    for index, call in enumerate(calls):
        call.copies = 1
        if index < 3:
            call.source, call.policy, call.advantage = "teacher:big", None, (0.5, 2.0, -1.0)[index]
            call.fields = {"sampling_logprobs": None}
    inputs, _ = write_artifacts(tmp_path / "data", calls, setting.cache)
    metrics, out = run(inputs, setting.cache, tmp_path / "half", teacher_share=0.5)
    assert out.excluded == {"likelihood_not_positive": 1, "teacher_share": 1}
    assert metrics["likelihood_sources"] == {"teacher:big": 1}
    metrics, out = run(inputs, setting.cache, tmp_path / "none", teacher_share=0.0)
    assert (metrics["objective"], out.excluded) == ("mmGRPO", {"likelihood_not_positive": 1, "teacher_share": 2})
    for call in calls[:3]:
        call.fields, call.policy = {}, "f" * 64
    inputs, _ = write_artifacts(tmp_path / "with mu", calls, setting.cache)
    metrics, out = run(inputs, setting.cache, tmp_path / "corrected")
    assert (metrics["likelihood_members"], out.excluded) == (0, {}), "a teacher with mu is corrected like anyone else"


@pytest.mark.parametrize("loss", [{}, {"loss": "cispo", "balance": "token"}, {"ratio_level": "sequence"}])
def test_figures_by_age_add_up_to_those_of_the_step(setting: Setting, tmp_path: Path, loss: dict[str, Any]) -> None:
    narrow = {"epochs": 2, "epsilon_low": 0.01, "epsilon_high": 0.01, "beta": 0.1}
    _, out = run(setting.inputs, setting.cache, tmp_path / "cut", 45, **FIXED | narrow | loss)
    _, whole = run(setting.inputs, setting.cache, tmp_path / "whole", **FIXED | narrow | loss)
    for name in ("clip_share", "entropy"):
        assert steps(out, "ages")[name].to_list() == pytest.approx(steps(out)[name].to_list(), rel=1e-4), name
    assert steps(out)["clip_share"][1] > 0
    assert steps(out, "ages")["kl_k3"].to_list() == pytest.approx(steps(out)["kl_old"].to_list(), abs=1e-7)
    assert steps(out, "ages")["kl_k1"][1] != 0.0
    tokens = steps(out)["completion_tokens"].to_list()
    for name in ("ratio_histogram", "rho_histogram"):
        assert [sum(bins) for bins in steps(out, "ages")[name].to_list()] == tokens
        assert steps(out, "ages")[name].to_list() == steps(whole, "ages")[name].to_list()
    assert steps(out, "ages")["ratio_histogram"][0].to_list() == only_one(tokens[0])


def test_module_norms_are_of_the_modules_own_gradients_and_change_nothing(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | {"beta": 0.1}
    _, plain = run(setting.inputs, setting.cache, tmp_path / "plain", 45, **fields)
    _, apart = run(setting.inputs, setting.cache, tmp_path / "apart", 45, **fields | {"module_norms": True})
    assert steps(plain, "modules")["grad_norm"].to_list() == [None, None]
    total, own = steps(apart)["grad_norm"][0], steps(apart, "modules")
    assert total == pytest.approx(steps(plain)["grad_norm"][0], rel=1e-4)
    assert own["module"].to_list() == ["first", "second"]
    assert abs(own["grad_norm"][0] - own["grad_norm"][1]) < total < own["grad_norm"].sum()
    alone = [call for call in setting.calls if call.module == "first"]
    inputs, _ = write_artifacts(tmp_path / "data", alone, setting.cache)
    _, one = run(inputs, setting.cache, tmp_path / "one", **fields)
    assert steps(one, "modules")["grad_norm"].to_list() == steps(one)["grad_norm"].to_list()
    with pytest.raises(RecipeError, match=r"module_norms goes with group\.unit = 'invocation'"):
        run(inputs, setting.cache, tmp_path / "t", module_norms=True, group={"unit": "trajectory"})


def test_the_norm_of_a_module_is_that_of_its_share_of_the_gradient() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    norms = ModuleNorms(model)
    for module, row in (("a", [3.0, 0.0]), ("b", [0.0, 1.0]), ("a", [0.0, 4.0])):
        with norms.of(module):
            model(torch.tensor([row])).sum().backward()
    assert norms.norms() == {"a": 5.0, "b": 1.0}
    assert model.weight.grad.tolist() == [[3.0, 5.0]]
