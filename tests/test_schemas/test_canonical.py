from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import canonical_json, digest, digest_files, seed_from

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=12,
)


@given(JSON)
def test_the_order_of_keys_never_changes_a_digest(value: object) -> None:
    def reversed_keys(item: object) -> object:
        if isinstance(item, dict):
            return {key: reversed_keys(item[key]) for key in reversed(list(item))}
        return [reversed_keys(part) for part in item] if isinstance(item, list) else item

    assert canonical_json(reversed_keys(value)) == canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {"a": object()}, b"bytes", {"a"}, "\ud800"])
def test_what_has_no_canonical_form_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(TypeError, match=r"\$\.x"):
        digest({"x": value})


def test_numbers_that_differ_have_different_digests() -> None:
    assert len({digest(value) for value in (0, 0.1, 0.1 + 2**-55, True, None, "0", [0])}) == 7


def test_file_order_does_not_matter_to_an_artifact_digest() -> None:
    assert digest_files({"a": "1", "b": "2"}) == digest_files({"b": "2", "a": "1"})
    assert digest_files({"a": "1", "b": "2"}) != digest_files({"a": "2", "b": "1"})


def test_seeds_fit_a_signed_64_bit_column_and_depend_on_every_part() -> None:
    seeds = {seed_from("sample", iteration, example) for iteration in range(20) for example in "abc"}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)
