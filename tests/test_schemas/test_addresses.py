"""Addresses are shown without what lets somebody in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.addresses import without_secrets

SECRET = st.text("abcXYZ019+/=%-_.~!$&()*,;:", min_size=4, max_size=40).map(lambda text: f"S3CR{text}T0P")


@given(
    secret=SECRET,
    form=st.sampled_from(
        [
            "s3://KEY:{}@bucket/a/b.jsonl",
            "https://ada:{}@example.org:8080/x?y=1",
            "simplecache::s3://KEY:{}@bucket/*.json, line 3",
            "zip://a.json::https://u:{}@h/x.zip",
            "cannot open 'https://:{}@host/x' (404)",
        ]
    ),
)
def test_a_password_is_never_shown(secret: str, form: str) -> None:
    shown = without_secrets(form.format(secret))
    assert "S3CR" not in shown
    assert "T0P" not in shown


@given(secret=st.text("abcXYZ019+/=%-_.~", min_size=4, max_size=40).map(lambda text: f"S3CR{text}T0P"))
def test_a_signature_in_a_query_is_never_shown(secret: str) -> None:
    shown = without_secrets(f"https://h/traces.json?X-Amz-Credential=A&X-Amz-Signature={secret}, line 3: bad")
    assert "S3CR" not in shown
    assert "T0P" not in shown
    assert shown.startswith("https://h/traces.json?…")
    assert shown.endswith(" line 3: bad")


def test_a_token_for_a_user_is_not_shown() -> None:
    assert without_secrets("https://ghp_abc@host/x") == "https://…@host/x"


@pytest.mark.parametrize(
    "text",
    [
        "traces/a@b.jsonl",
        "s3://bucket/a/*.json",
        "s3://bucket/part-?.json.gz",
        "http://localhost:8000/v1@2/x",
        "https://host/a?",
        "write to ada@example.org: why?",
        "",
    ],
)
def test_what_holds_no_secret_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
