"""Addresses as they may be shown and kept: without the credentials that some of them hold."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_LOGIN = re.compile(r"(?<=://)(?![^/@\s:]*:\d+[/?#])[^/@\s:\"'<>]*:[^@\s\"'<>]*@|(?<=://)[^/@\s\"'<>?#]+@")
"""`user:secret@`, whose secret may hold slashes as those of AWS do; or `token@`. Of a host, a port is none."""
_QUERY = re.compile(r"(://[^\s\"'<>?]*)\?(?=[^\s\"'<>]*=)[^\s\"'<>]*[^\s\"'<>,.:;)\]]")
"""A query, of which a signed address holds its signature. A `?` of a pattern of files has no `=` behind it."""


def without_secrets(text: str) -> str:
    """A text with `…` in the place of users, passwords and queries of the addresses in it."""
    if "://" not in text:
        return text
    return _QUERY.sub(r"\1?…", _LOGIN.sub("…@", text))


def is_address(text: str) -> bool:
    """Whether a text names a folder by an address, such as `s3://bucket/runs/a`, and not by a path."""
    return _ADDRESS.fullmatch(text) is not None


def split_address(address: str) -> tuple[str, str, str]:
    """(scheme, bucket or host, path without slashes at its ends) of an address.

    Raises:
        ValueError: saying what is wrong with it: a user or a password in it, a query, or parts that climb.
    """
    found = _ADDRESS.fullmatch(address)
    assert found is not None, address
    scheme, rest = found[1], found[2]
    host, _, path = rest.partition("/")
    if "@" in rest or "?" in rest or "#" in rest:
        raise ValueError(
            "an address holds a user, a password or a query, which would be kept: leave them out, and put credentials "
            "into the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, …)"
        )
    parts = [part for part in path.split("/") if part]
    if not parts or any(part in {".", ".."} for part in parts):
        raise ValueError("expected an address like s3://bucket/folder, without . and ..")
    return scheme, host, "/".join(parts)
