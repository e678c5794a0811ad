"""A rollout as plain data, from the artifacts that run.json names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.browsing.bounds import Bounds, clip, ends, laid_out
from pipeline.browsing.tokens import Vocabulary, cut, halves
from pipeline.browsing.trajectory import trajectory
from schemas.errors import RecipeError
from schemas.training import TRAINED
from tests.test_pipeline.browsing_kit import opened, with_tokens
from tests.test_pipeline.report_run import Rows, RunWriter, whole_run


def started(folder: Path, **sizes: int) -> RunWriter:
    writer = RunWriter(folder, **sizes)
    writer.add_setup()
    return writer


def byte_tokenizer() -> Tokenizer:
    """One token a byte, so that most characters take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: place for place, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTES = byte_tokenizer()


def test_a_rollout_has_its_facts_and_its_calls_in_order(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout()
    writer.add_group()
    run = opened(writer.write())
    rollouts, calls = writer.made
    for rollout in rollouts[:5]:
        found = trajectory(run, 0, rollout["rollout_id"])
        for name in ("example_id", "rollout_index", "reward", "status", "error", "policy", "source"):
            assert found[name] == rollout[name]
        own = [call for call in calls if call["rollout_id"] == rollout["rollout_id"]]
        assert [(call["module"], call["completion"]) for call in found["calls"]] == [
            (call["module"], call["completion"]) for call in own
        ]
        assert found["calls"][0]["messages"][0] == {"role": "system", "text": "Do plan."}


def test_a_call_says_its_group_reward_advantage_copies_and_that_nothing_was_trained_yet(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout()
    writer.add_group()
    run = opened(writer.write())
    first, second = (trajectory(run, 0, writer.made[0][place]["rollout_id"])["calls"][0] for place in (0, 1))
    fate = first["fates"][0]
    assert (fate["members"], fate["copies"], fate["trained"], fate["reason"]) == (2, 1, None, None)
    assert second["fates"][0]["copies"] == 0
    assert second["fates"][0]["advantage"] != fate["advantage"]


def test_what_is_in_no_group_says_why(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout()
    writer.add_group()
    run = opened(writer.write())
    flat = next(row for row in writer.made[0] if row["example_id"] == writer.example_ids[-1])
    fate = trajectory(run, 0, flat["rollout_id"])["calls"][0]["fates"][0]
    assert (fate["iteration"], fate["reason"]) == (0, "flat_group")
    assert fate["meaning"] == "all rewards of the group are equal within min_spread"


def test_members_that_the_train_stage_did_not_admit_are_not_called_trained_on(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout()
    writer.add_group()
    admitted = writer.made[0][1]["rollout_id"]
    group = trajectory(opened(writer.write()), 0, admitted)["calls"][0]["fates"][0]["group_id"]
    row = {"group_id": group, "rollout_id": admitted, "call_index": 0, "members": 1}
    told = {"trained": True, "policy": writer.policies[1]}
    writer.iterations[-1]["train"] = writer.artifact("train", "t", {"trained.parquet": (TRAINED, [row])}, metrics=told)
    run = opened(writer.write())
    assert trajectory(run, 0, admitted)["calls"][0]["fates"][0]["trained"] == 1
    assert trajectory(run, 0, admitted)["calls"][1]["fates"][0]["trained"] == 0
    assert trajectory(run, 0, writer.made[0][2]["rollout_id"])["calls"][0]["fates"][0]["trained"] == 0


def test_a_train_stage_that_moved_nothing_trained_on_nothing(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout()
    writer.add_group()
    writer.add_train(trained=False, reason="all groups are flat")
    run = opened(writer.write())
    assert trajectory(run, 0, writer.made[0][1]["rollout_id"])["calls"][0]["fates"][0]["trained"] == 0


def test_tokens_have_their_text_and_the_log_probability_they_were_drawn_with(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout(lambda _, calls: with_tokens(calls))
    run = opened(writer.write())
    call = trajectory(run, 0, writer.made[0][0]["rollout_id"])["calls"][0]
    assert call["completion"] == "plan 0 of iteration 0"
    assert call["tokens"]["pieces"] == list(call["completion"])
    assert call["tokens"]["logprobs"][:4] == [-0.05, -1.55, -3.05, -4.55]
    assert call["token_count"] == len(call["completion"])


def test_rows_of_a_tokenizer_that_is_not_here_keep_their_completion_and_get_no_pieces(tmp_path: Path):
    writer = started(tmp_path)

    def foreign(_: Rows, calls: Rows) -> None:
        with_tokens(calls)
        for call in calls:
            call["tokenizer"] = "f" * 64

    writer.add_rollout(foreign)
    call = trajectory(opened(writer.write()), 0, writer.made[0][0]["rollout_id"])["calls"][0]
    assert call["tokens"] is None
    assert call["completion"] == "plan 0 of iteration 0"
    assert call["token_count"] == len(call["completion"])


def test_what_is_absent_is_none_and_never_zero(tmp_path: Path):
    writer = started(tmp_path)

    def bare(rollouts: Rows, calls: Rows) -> None:
        for call in calls:
            call.update(dict.fromkeys(("completion", "completion_ids", "sampling_logprobs", "finish_reason")))
        for row in rollouts:
            row.update(dict.fromkeys(("reward", "reward_parts", "policy", "output")))

    writer.add_rollout(bare)
    found = trajectory(opened(writer.write()), 0, writer.made[0][0]["rollout_id"])
    call = found["calls"][0]
    assert [call[name] for name in ("completion", "tokens", "token_count", "logprob_mean")] == [None] * 4
    assert (found["reward"], found["output"], found["reward_parts"]) == (None, None, {})


def test_a_rollout_without_calls_is_shown_with_the_reason_that_it_is_in_no_group(tmp_path: Path):
    writer = started(tmp_path)

    def silent(rollouts: Rows, calls: Rows) -> None:
        calls[:] = [call for call in calls if call["rollout_id"] != rollouts[0]["rollout_id"]]

    writer.add_rollout(silent)
    writer.add_group()
    found = trajectory(opened(writer.write()), 0, writer.made[0][0]["rollout_id"])
    assert (found["calls"], found["calls_made"]) == ([], 0)


def test_a_rollout_that_is_not_there_is_named_in_the_error(tmp_path: Path):
    run = opened(whole_run(tmp_path, iterations=1))
    with pytest.raises(RecipeError, match="iteration 0 has no rollout 'nothing'"):
        trajectory(run, 0, "nothing")
    with pytest.raises(RecipeError, match="the logged traces have no rollout"):
        trajectory(run, None, "nothing")


def test_bounds_cut_calls_messages_texts_and_tokens_in_the_middle_and_count_what_is_missing(tmp_path: Path):
    writer = started(tmp_path)
    writer.add_rollout(lambda _, calls: with_tokens(calls))
    run = opened(writer.write())
    most = max(writer.made[0], key=lambda row: sum(call["rollout_id"] == row["rollout_id"] for call in writer.made[1]))
    bounds = Bounds(calls=2, messages=1, message=4, completion=5, field=6, tokens=4)
    found = trajectory(run, 0, most["rollout_id"], bounds)
    assert (len(found["calls"]), found["calls_made"]) == (2, 4)
    call = found["calls"][0]
    assert (len(call["messages"]), call["messages_made"]) == (1, 2)
    assert call["tokens"]["pieces"] == [*call["tokens"]["pieces"][:2], *call["tokens"]["pieces"][2:]]
    length = call["token_count"]
    assert (call["tokens"]["left_out"], call["tokens"]["cut_at"]) == (length - 4, 2)
    assert call["completion"]["left_out"] == length - 4


@given(st.text(max_size=60))
def test_pieces_together_are_the_text_whatever_characters_it_has(text: str):
    text = text.encode(errors="ignore").decode()
    ids = BYTES.encode(text).ids
    pieces = cut(BYTES, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_ids_have_as_many_pieces_and_together_their_text(ids: list[int]):
    pieces = cut(BYTES, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == (BYTES.decode(ids, skip_special_tokens=False) if ids else "")


def test_a_character_of_several_tokens_stands_at_the_last_of_them():
    assert cut(BYTES, BYTES.encode("né!").ids) == ["n", "", "é", "!"]


@given(st.text(max_size=40), st.integers(2, 12))
def test_a_clipped_text_has_both_ends_and_counts_the_rest(text: str, most: int):
    found: Any = clip(text, most)
    if isinstance(found, str):
        assert found == text
        assert len(text) <= most
    else:
        assert len(found["head"]) + found["left_out"] + len(found["tail"]) == len(text)
        assert text.startswith(found["head"])
        assert text.endswith(found["tail"])
        assert len(found["head"]) + len(found["tail"]) <= most


@given(st.lists(st.integers(), max_size=20), st.integers(1, 8))
def test_ends_keep_order_and_number(items: list[int], most: int):
    found = ends(items, most)
    assert len(found) == min(len(items), most)
    places, left_out = halves(items, max(2, most))
    assert len(places) + left_out == len(items)
    assert places == sorted(set(places))


def test_text_that_is_no_json_is_shown_as_it_is():
    assert laid_out("{not json", 50) == "{not json"
    assert laid_out('{"a":1}', 50) == '{"a": 1}'
    assert laid_out(json.dumps({"a": "x" * 70}), 90) == '{\n "a": "' + "x" * 70 + '"\n}'
    assert laid_out("[" * 100_000, 10) == {"head": "[" * 5, "left_out": 99_990, "tail": "[" * 5}
    assert laid_out(None, 50) is None


def test_a_base_that_is_nowhere_has_no_tokenizer_and_that_is_no_error():
    for base in ("owner/never-heard-of", "/no/such/folder", "", "nothing"):
        assert Vocabulary(base).pieces("f" * 64) is None
    assert Vocabulary("tiny-random").pieces(None) is None
