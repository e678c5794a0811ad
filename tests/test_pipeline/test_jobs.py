from __future__ import annotations

from pipeline.jobs import changes, key_of

OLD = {
    "stage": "train",
    "stage_version": 1,
    "recipe": {"train": {"lr": 0.1}},
    "params": {"i": 0},
    "inputs": {"a": "0" * 64},
}


def test_a_changed_field_is_named_with_both_values() -> None:
    assert changes(OLD, OLD | {"recipe": {"train": {"lr": 0.2}}}) == ["train.lr 0.1 -> 0.2"]


def test_a_changed_input_code_and_a_new_field_are_each_named() -> None:
    new = OLD | {"stage_version": 2, "inputs": {"a": "1" * 64}, "recipe": {"train": {"lr": 0.1, "beta": 0}}}
    assert changes(OLD, new) == [
        "input 'a' changed (000000000000 -> 111111111111)",
        "train.beta (absent) -> 0",
        "the stage's code changed (version 1 -> 2)",
    ]


def test_a_key_follows_every_part_of_the_payload_and_nothing_else() -> None:
    assert key_of(OLD) == key_of(dict(reversed(OLD.items())))
    assert key_of(OLD) != key_of(OLD | {"params": {"i": 1}})
