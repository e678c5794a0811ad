"""What LangSmith's SDKs send: a body of parts, a run's fields each in one of their own, or a batch in JSON.

A body comes as it was captured, or as an SDK leaves it on the disk where it could not be sent (`FAILED_TRACES_DIR`):
`{version, endpoint, headers, body_base64}`.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

from schemas.addresses import without_secrets
from stages.ingest.json_stream import parse
from stages.ingest.normal import Refused
from stages.ingest.packed import Unpacked
from stages.ingest.shape import Value
from stages.ingest.values import identity

_LARGEST = 256 << 20
"""Most bytes of a body."""
_START = re.compile(rb'--[^\r\n]+\r\nContent-Disposition: form-data; name="(?:post|patch|feedback|attachment)\.')
_NAME = re.compile(rb'name="(post|patch|feedback)\.([^".]+)(?:\.([^"]+))?"')
"""Of a part. Attachments are left: they are files beside a run, and no part of a call."""
_LOOKED_AT = 256
Batch = dict[str, Any]
"""`post`, `patch` and `feedback` as lists, and `refused`: what could not be read, with the trace where it is known."""


def is_left(value: Any) -> bool:
    """Whether a value is a body that an SDK left on the disk."""
    return isinstance(value, Mapping) and "runs" in str(value.get("endpoint")) and "body_base64" in value


def batch_left(value: Mapping[str, Any]) -> Any:
    """What such a body holds.

    Raises:
        ValueError: when it is damaged.
    """
    body = base64.b64decode(value["body_base64"], validate=True)
    plain = _whole(io.BytesIO(body))
    return _batch(plain) if _START.match(plain) else parse(plain)


def captured(address: str) -> Iterator[Value | Refused] | None:
    """The batch of a file that is a body of parts; None for any other."""
    with fsspec.open(address, "rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        if not _START.match(Unpacked(raw, start).read(_LOOKED_AT) or b""):
            return None
    return _captured(address)


def _captured(address: str) -> Iterator[Value | Refused]:
    shown = without_secrets(address)
    with fsspec.open(address, "rb") as raw:
        try:
            batch = _batch(_whole(raw))
        except ValueError as error:
            yield Refused("not_readable", str(error), shown)
        else:
            yield Value(batch, "object", shown)


def _whole(raw: Any) -> bytes:
    start = raw.read(4)
    raw.seek(0)
    plain = Unpacked(raw, start)
    data = io.BufferedReader(plain).read(_LARGEST + 1)
    if plain.failure or len(data) > _LARGEST:
        raise ValueError(plain.failure or f"a body of more than {_LARGEST >> 20} MiB")
    return data


def _batch(body: bytes) -> Batch:
    """The runs whose parts a body has."""
    mark = body[: body.index(b"\r\n")]
    batch: Batch = {"post": [], "patch": [], "feedback": [], "refused": []}
    runs: dict[tuple[bytes, bytes], dict[str, Any]] = {}
    *parts, end = body.removeprefix(mark).split(b"\r\n" + mark)
    if end.strip() != b"--":
        batch["refused"].append(("the body is cut short: its last part is left out", None))
    for part in parts:
        head, _, data = part.partition(b"\r\n\r\n")
        if not (named := _NAME.search(head)):
            continue
        kind, own, field = named.groups()
        try:
            value = parse(data)
        except ValueError as error:
            trace = identity(runs.get((kind, own), {}).get("trace_id"))
            batch["refused"].append((f"the part '{named[0].decode(errors='replace')}': {error}", trace))
            continue
        if field is None:
            runs[kind, own] = dict(value)
            batch[kind.decode()].append(runs[kind, own])
        elif (kind, own) in runs:
            runs[kind, own][field.decode()] = value
        else:
            batch["refused"].append((f"the part '{named[0].decode(errors='replace')}' is of no run", None))
    return batch
