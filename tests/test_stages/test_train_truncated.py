"""Sampling that was cut by top_p or top_k: refused, or trained on knowingly; and ids that are not those of the text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from schemas.errors import ContractError, RecipeError
from stages.engines.interface import Sampling
from stages.engines.models import BaseModel, load_tokenizer
from stages.engines.transformers_engine import TransformersEngine
from stages.training.members import load_members
from stages.training.truncated import check_sampling
from tests.test_stages.engines_kit import requests_for, tiny
from tests.test_stages.train_kit import Call, LocalOut, make_calls, recipe, run, write_artifacts

TOP_P = 0.6
ADMIT = {"truncated_sampling": "renormalised"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def base(cache: Path) -> BaseModel:
    return tiny(cache)


def sampled(base: BaseModel, sampling: Sampling) -> list[Call]:
    """Fresh rollouts of the base, with what the engine logged."""
    engine = TransformersEngine(base, "float32", 128)
    prompts = [engine.encode_chat([{"role": "user", "content": text}]) for text in ("abc", "fade", "cab bed")]
    requests = requests_for(prompts, 4, sampling)
    fields = {"top_p": sampling.top_p, "top_k": sampling.top_k}
    return [
        Call(
            list(request.prompt_ids),
            list(result.completion_ids),
            list(result.logprobs),
            f"e{index // 4}",
            f"g{index // 4}",
            (-1.0) ** index,
            temperature=sampling.temperature,
            fields=fields | {"completion": result.text},
        )
        for index, (request, result) in enumerate(zip(requests, engine.generate(requests), strict=True))
    ]


def step(out: LocalOut) -> dict[str, Any]:
    return pl.read_parquet(out.committed()["steps.parquet"]).row(0, named=True)


def test_on_fresh_data_cut_by_top_p_rho_is_the_mass_that_was_kept(base: BaseModel, cache: Path, tmp_path: Path) -> None:
    calls = sampled(base, Sampling(temperature=0.7, top_p=TOP_P, max_new_tokens=8))
    inputs, _ = write_artifacts(tmp_path / "data", calls, cache)
    metrics, out = run(inputs, cache, tmp_path / "o", beta=0.0, **ADMIT)
    row, ages = step(out), pl.read_parquet(out.committed()["ages.parquet"])
    assert (metrics["narrowed_rows"], metrics["rows"]) == (12, 12)
    assert 0 < row["mismatch_max"] <= -np.log(TOP_P) + 1e-4, "pi_0 over mu is at least top_p"
    assert row["rho_cut"] == 0
    above_one = sum(ages["rho_histogram"][0].to_list()[7:])  # from 1.01 up
    assert above_one == 0
    assert sum(ages["rho_histogram"][0].to_list()[:6]) > 0, "some mass was cut"
    whole = sampled(base, Sampling(temperature=0.7, max_new_tokens=8))
    inputs, _ = write_artifacts(tmp_path / "whole", whole, cache)
    metrics, out = run(inputs, cache, tmp_path / "o2", beta=0.0)
    assert metrics["narrowed_rows"] == 0
    assert step(out)["mismatch_max"] < 1e-4, "without a cut what is left is the engine against the trainer"


def cut(number: int = 2, **fields: Any) -> list[Call]:
    calls = make_calls()
    for call in calls[:number]:
        call.fields = {"top_k": 20, **fields}
    return calls


@pytest.mark.parametrize("fields", [{}, {"rho": "none"}, {"behaviour": "recomputed"}])
def test_cut_samples_are_refused_unless_the_recipe_admits_them(
    cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", cut(), cache)
    with pytest.raises(ContractError, match=r"top_k: 2 rows.*r000(?s:.*)truncated_sampling = \"renormalised\""):
        run(inputs, cache, tmp_path / "o", **fields)


def test_admitted_they_are_still_refused_where_rho_is_of_sequences(cache: Path, tmp_path: Path) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", cut(), cache)
    with pytest.raises(ContractError, match=r"where rho is that of a sequence: 2 rows(?s:.*)rho_level = \"token\""):
        run(inputs, cache, tmp_path / "o", rho_level="sequence", **ADMIT)
    assert run(inputs, cache, tmp_path / "none", rho_level="sequence", rho="none", **ADMIT)[0]["narrowed_rows"] == 2


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"temperature": 0.5, "top_k": None}])
def test_raw_logprobs_of_cut_or_tempered_sampling_are_refused(
    cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", cut(1, logprob_kind="raw", **fields), cache)
    with pytest.raises(ContractError, match=r"those of the distribution that was sampled from(?s:.*): 1 row"):
        run(inputs, cache, tmp_path / "o", **ADMIT)


def test_greedy_decoding_is_not_cut_and_raw_logprobs_at_temperature_1_are_what_was_sampled_from(
    cache: Path, tmp_path: Path
) -> None:
    calls = cut(1, temperature=0.0)
    calls[1].fields = {"logprob_kind": "raw"}
    inputs, _ = write_artifacts(tmp_path / "data", calls, cache)
    assert run(inputs, cache, tmp_path / "o")[0]["narrowed_rows"] == 0


def test_a_teachers_cut_samples_without_mu_train_as_likelihood(cache: Path, tmp_path: Path) -> None:
    calls = cut(1, sampling_logprobs=None)
    calls[0].source, calls[0].policy, calls[0].advantage = "teacher:big", None, 1.0
    inputs, _ = write_artifacts(tmp_path / "data", calls, cache)
    metrics, _ = run(inputs, cache, tmp_path / "o")
    assert (metrics["likelihood_members"], metrics["narrowed_rows"]) == (1, 1)


@pytest.mark.parametrize(
    ("sampling", "fields", "said"),
    [
        ({"top_p": 0.95, "top_k": 20}, {}, r"has top_p = 0\.95 and top_k = 20(?s:.*)= 'renormalised'"),
        ({"top_k": 1}, {}, "has top_k = 1:"),
        ({"top_p": 0.9}, ADMIT | {"rho_level": "sequence"}, "train.rho_level = 'sequence' with top_p = 0.9"),
        ({"top_p": 0.9}, ADMIT | {"behaviour": "recomputed"}, "train.behaviour = 'recomputed' with top_p = 0.9"),
    ],
)
def test_a_recipe_that_samples_what_training_refuses_is_refused_before_anything_runs(
    sampling: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        check_sampling(recipe(rollout={"sampling": sampling}, **fields))


def _refused(checked: Any) -> bool:
    try:
        check_sampling(checked)
    except RecipeError:
        return True
    return False


def test_a_recipe_that_admits_them_or_cuts_nothing_or_only_imitates_passes() -> None:
    narrow = {"sampling": {"top_p": 0.9}}
    whole, greedy = {"sampling": {"top_p": 1.0}}, {"sampling": {"temperature": 0.0, "top_k": 5}}
    imitating = recipe(rollout=narrow).model_copy(
        update={"rejection": recipe().rejection.model_copy(update={"iterations": 1})}
    )
    assert _refused(recipe(rollout=narrow))
    admitted = (recipe(rollout=narrow, **ADMIT), recipe(rollout=whole), recipe(rollout=greedy), imitating)
    assert not any(map(_refused, admitted))


def test_the_share_of_tokens_whose_rho_is_cut_and_the_99th_percentile_are_those_counted_by_hand(
    cache: Path, tmp_path: Path
) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", make_calls(), cache)
    rows: dict[str, dict[str, Any]] = {}
    for name, fields in {"plain": {"rho_max": 1e9}, "cut": {"rho_max": 0.5}, "packed": {"rho_max": 0.5}}.items():
        tokens = 4096 if name == "packed" else 60
        _, out = run(inputs, cache, tmp_path / name, tokens, beta=0.0, **fields)
        rows[name] = step(out) | {"bins": pl.read_parquet(out.committed()["ages.parquet"])["rho_histogram"][0]}
    above = sum(rows["plain"]["bins"].to_list()[2:])  # bins from the edge at 0.5 up
    assert 0 < above < rows["plain"]["completion_tokens"]
    assert rows["plain"]["rho_cut"] == 0
    assert rows["cut"]["rho_cut"] == rows["packed"]["rho_cut"] == above / rows["plain"]["completion_tokens"]
    masked = step(run(inputs, cache, tmp_path / "m", 60, beta=0.0, rho="mask", rho_max=0.5)[1])
    assert masked["rho_cut"] == rows["cut"]["rho_cut"]
    off = step(run(inputs, cache, tmp_path / "n", 60, beta=0.0, rho="none", ess_floor=0.0)[1])
    assert off["rho_cut"] is None
    assert rows["cut"]["mismatch_mean"] < rows["cut"]["mismatch_p99"] <= rows["cut"]["mismatch_max"]
    assert rows["cut"]["mismatch_p99"] == pytest.approx(rows["packed"]["mismatch_p99"], rel=1e-4)


def test_a_call_whose_ids_do_not_give_back_the_text_is_left_out_counted_and_named(
    base: BaseModel, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = sampled(base, Sampling(max_new_tokens=8))
    calls[5].fields["completion"] += "!"
    calls[5].copies = 2
    inputs, _ = write_artifacts(tmp_path / "data", calls, cache)
    with caplog.at_level(logging.WARNING):
        metrics, out = run(inputs, cache, tmp_path / "o", beta=0.0)
    assert out.excluded == {"ids_do_not_decode": 2}
    assert (metrics["rows"], metrics["members"]) == (11, 11)
    assert "rollout_id=r005, call_index=0" in caplog.text
    trained = pl.read_parquet(out.committed()["trained.parquet"])
    assert trained["members"].sum() + out.excluded["ids_do_not_decode"] == sum(call.copies for call in calls)
    assert "r005" not in trained["rollout_id"].to_list()
    inputs, _ = write_artifacts(tmp_path / "without", [call for call in calls if call is not calls[5]], cache)
    assert step(run(inputs, cache, tmp_path / "o2", beta=0.0)[1])["loss"] == pytest.approx(step(out)["loss"], abs=1e-6)


def test_what_the_engine_decoded_itself_is_all_trained_on_an_empty_text_too(
    base: BaseModel, cache: Path, tmp_path: Path
) -> None:
    calls = sampled(base, Sampling(max_new_tokens=8))
    calls[0].completion, calls[0].sampling = [2], [-3.0]  # eos alone
    calls[0].fields = {"completion": ""}
    tokenizer = load_tokenizer(base)
    assert all(
        call.fields["completion"] == tokenizer.decode(call.completion, skip_special_tokens=True) for call in calls
    )
    inputs, _ = write_artifacts(tmp_path / "data", calls, cache)
    metrics, out = run(inputs, cache, tmp_path / "o", beta=0.0)
    assert (metrics["rows"], out.excluded) == (12, {})
    members, _ = load_members(inputs["group"].file("groups.parquet"), [inputs["rollout"].file("invocations.parquet")])
    assert {row.text for row in members.rows} == {call.fields["completion"] for call in calls}
