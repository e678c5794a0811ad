"""What must not leave a machine with an adapter: keys, passwords in URLs, folders of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from schemas.discretion import MASK, SECRET_NAME
from stages.ingest.patterns import BUILT_IN, find

_FINDERS = [BUILT_IN[kind] for kind in ("credentials", "api_key", "email")]
_LEAST = 6
"""A value of the environment that is shorter than this stands in too many texts to be one."""


def discreet(document: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without what is nobody else's business. Names of environment variables stay, their values do not."""
    values = [os.environ.get(name, "") for name in _variables(document)]
    secrets = sorted({value for value in values if len(value) >= _LEAST}, key=len, reverse=True)
    return {name: _clean(name, value, secrets) for name, value in document.items()}


def _variables(value: Any) -> list[str]:
    """Values of all fields that name environment variables."""
    if isinstance(value, Mapping):
        own = [item for name, item in value.items() if str(name).endswith("key_env") and isinstance(item, str)]
        return own + [found for item in value.values() for found in _variables(item)]
    return [found for item in value for found in _variables(item)] if isinstance(value, (list, tuple)) else []


def _clean(name: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(str(key), item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(name, item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    return MASK if value and SECRET_NAME.search(name) else shown(value, secrets)


def shown(text: str, secrets: list[str]) -> str:
    """A text without secrets: of a URL host and path alone, of an absolute path its last part."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        text = _address(text)
    elif text.startswith(("/", "~")) and len(text) > 1 and "\n" not in text:
        text = PurePath(text).name
    parts, end = list[str](), 0
    for found in find(text, _FINDERS):
        parts += [text[end : found.start], MASK]
        end = found.end
    return "".join([*parts, text[end:]])


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return MASK
    return f"{parts.scheme}://{host}{parts.path}"
