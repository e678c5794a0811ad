"""Whether a manifest is one that a stage writes: its digests follow, and every part is of the kind that others read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from schemas import figures, payloads
from schemas.canonical import digest
from schemas.manifest import Manifest
from schemas.shapes import Shape, first_problem

FILES: Mapping[str, tuple[str, ...]] = {
    "examples": ("examples.parquet",),
    "program": ("program.json",),
    "base": ("base.json", "policies.parquet"),
    "prompts": ("state.json",),
    "rollout": ("rollouts.parquet", "invocations.parquet"),
    "teacher": ("rollouts.parquet", "invocations.parquet"),
    "group": ("groups.parquet", "excluded.parquet"),
    "logprobs": ("logprobs.parquet",),
    "train": (),
    "evaluate": ("scores.parquet", "invocations.parquet"),
    "drift": ("drift.parquet",),
    "ingest": ("examples.parquet", "rollouts.parquet", "invocations.parquet", "traces.parquet"),
}
"""Of every artifact of a stage: others read them by these names."""
_MADE_UP = "No stage writes that: somebody made it up."


def manifest_problem(manifest: Manifest) -> str | None:
    """What of a manifest no stage writes, the first of it in words; None where it is whole."""
    if manifest.manifest_digest != manifest.own_digest():
        return "its content does not give its own digest: it was changed after it was written"
    if manifest.key != digest(manifest.payload):
        return f"its payload does not give its key {manifest.key[:16]}…"
    found = next(_problems(manifest), None)
    return found and f"{found}. {_MADE_UP}"


def _problems(manifest: Manifest) -> Iterator[str]:
    stage, payload = manifest.stage, manifest.payload
    parts: tuple[tuple[str, type[Shape], Mapping[str, Any]], ...] = (
        ("payload", payloads.OF_STAGE.get(stage, Shape), payload),
        ("metrics", figures.OF_STAGE.get(stage, Shape), manifest.metrics),
        ("provenance", figures.Provenance, manifest.provenance),
    )
    for name, shape, found in parts:
        if problem := first_problem(name, shape, found):
            yield problem
    for name in ("stage", "stage_version") if stage in payloads.OF_STAGE else ():
        if payload[name] != getattr(manifest, name):
            yield f"payload.{name}: expected the manifest's {getattr(manifest, name)!r} (got {payload[name]!r})"
    for name in FILES.get(stage, ()):
        if name not in manifest.files:
            yield f"files: an artifact of the stage {stage} has a file {name}, which is not among them"
