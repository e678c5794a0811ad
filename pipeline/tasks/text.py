"""Text normalisation shared by the tasks: what counts as the same text."""

from __future__ import annotations

import re
import unicodedata

_NOT_WORD = re.compile(r"[\W_]+")


def normalise(text: str) -> str:
    """The text case-folded, in NFKC, with every run of punctuation, underscores and white space as one space."""
    return _NOT_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()
