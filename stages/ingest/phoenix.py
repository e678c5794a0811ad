"""Phoenix's exports as spans: dotted columns of its tables, nested attributes, and annotations beside a span."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.normal import Item, Score
from stages.ingest.values import judged, text, unpacked

_GROUPS = ("llm", "input", "output", "openinference", "gen_ai", "tool", "retrieval", "metadata", "session", "user")
_METADATA = "metadata."
_KIND = "openinference.span.kind"


def as_span(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with columns `context.trace_id`, `attributes.…` as a span with a context and attributes."""
    if "context.trace_id" not in row and "context.span_id" not in row:
        return row
    span: dict[str, Any] = {"attributes": {}, "context": {}}
    for name, value in row.items():
        group, _, rest = name.partition(".")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        if group in ("attributes", "context") and rest:
            span[group][rest] = value
        else:
            span[name] = value
    return span


def flat(attributes: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Attributes with dotted keys, as instrumentations write them; of messages and the like, lists stay lists.

    Args:
        attributes: as exported.
        kind: the span's kind, which Phoenix keeps beside the attributes.
    """
    found: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and prefix not in ("metadata", "input.value", "output.value"):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), item)
        elif value is not None:
            found[prefix] = value

    nested = any(isinstance(value, Mapping) and key.split(".")[0] in _GROUPS for key, value in attributes.items())
    if nested:
        walk("", attributes)
    else:
        found = dict(attributes)
    if isinstance(kind, str) and kind.isupper() and _KIND not in found:
        found[_KIND] = kind
    if _KIND in found and (rest := [name for name in found if name.startswith(_METADATA)]):
        found["metadata"] = {name.removeprefix(_METADATA): found.pop(name) for name in rest}
    return found


def annotated(span: Mapping[str, Any], trace: str, own: str | None, where: str) -> Iterator[Item]:
    """Scores that stand beside a span: a list of annotations, or columns `eval.NAME.score`.

    Args:
        span: as exported.
        trace: its id.
        own: the span's id; None for the root, whose scores are those of the trace.
        where: for messages.
    """
    listed = unpacked(span.get("annotations") or span.get("span_annotations"))
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, Mapping):
            result = item.get("result")
            held = result if isinstance(result, Mapping) else item
            name = text(item.get("name")) or text(item.get("annotation_name")) or "annotation"
            yield Score(trace, name, judged(held.get("score")), own, text(item.get("annotator_kind")), where)
    for column, value in span.items():
        if column.startswith("eval.") and column.endswith(".score"):
            yield Score(trace, column[5:-6], judged(value), own, "eval", where)
