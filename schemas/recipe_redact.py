"""What of a trace is replaced by pseudonyms before anything of it is written."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.sections import Pattern, Section, Share

Kind = Literal["credentials", "api_key", "email", "iban", "card", "ip", "phone"]


def _finds_something(text: str) -> str:
    if re.search(text, ""):
        raise ValueError("it matches the empty text")
    return text


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
OwnPattern = Annotated[Pattern, AfterValidator(_finds_something)]


class RedactSection(Section):
    """What is taken out of traces. Off where nothing is named.

    A value becomes `<EMAIL_1>`: the same wherever it stands in its trace, and told apart from others of its kind.
    Ids (of traces, spans and policies) and names that the program's author gave stay: modules, agents, signatures.
    A call that something was taken out of keeps no logged token ids: they say what its text said.
    """

    kinds: Literal["all"] | tuple[Kind, ...] = ()
    """`credentials` in URLs, `api_key` (shapes of well-known keys, tokens and private keys), `email`, `iban` and `card`
    (both only where their check digits hold), `ip` and `phone` (international, or written as numbers are in a
    country). "all": each of them."""
    patterns: dict[Name, OwnPattern] = {}
    """Own regular expressions by name: `order = 'ORD-\\d{8}'` gives `<ORDER_1>`. Of a group named `value` only that
    part is replaced."""
    entities: tuple[str, ...] = ()
    """Named entities that Presidio finds, such as "PERSON" and "LOCATION": needs `pip install -e '.[presidio]'` in a
    clone of mmgrpo and a spaCy model. It misses some and finds some that are none."""
    language: str = "en"
    """Of the spaCy model."""
    model: str = "en_core_web_lg"
    """A spaCy model with named entities: an installed package, or a folder."""
    threshold: Share = 0.5
    """Lowest score of Presidio that counts."""

    @property
    def on(self) -> bool:
        """Whether anything is to be replaced."""
        return bool(self.kinds or self.patterns or self.entities)
