"""What gives a person away and can be told by its shape: addresses, numbers with check digits, keys.

Every expression looks at a text in one pass: where a run of characters may be long, only its beginning is tried.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from schemas.recipe_redact import RedactSection
from stages.ingest.checksums import card_holds, iban_end


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of a text."""

    start: int
    end: int
    kind: str
    """What it is, as its pseudonym says: `EMAIL`."""


Finder = Callable[[str], Iterator[Found]]

_CREDENTIALS = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,31}://([^\s/@\"'<>?#]{1,512})@")
_KEYS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}|(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|gsk_[A-Za-z0-9]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"
    r"|(?i:(?<![a-z])bearer\s{1,4})([A-Za-z0-9._~+/-]{16,}=*)"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,32}PRIVATE KEY-----|\Z)"
)
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]++@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,63}")
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?=[ -]?[A-Za-z0-9])")
_CARD = re.compile(r"(?<![\d.])(?<!\d[ -])[2-6](?:[ -]?\d){12,18}(?![ -]?\d)")
_IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?!\.?\w)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{3,39}(?:(?:\.\d{1,3}){3})?(?![\w:])")
_PHONES = (
    re.compile(r"(?<![\w+])(?<!\d )(?:\+|00)[1-9]\d{0,2}(?:[ ./-]{0,2}\(?\d{1,5}\)?){1,6}(?!\w)"),
    re.compile(r"(?<![\w.+-])(?<!\d )(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[ .-]?)[2-9]\d{2}[ .-]?\d{4}(?![\w-])"),
    re.compile(r"(?<![\w.+-])(?<!\d )\(?0\d{1,4}\)?[ /-]{1,2}\d{2,8}(?:[ -]\d{2,6}){0,4}(?![\w-])"),
)
_ESCAPE = re.compile(r"\\+(?:u[0-9A-Fa-f]{4}|[\"/bfnrt])?")
_DIGITS = {0: (8, 15), 1: (10, 11), 2: (9, 13)}
"""Fewest and most digits of a number in each of the forms above."""


def _credentials(text: str) -> Iterator[Found]:
    for match in _CREDENTIALS.finditer(text) if "://" in text else ():
        yield Found(*match.span(1), "CREDENTIALS")


def _keys(text: str) -> Iterator[Found]:
    for match in _KEYS.finditer(text):
        yield Found(*match.span(1 if match[1] else 0), "API_KEY")


def _emails(text: str) -> Iterator[Found]:
    for match in _EMAIL.finditer(text) if "@" in text else ():
        yield Found(*match.span(), "EMAIL")


def _ibans(text: str) -> Iterator[Found]:
    for match in _IBAN.finditer(text):
        end = iban_end(text, match.start())
        if end is not None:
            yield Found(match.start(), end, "IBAN")


def _cards(text: str) -> Iterator[Found]:
    for match in _CARD.finditer(text):
        if card_holds(match[0]):
            yield Found(*match.span(), "CARD")


def _addresses(text: str) -> Iterator[Found]:
    for match in _IPV4.finditer(text):
        yield Found(*match.span(), "IP")
    for match in _IPV6.finditer(text) if ":" in text else ():
        if _is_ipv6(match[0]):
            yield Found(*match.span(), "IP")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return any(char.isdecimal() for char in text) or text.count(":") > 2  # `a::b` is a name in some languages


def _phones(text: str) -> Iterator[Found]:
    for form, pattern in enumerate(_PHONES):
        least, most = _DIGITS[form]
        for match in pattern.finditer(text):
            if least <= sum(char.isdecimal() for char in match[0]) <= most:
                yield Found(*match.span(), "PHONE")


BUILT_IN: dict[str, Finder] = {
    "credentials": _credentials,
    "api_key": _keys,
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "ip": _addresses,
    "phone": _phones,
}
"""By kind, in the order in which they are believed."""


def finders_of(section: RedactSection) -> list[Finder]:
    """The finders that a recipe names; its own come first. Named entities are not among them."""
    own = [_own(name.upper(), re.compile(pattern)) for name, pattern in section.patterns.items()]
    return own + [finder for kind, finder in BUILT_IN.items() if section.kinds == "all" or kind in section.kinds]


def _own(name: str, pattern: re.Pattern[str]) -> Finder:
    group = "value" if "value" in pattern.groupindex else 0

    def found(text: str) -> Iterator[Found]:
        for match in pattern.finditer(text):
            if match.end(group) > match.start(group):
                yield Found(*match.span(group), name)

    return found


def find(text: str, finders: Iterable[Finder]) -> list[Found]:
    """What is found in a text, in order and without overlaps: the first wins, then the longest, then the finder.

    In a text of JSON an escape counts as space, its letter too: they belong to no value.
    """
    if "\\" in text and text.lstrip().startswith(("{", "[", '"')):
        text = _ESCAPE.sub(lambda found: " " * len(found[0]), text)
    every = [(found.start, -found.end, rank, found) for rank, finder in enumerate(finders) for found in finder(text)]
    kept: list[Found] = []
    for *_, found in sorted(every, key=lambda item: item[:3]):
        if not kept or found.start >= kept[-1].end:
            kept.append(found)
    return kept
