"""Texts without the keys of this process: they stay in the environment, whatever an exception or a command says."""

from __future__ import annotations

import os
import re

from schemas.addresses import without_secrets

MASK = "***"
SECRET_NAME = re.compile(r"(?i)(^|_|-)(api_?key|key|token|secret|password|passwd|credential)s?$")
"""What variables and fields are called whose values are secrets."""
_LEAST = 8
"""A value that is shorter stands in too many texts to be one."""
_USED: set[str] = set()
"""Keys that were read from variables of any name."""


def remember(secret: str) -> None:
    """A key that was read from the environment: never shown from now on, whatever its variable is called."""
    if len(secret) >= _LEAST:
        _USED.add(secret)


def discreet(text: str) -> str:
    """A text without values of the environment that are secrets, and without credentials in the addresses in it."""
    found = {value for name, value in os.environ.items() if len(value) >= _LEAST and SECRET_NAME.search(name)} | _USED
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return without_secrets(text)
