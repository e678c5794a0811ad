"""The drift stage: KL and entropy of a policy against the base, figures of its calls, canaries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForCausalLM

from schemas.drift import CANARIES, DRIFT
from schemas.errors import DataError, MmgrpoError, RecipeError
from schemas.parquet import read_rows, write_table
from schemas.policies import POLICIES, policy_digest
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS
from schemas.scores import SCORES
from stages import drift
from stages.contract import Artifact, Inputs
from stages.drifting.calls import chosen
from stages.drifting.canaries import read_canaries
from stages.drifting.figures import alarms
from stages.engines.models import resolve_base
from tests.test_stages.train_kit import (
    LocalOut,
    artifact,
    as_previous,
    execution,
    make_calls,
    policies,
    recipe,
    run,
    write_artifacts,
)

PROMPTS = [
    {"id": "b", "messages": [{"role": "user", "content": "say b"}]},
    {"id": "a", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say a"}]},
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Inputs:
    """The base, and as `previous` an adapter that differs from it; the root has canaries."""
    root = tmp_path_factory.mktemp("data")
    first, _ = write_artifacts(root, make_calls(), cache)
    _, out = run(first, cache, root / "first", learning_rate=0.05)
    (root / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    return as_previous(out, first, root / "previous")


def call(run_: int, text: str | None, **fields: Any) -> dict[str, Any]:
    """A call of run `run_`, whose completion is the text, a token a character."""
    ids = None if text is None else [3 + ord(character) % 90 for character in text]
    return {
        "rollout_id": f"r{run_:03d}",
        "call_index": 0,
        "module": "m",
        "invocation_index": 0,
        "attempt": 0,
        "lm": "student",
        "messages": "[]",
        "completion": text,
        "prompt_ids": [5, 6, 7, 8 + run_ % 3],
        "completion_ids": ids,
        "finish_reason": "error" if text is None else "stop",
        "parse_status": "ok",
        "temperature": 0.0,
        "trainable": True,
        "concurrent": False,
        "fidelity": "partial" if text is None else "exact",
    } | fields


def scores(folder: Path, calls: list[dict[str, Any]]) -> Artifact:
    """An evaluate artifact of these calls: a run each rollout_id, two samples an example."""
    folder.mkdir(parents=True)
    names = sorted({row["rollout_id"] for row in calls})
    rows = [
        {
            "policy": "p",
            "example_id": f"e{index // 2}",
            "sample": index % 2,
            "score": 1.0,
            "status": "ok",
            "rollout_id": name,
            "calls": 1,
        }
        for index, name in enumerate(names)
    ]
    write_table(rows, folder / "scores.parquet", SCORES)
    write_table(calls, folder / "invocations.parquet", INVOCATIONS)
    return artifact(folder)


def recipe_with(**sections: Any) -> Recipe:
    document = recipe().model_dump(mode="json")
    return Recipe.model_validate(document | sections)


def look(
    trained: Inputs,
    cache: Path,
    root: Path,
    calls: list[dict[str, Any]],
    base: dict[str, Artifact] | None = None,
    how: Recipe | None = None,
) -> tuple[dict[str, Any], dict[str, Artifact]]:
    """One run of the stage, of the base or, given what it left, of the adapter: metrics and artifacts."""
    how = how or recipe_with()
    made = {"evaluate": scores(root / "evaluate", calls)}
    artifacts = {"base": trained["base"], **made}
    if base is not None:
        artifacts |= {"adapter": trained["previous"]} | {f"base.{name}": found for name, found in base.items()}
    canaries = drift.canaries.identify_canaries(how, trained.root)
    params = {"policy": policies(trained)[-1 if base else 0], "split": "dev", "canaries": canaries}
    out = LocalOut(root / "drift")
    metrics = drift.run(Inputs(artifacts, params, trained.root), how, execution(cache, 45), out)
    made["drift"] = artifact(root / "drift" / "files")
    return metrics | {"excluded": out.excluded}, made


CALLS = [call(index, "abcabdde"[: 1 + index % 7], temperature=0.7 if index == 2 else 0.0) for index in range(8)]


def test_kl_and_entropy_are_those_of_two_plain_forward_passes_over_the_whole_vocabulary(
    trained: Inputs, cache: Path, tmp_path: Path
) -> None:
    _, base = look(trained, cache, tmp_path / "base", CALLS)
    metrics, made = look(trained, cache, tmp_path / "own", CALLS, base)
    path = resolve_base("tiny-random", tmp_path, cache).path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    peft = PeftModel.from_pretrained(model, trained["previous"].file("adapter")).double().eval()
    rows = read_rows(made["drift"].file("drift.parquet"), DRIFT)
    assert [row["rollout_id"] for row in rows] == [one["rollout_id"] for one in CALLS]
    total = 0.0
    for row, one in zip(rows, CALLS, strict=True):
        ids = torch.tensor([[*one["prompt_ids"], *one["completion_ids"]]])
        behind = slice(len(one["prompt_ids"]) - 1, -1)
        with torch.no_grad():
            own = torch.log_softmax(peft(ids).logits[0, behind] / (one["temperature"] or 1.0), -1)
            with peft.disable_adapter():
                other = torch.log_softmax(peft(ids).logits[0, behind] / (one["temperature"] or 1.0), -1)
        kl = (own.exp() * (own - other)).sum(-1)
        assert row["kl_to_base"] == pytest.approx(float(kl.mean()), abs=2e-5)
        assert row["entropy"] == pytest.approx(float(-(own.exp() * own).sum(-1).mean()), abs=2e-5)
        assert row["tokens"] == len(one["completion_ids"])
        total += float(kl.sum())
    assert metrics["kl_to_base"] == pytest.approx(total / sum(row["tokens"] for row in rows), abs=2e-5)
    assert metrics["kl_to_base"] > 1e-3
    assert metrics["by_module"]["m"]["kl_to_base"] == metrics["kl_to_base"]


def test_the_base_is_exactly_no_distance_from_itself(trained: Inputs, cache: Path, tmp_path: Path) -> None:
    metrics, made = look(trained, cache, tmp_path, CALLS)
    assert {row["kl_to_base"] for row in read_rows(made["drift"].file("drift.parquet"), DRIFT)} == {0.0}
    assert metrics["kl_to_base"] == metrics["top_completion_share_gain"] == 0.0
    assert metrics["entropy"] > 0
    assert metrics["base"]["entropy"] == metrics["entropy"]


def test_figures_are_those_of_all_calls_and_a_collapse_shows_against_the_base(
    trained: Inputs, cache: Path, tmp_path: Path
) -> None:
    varied = [call(index, f"answer {index}") for index in range(10)]
    collapsed = [
        *[call(index, "same") for index in range(6)],
        call(6, "cut off", finish_reason="length"),
        call(7, "no form", parse_status="failed"),
        call(8, None, parse_status="none"),
        call(9, "judge", lm="other", trainable=False),
    ]
    limits = {"max_top_completion_share_gain": 0.5, "max_parse_failure_share": 0.1, "max_length_cut_share": 0.5}
    how = recipe_with(drift=limits)
    _, base = look(trained, cache, tmp_path / "base", varied, how=how)
    metrics, _ = look(trained, cache, tmp_path / "own", collapsed, base, how)
    assert metrics["calls"] == 9
    assert metrics["excluded"] == {"no_tokens": 1}
    assert metrics["length_cut_share"] == metrics["parse_failure_share"] == 1 / 8
    assert metrics["completion_tokens"] == pytest.approx((6 * 4 + 7 + 7) / 8)
    assert (metrics["top_completion_share"], metrics["base"]["top_completion_share"]) == (1.0, 0.3)
    assert metrics["top_completion_share_gain"] == pytest.approx(0.7)
    assert metrics["alarms"] == [
        "share of completions that do not parse is 0.125, above drift.max_parse_failure_share (0.1)",
        "share of the 3 most frequent completions, beyond the base's, is 0.7, above "
        "drift.max_top_completion_share_gain (0.5)",
    ], "a module of so few calls raises none of its own"


def test_a_module_with_enough_calls_raises_an_alarm_of_its_own() -> None:
    def found(calls: int, kl: float) -> dict[str, Any]:
        shares = {"parse_failure_share": 0.0, "length_cut_share": 0.0, "top_completion_share_gain": 0.0}
        return {"calls": calls, "kl_to_base": kl, "entropy": 1.0, **shares}

    modules = {"broken": found(20, 0.9), "rare": found(19, 0.9), "well": found(500, 0.01)}
    metrics = found(539, 0.04) | {"by_module": modules, "base": {"by_module": modules}, "canaries": None}
    told = alarms(metrics, recipe_with(drift={"max_kl": 0.5, "min_entropy": 0.5}).drift)
    assert told == ["module 'broken': KL to the base is 0.9 nats per token, above drift.max_kl (0.5)"]
    assert alarms(metrics, recipe_with().drift) == []


def test_a_module_that_has_no_adapter_is_the_base_and_one_that_has_is_not(
    trained: Inputs, cache: Path, tmp_path: Path
) -> None:
    """The adapter again, as that of the module `m` alone."""
    before, folder = trained["previous"].path, tmp_path / "each"
    shutil.copytree(before / "adapter", folder / "adapters" / "own")
    (folder / "adapters" / "modules.json").write_text(json.dumps({"m": "own"}))
    rows = read_rows(before / "policies.parquet", POLICIES)
    adapters = json.loads(rows[-1]["adapters"])
    each = {"m": adapters["*"]}
    rows[-1] |= {"adapters": json.dumps(each), "policy": policy_digest(rows[-1]["base"], each)}
    write_table(rows, folder / "policies.parquet", POLICIES)
    own = Inputs({**trained.artifacts, "previous": artifact(folder)}, {}, trained.root)
    calls = [*CALLS, *(one | {"call_index": 1, "module": "other"} for one in CALLS)]
    how = recipe_with(canaries={"path": "prompts.jsonl", "max_new_tokens": 4})
    _, base = look(own, cache, tmp_path / "base", calls, how=how)
    metrics, made = look(own, cache, tmp_path / "own", calls, base, how)
    assert metrics["by_module"]["other"]["kl_to_base"] == 0.0
    assert metrics["by_module"]["m"]["kl_to_base"] > 1e-3
    asked = read_rows(made["drift"].file("canaries.parquet"), CANARIES)
    assert [(row["canary_id"], row["module"]) for row in asked] == [("a", "m"), ("b", "m")]


def test_without_a_single_completion_every_figure_is_null_and_a_limit_of_kl_is_an_alarm(
    trained: Inputs, cache: Path, tmp_path: Path
) -> None:
    silent = [call(index, None, parse_status="none") for index in range(3)]
    metrics, made = look(trained, cache, tmp_path, silent, how=recipe_with(drift={"max_kl": 0.1}))
    names = ("kl_to_base", "entropy", "completion_tokens", "length_cut_share", "parse_failure_share")
    assert [metrics[name] for name in (*names, "top_completion_share")] == [None] * 6
    assert read_rows(made["drift"].file("drift.parquet"), DRIFT) == []
    assert len(metrics["alarms"]) == 1
    assert "drift.max_kl (0.1) is not checked" in metrics["alarms"][0]


def test_canaries_are_compared_with_what_the_base_said(trained: Inputs, cache: Path, tmp_path: Path) -> None:
    limits = {"min_canary_same_share": 1.0, "max_canary_kl": 1e-9}
    how = recipe_with(canaries={"path": "prompts.jsonl", "max_new_tokens": 8}, drift=limits)
    metrics, base = look(trained, cache, tmp_path / "base", CALLS[:1], how=how)
    assert metrics["canaries"] == {"n": 2, "same_share": 1.0, "mean_kl": 0.0, "changed": []}
    assert metrics["alarms"] == []
    metrics, made = look(trained, cache, tmp_path / "own", CALLS[:1], base, how)
    theirs, rows = (read_rows(one["drift"].file("canaries.parquet"), CANARIES) for one in (base, made))
    assert [row["canary_id"] for row in rows] == ["a", "b"]
    assert json.loads(rows[1]["messages"]) == PROMPTS[0]["messages"]
    assert [row["same"] for row in rows] == [
        row["completion"] == other["completion"] for row, other in zip(rows, theirs, strict=True)
    ]
    found = metrics["canaries"]
    assert found["changed"] == [row["canary_id"] for row in rows if not row["same"]]
    assert found["mean_kl"] > 0
    assert len(metrics["alarms"]) == 1 + (found["same_share"] < 1)


def test_a_canary_that_leaves_no_room_is_kept_and_not_compared(trained: Inputs, cache: Path, tmp_path: Path) -> None:
    long = {"id": "long", "messages": [{"role": "user", "content": "x" * 200}]}
    (tmp_path / "long.jsonl").write_text(json.dumps(long))
    how = recipe_with(canaries={"path": str(tmp_path / "long.jsonl")}, drift={"min_canary_same_share": 0.5})
    short = how.model_copy(update={"model": how.model.model_copy(update={"context": 64})})
    metrics, made = look(trained, cache, tmp_path, CALLS[:1], how=short)
    row = read_rows(made["drift"].file("canaries.parquet"), CANARIES)[0]
    assert (row["finish_reason"], row["completion"], row["same"], row["kl_to_base"]) == (
        "context_overflow",
        None,
        None,
        None,
    )
    assert metrics["canaries"] == {"n": 0, "same_share": None, "mean_kl": None, "changed": []}
    assert "not checked" in metrics["alarms"][0]


def test_canaries_that_change_while_the_run_goes_on_are_refused(trained: Inputs, cache: Path, tmp_path: Path) -> None:
    how = recipe_with(canaries={"path": "prompts.jsonl"})
    made = {"base": trained["base"], "evaluate": scores(tmp_path / "evaluate", CALLS)}
    job = Inputs(made, {"policy": policies(trained)[0], "split": "dev", "canaries": "0" * 64}, trained.root)
    with pytest.raises(DataError, match=r"prompts\.jsonl changed while the run was going on"):
        drift.run(job, how, execution(cache), LocalOut(tmp_path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no canaries"),
        ("\n\n", "no canaries"),
        ("{", r"line 1: not JSON"),
        ("[" * 100_000, r"line 1: not JSON"),
        ('{"id": "a"}', r"line 1: expected"),
        ('{"id": 1, "messages": []}', r"line 1: expected"),
        ('{"id": "a", "messages": []}', r"line 1: messages: expected a list"),
        ('{"id": "a", "messages": [{"role": "user"}]}', r"line 1: messages\[0\]"),
        ('{"id": "a", "messages": [{"role": "user", "content": "\\ud800"}]}', r"line 1: not JSON .*surrogate"),
        (
            '{"id": "\\ud800", "messages": [{"role": "user", "content": "x"}]}',
            r"line 1: not JSON .*surrogate",
        ),
        ('{"id": "a", "messages": [{"role": "user", "content": "x"}]}\n' * 2, r"line 2: another canary has the id 'a'"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
    ids=[
        "empty",
        "blank",
        "cut",
        "deep",
        "no messages",
        "number",
        "none",
        "no content",
        "content",
        "id",
        "twice",
        "bytes",
    ],
)
def test_a_file_that_holds_no_canaries_is_refused_with_its_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(DataError, match=says):
        read_canaries(path)


def test_a_missing_file_of_canaries_is_a_mistake_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no file at"):
        read_canaries(tmp_path / "nosuch.jsonl")


def test_a_text_may_hold_line_breaks_of_other_kinds(tmp_path: Path) -> None:
    text = "one\u2028two\x85three\x0bfour"
    line = {"id": "a", "messages": [{"role": "user", "content": text}]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line, ensure_ascii=False) + "\r\n")
    assert [canary.messages[0]["content"] for canary in read_canaries(tmp_path / "prompts.jsonl")] == [text]


def test_the_canaries_that_ship_are_sixteen_short_prompts() -> None:
    found = read_canaries(Path(__file__).resolve().parents[2] / "data" / "canaries" / "prompts.jsonl")
    assert len(found) == 16
    assert all(len(message["content"]) < 200 for canary in found for message in canary.messages)


def frame(places: list[tuple[int, str, int]]) -> pl.DataFrame:
    rows = [
        {"example_id": f"e{example}", "sample": 0, "module": module, "invocation_index": index, "attempt": 0}
        for example, module, index in sorted(set(places))
    ]
    schema = {"example_id": pl.String, "sample": pl.Int32, "module": pl.String}
    return pl.DataFrame(rows, schema | {"invocation_index": pl.Int32, "attempt": pl.Int32})


PLACES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 3)), max_size=30)


@given(PLACES, PLACES, st.integers(1, 12))
def test_calls_are_chosen_by_their_place_whoever_made_them(
    one: list[tuple[int, str, int]], other: list[tuple[int, str, int]], most: int
) -> None:
    every, some = frame(one + other), frame(one)
    picked = chosen(every, most)
    assert picked.height == min(most, every.height)
    assert picked.equals(every.join(picked, on=every.columns, how="semi", maintain_order="left")), "in their order"
    assert chosen(every, most + 1).join(picked, on=every.columns, how="semi").height == picked.height
    # A policy that lacks some places is looked at at all of the others' places that it has:
    kept = picked.join(some, on=every.columns, how="semi")
    assert chosen(some, most).join(kept, on=every.columns, how="semi").height == kept.height


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"drift": {"max_kl": 0.1}, "evaluate": {"drift": False}}, "evaluate.drift is off"),
        ({"drift": {"max_canary_kl": 0.1}}, "needs canaries"),
        ({"drift": {"max_kl": -1}}, "max_kl"),
        ({"drift": {"max_parse_failure_share": 1.5}}, "max_parse_failure_share"),
        ({"evaluate": {"drift_calls": 0}}, "drift_calls"),
    ],
)
def test_limits_that_nothing_measures_are_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises((MmgrpoError, ValueError), match=says):
        recipe_with(**sections)


def test_its_key_has_what_is_measured_and_the_limits_and_nothing_that_is_sampled() -> None:
    def key(**sections: Any) -> dict[str, Any]:
        return drift.recipe_slice(recipe_with(**sections))

    assert key() == key(evaluate={"samples": 3, "bootstrap": 7})
    assert key() != key(drift={"max_kl": 0.1})
    assert key() != key(evaluate={"drift_calls": 7})
    asked = {"canaries": {"path": "a.jsonl"}}
    assert key(**asked) == key(canaries={"path": "b.jsonl"}) != key()
