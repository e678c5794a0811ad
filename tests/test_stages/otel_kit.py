"""Spans of OpenTelemetry for tests of ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.test_stages.ingest_kit import Held, read_value
from tests.test_stages.ingest_values import HEX, SPAN

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
PARTS = [{"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "4"}], "finish_reason": "stop"}]


def span(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"trace_id": HEX, "span_id": SPAN, "name": "chat m", "start_time": 1, "attributes": attributes, **more}


def chat(attributes: dict[str, Any], tmp_path: Path, **more: Any) -> Held:
    return read_value(span({"gen_ai.request.model": "m-1", **attributes}, **more), tmp_path)


def event(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": attributes}
