"""The card shows text of users as it is, and nothing that is nobody else's business."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.exporting.base import licence_of, terms_of
from pipeline.exporting.discreet import discreet
from pipeline.exporting.markdown import block, code, escaped, table
from pipeline.exporting.toml import as_toml


def tables(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(TEXT, inner, max_size=3)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), tables(inner)), max_leaves=8)


def without_empty(value: Any) -> Any:
    """Empty tables are left out, but for those in lists."""
    if not isinstance(value, dict):
        return value
    kept = {name: without_empty(item) for name, item in value.items()}
    return {name: item for name, item in kept.items() if item != {} or not isinstance(item, dict)}


@given(tables(VALUES))
def test_toml_gives_the_document_back(document: dict[str, Any]) -> None:
    assert tomllib.loads(as_toml(document)) == without_empty(document)


def test_toml_leaves_null_out() -> None:
    assert tomllib.loads(as_toml({"a": None, "b": {"c": None}, "d": [{"e": None}]})) == {"d": [{}]}


@given(st.text(max_size=40))
def test_escaped_text_is_one_line_without_markup(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown
    bare = shown.replace("\\\\", "")
    for at, character in enumerate(bare):
        if character in "`*_{}[]()<>#+-.!|~=&":
            assert bare[at - 1] == "\\", shown


@given(st.text("`|a \n", max_size=20))
def test_a_code_span_stays_in_its_cell_and_ends_at_its_own_fence(text: str) -> None:
    shown = code(text)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert "|" not in shown
    assert "\n" not in shown
    assert fence
    assert fence not in shown[len(fence) : -len(fence)]


@given(st.text("`a\n", max_size=30))
def test_no_line_of_a_block_ends_it(text: str) -> None:
    first, *lines, last = block(text, "toml").split("\n")
    assert first == f"{last}toml"
    assert not any(line.strip().startswith(last) for line in lines)


def test_a_table_without_rows_is_nothing() -> None:
    assert table(["a"], []) == ""


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("url", "https://anna:pass@host:8000/v1?key=abc#x", "https://host:8000/v1"),
        ("url", "http://[bad", "***"),
        ("base", "/home/anna/models/llama", "llama"),
        ("base", "~/models/llama", "llama"),
        ("base", "owner/name@main", "owner/name@main"),
        ("note", "ask hf_abcdefghijklmnopqrstuvwx for it", "ask *** for it"),
        ("note", "mail anna@example.org", "mail ***"),
        ("api_key", "anything", "***"),
        ("hub-token", "anything", "***"),
        ("api_key_env", "OUR_SECRET", "OUR_SECRET"),
        ("max_new_tokens", 5, 5),
        ("token_budget", "many", "many"),
        ("path", "data/examples.csv", "data/examples.csv"),
    ],
)
def test_what_leaves_has_no_secrets_and_no_folders(field: str, value: Any, shown: Any) -> None:
    assert discreet({"program": {"args": [{field: value}]}}) == {"program": {"args": [{field: shown}]}}


def test_the_value_of_a_named_variable_is_masked_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "plain-words")
    document = {"lms": {"judge": {"api_key_env": "OUR_KEY"}}, "args": {"prompt": "say plain-words twice"}}
    assert discreet(document)["args"]["prompt"] == "say *** twice"


def test_the_base_own_card_names_its_licence(tmp_path: Any) -> None:
    assert licence_of(tmp_path) is None
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\ntags:\n- x\n---\n# A\nlicense: mit\n")
    assert licence_of(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("# A\n---\nlicense: mit\n---\n")
    assert licence_of(tmp_path) is None
    for name in ("LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY.md", "licenses.py", "config.json"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in terms_of(tmp_path)] == ["LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY.md"]
