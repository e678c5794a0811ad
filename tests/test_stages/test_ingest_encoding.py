"""Tokens of texts that are put together from parts are those of the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages.engines.models import load_tokenizer
from stages.engines.texts import encode_chat, encode_completion
from stages.ingest.encoding import Encoding
from tests.test_stages.engines_kit import tiny

PIECES = st.sampled_from(
    ["a", " b", "Zz", "\n", "12", "<|im_end|>", "<|im_start|>", "<|im", "|>", "é", "\u4e2d", "  ", "user\n", "."]
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(tiny(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def encoding(tokenizer: Any) -> Encoding:
    found = Encoding(tokenizer)
    assert found._cut is not None  # parts are looked up, or the tests here say nothing
    return found


@settings(deadline=None)
@given(st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=4))
def test_prompts_have_the_tokens_that_the_engine_gives_them(
    tokenizer: Any, encoding: Encoding, texts: list[str]
) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    assert tuple(encoding.chat(messages)) == encode_chat(tokenizer, messages)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=6).map("".join), st.booleans())
def test_completions_have_the_tokens_that_the_engine_gives_them(
    tokenizer: Any, encoding: Encoding, text: str, ended: bool
) -> None:
    for _ in range(2):  # found out, and looked up
        found = encoding.completion(text, ended=ended)
        assert (None if found is None else tuple(found)) == encode_completion(tokenizer, text, ended=ended)


def test_a_tokenizer_that_marks_the_beginning_of_a_text_gets_whole_texts() -> None:
    backend = Tokenizer(models.WordLevel({"\u2581a": 0, "a": 1, "<s>": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", unk_token="?")
    assert made("a<s>a", add_special_tokens=False)["input_ids"] == [0, 2, 1]  # the second begins no text
    assert Encoding(made).completion("a<s>a", ended=False) is None or Encoding(made)._cut is None
    assert Encoding(made)._ids("a<s>a") == [0, 2, 1]
