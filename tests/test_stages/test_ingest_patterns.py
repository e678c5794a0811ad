"""Values that give people away are found by their shape, and what only looks like one is left."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from schemas.recipe_redact import RedactSection
from stages.ingest.patterns import find, finders_of

ALL = finders_of(RedactSection(kinds="all"))

HELD = [
    ("EMAIL", "write to ", "Anna.Smith+x@mail.example.co.uk", ", please"),
    ("EMAIL", "<", "jürgen@münchen.de", ">"),
    ("PHONE", "call ", "+49 (30) 1234-5678", "."),
    ("PHONE", "call ", "(415) 555-2671", " now"),
    ("PHONE", "", "4155552671", ""),
    ("PHONE", "Tel. ", "030 12345678", ""),
    ("IBAN", "to ", "DE89 3704 0044 0532 0130 00", " ALSO"),
    ("IBAN", "", "GB82WEST12345698765432", ""),
    ("IBAN", "AT: ", "AT61 1904 3002 3457 3201", " MORE words"),
    ("CARD", "card ", "4111 1111 1111 1111", ", exp 12/29"),
    ("CARD", "", "378282246310005", ""),
    ("IP", "from ", "192.168.10.254", ":8080"),
    ("IP", "from ", "2001:db8::ff00:42:8329", " on"),
    ("CREDENTIALS", "postgres://", "bob:s3cret", "@db.example.com/x"),
    ("API_KEY", "key=", "sk-proj-abcdefghijklmnop1234", " end"),
    ("API_KEY", "Authorization: Bearer ", "abcdef0123456789abcdef", ""),
    ("API_KEY", "", "AKIAIOSFODNN7EXAMPLE", ""),
    ("API_KEY", "", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "\nrest"),
]


@pytest.mark.parametrize(("kind", "before", "value", "after"), HELD)
def test_a_value_is_found_whole_and_nothing_else(kind: str, before: str, value: str, after: str) -> None:
    found = find(before + value + after, ALL)
    assert [(item.kind, (before + value + after)[item.start : item.end]) for item in found] == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "on 2026-11-30 at 12:30:45, or 01-02-2024",
        "started 1800000000000000000, ended 1800000000123456789",
        "std::vector<int> a::b(10); x = y @ z",
        "DE89 3704 0044 0532 0130 01",  # its check digits are wrong
        "4111 1111 1111 1112",
        "0000 0000 0000 0000",
        "version 1.2.3, 300.1.1.1, 1.2.3.4.5",
        "trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7",
        "skip sk-short; https://example.com/a@b",
        "order 12345678, 99 bottles, 3.14159265",
    ],
)
def test_what_only_looks_like_a_value_is_left(text: str) -> None:
    assert find(text, ALL) == []


def test_own_patterns_come_first_and_may_name_the_part_that_goes() -> None:
    section = RedactSection(kinds=("email",), patterns={"customer": r"customer (?P<value>\w+@\w+\.\w+)"})
    found = find("customer anna@example.org", finders_of(section))
    assert [(item.kind, item.start) for item in found] == [("CUSTOMER", 9)]


def test_an_escape_in_a_text_of_json_is_no_part_of_a_value() -> None:
    text = '{"said": "mail:\\nanna@example.org\\\\n4155552671"}'
    assert [text[item.start : item.end] for item in find(text, ALL)] == ["anna@example.org", "4155552671"]


@pytest.mark.parametrize("patterns", [{"x": "a*"}, {"X y": "a"}, {"x": "("}])
def test_a_pattern_that_cannot_work_is_refused(patterns: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RedactSection(patterns=patterns)


@pytest.mark.parametrize("text", ["a" * 2_000_000, "1-" * 200_000, "a:" * 200_000, "+1 " * 100_000, "DE12 " * 50_000])
def test_two_megabytes_of_one_thing_take_no_time(text: str) -> None:
    begin = time.process_time()
    find(text, ALL)
    assert time.process_time() - begin < 20  # quadratic time would be hours
