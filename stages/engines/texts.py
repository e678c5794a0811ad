"""Text as the model's tokens: prompts through the chat template, and completions that another model wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """Prompt ids of chat messages, with the generation prompt."""
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    # The template writes the special tokens itself: the tokenizer must not add another beginning.
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_completion(tokenizer: PreTrainedTokenizerBase, text: str, *, ended: bool) -> tuple[int, ...] | None:
    """The tokens of a completion that is known as text.

    Args:
        tokenizer: the model's.
        text: the completion.
        ended: whether it came to its end, so that the token which ends a turn belongs to it.

    Returns:
        None where the tokens do not give the text back: characters that the vocabulary lacks, or the name of a special
        token in the text.
    """
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) != text:
        return None
    return (*ids, tokenizer.eos_token_id) if ended else ids
