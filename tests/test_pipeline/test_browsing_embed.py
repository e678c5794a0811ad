"""Data inside a page: never markup, whatever it says, and never more than was meant."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.browsing.embed import Packer, script_json
from tests.test_pipeline.browsing_kit import HARM

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(["</script>", "<!--", "]]>", HARM, "\ud800"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.data += data


@settings(deadline=None)
@given(VALUES)
@example(HARM)
@example("\ud800</SCRIPT\t>\u2028\x00\x1b[0m")
def test_any_value_survives_a_script_element_and_adds_no_element(value: Any):
    text = script_json(value)
    page = Elements()
    page.feed(f'<script type="application/json">{text}</script>')
    page.close()
    assert page.tags == ["script"]
    assert page.data == text
    assert json.loads(page.data) == value
    assert re.fullmatch(r"[ -~]*", text)
    assert not set("<>&") & set(text)


def test_a_completion_of_two_megabytes_of_markup_survives_too():
    value = "</script>" * 222_223
    text = script_json(value)
    assert "<" not in text
    assert json.loads(text) == value


def test_what_is_not_finite_is_null():
    assert script_json([float("nan"), float("inf"), {"a": float("-inf")}, 1.5]) == '[null,null,{"a":null},1.5]'


@given(st.lists(st.text(max_size=120), max_size=8), st.integers(0, 2000))
def test_a_packer_never_holds_more_than_its_bytes_and_gives_every_record_back(texts: list[str], most: int):
    packer = Packer(most)
    records = [{"messages": [{"role": "user", "text": text}, {"role": "user", "text": text}], "n": place}
               for place, text in enumerate(texts)]  # fmt: skip
    taken = [record for record in records if packer.add(record)]
    told = json.loads(packer.json(range(len(taken))))
    for record in told["records"]:
        for message in record["messages"]:
            if isinstance(message["text"], int):
                message["text"] = told["texts"][message["text"]]
    assert told["records"] == taken
    assert len(packer.json(range(len(taken)))) <= most + len('{"texts":[],"records":[]}')


def test_a_text_that_many_prompts_share_is_kept_once():
    packer = Packer(10**6)
    for _ in range(50):
        assert packer.add({"messages": [{"role": "system", "text": "instructions " * 50}]})
    assert len(packer.json(range(50))) < 5_000
