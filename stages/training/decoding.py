"""Rows whose completion ids do not give back the text that the program saw: they are not trained on.

The program, the metric and the reward know the text; the weights would be moved by the ids. Engines that decode their
own ids never differ. A server may, and so may tables that were written elsewhere. The reward stays in its group's mean,
since the text did earn it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stages.training.members import Members, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

REASON = "ids_do_not_decode"


def as_seen(members: Members, tokenizer: PreTrainedTokenizerBase) -> tuple[Members, dict[str, int]]:
    """The members whose ids decode to the recorded text, or whose text was not recorded.

    Returns:
        Them, and how many were left out, by reason; none where all are kept.
    """
    wrong = undecodable(members.rows, tokenizer)
    if not wrong:
        return members, {}
    first = members.rows[wrong[0]]
    log.warning(
        "%d calls are not trained on: their completion_ids do not decode to the completion that the program saw. The "
        "first (%s): ids of %.80r, recorded %.80r. Were they sampled with another tokenizer, or cut at a stop string?",
        len(wrong),
        first.name,
        tokenizer.decode(first.completion.tolist(), skip_special_tokens=True),
        first.text,
    )
    out = np.isin(members.row, wrong)
    return members.only(~out), {REASON: int(out.sum())}


def undecodable(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Indices of the rows whose ids do not give back their text, special tokens apart.

    A tokenizer may tidy the spaces of what it decodes. Text with them as they were is the same text.
    """
    known = [index for index, row in enumerate(rows) if row.text is not None]
    for options in ({}, {"clean_up_tokenization_spaces": False}):
        ids = [rows[index].completion.tolist() for index in known]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True, **options) if ids else []
        known = [index for index, text in zip(known, texts, strict=True) if rows[index].text != text]
    return known
