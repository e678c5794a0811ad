"""Addresses as they may be shown and kept: without the credentials that some of them hold."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)(?![^/@\s:]*:\d+[/?#])[^/@\s:\"'<>]*:[^@\s\"'<>]*@|(?<=://)[^/@\s\"'<>?#]+@")
"""`user:secret@`, whose secret may hold slashes as those of AWS do; or `token@`. Of a host, a port is none."""
_QUERY = re.compile(r"(://[^\s\"'<>?]*)\?(?=[^\s\"'<>]*=)[^\s\"'<>]*[^\s\"'<>,.:;)\]]")
"""A query, of which a signed address holds its signature. A `?` of a pattern of files has no `=` behind it."""


def without_secrets(text: str) -> str:
    """A text with `…` in the place of users, passwords and queries of the addresses in it."""
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?…", _LOGIN.sub("…@", text))
