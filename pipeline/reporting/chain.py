"""The chain of manifests of a run: which artifact was made from which, and which of them cannot be trusted any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.jobs import stage_of
from pipeline.reporting.data_chain import Box, Chain, Link, Mark
from pipeline.reporting.opened import STAGES, OpenRun, telemetry
from pipeline.tainted import Tainted, read_tainted
from schemas.manifest import Manifest


@dataclass(frozen=True)
class _Place:
    name: str
    label: str
    column: int | None
    stage: str
    key: str


def collect_chain(run: OpenRun) -> Chain:
    """Boxes for all that run.json names, links by the digests in their manifests."""
    tainted = read_tainted(run.folder)
    boxes, manifests = [], {}
    for place in _places(run):
        artifact = run.store.find(place.stage, place.key)
        seconds = telemetry(artifact).get("seconds") if artifact else None
        if artifact is not None:
            manifests[place.name] = artifact.manifest
        mark = _mark(run, place, artifact.manifest if artifact else None, tainted)
        digest = artifact.digest if artifact else None
        boxes.append(Box(place.name, place.label, place.column, place.stage, place.key, digest, seconds, mark))
    return Chain(tuple(boxes), tuple(_links(manifests)))


def _places(run: OpenRun) -> Iterator[_Place]:
    for stage in STAGES:
        if stage in run.state.setup:
            yield _Place(f"setup/{stage}", stage, None, stage, run.state.setup[stage])
    for index, keys in enumerate(run.state.iterations):
        for name in sorted(keys, key=lambda name: (STAGES.index(stage_of(name)), name)):
            yield _Place(f"iterations/{index}/{name}", name.replace(".", " "), index, stage_of(name), keys[name])
    for stage, by_split in (("evaluate", run.state.evaluations), ("drift", run.state.drifts)):
        for split, keys in by_split.items():
            for at, policy in enumerate(run.state.policies):
                if policy in keys and run.state.policies.index(policy) == at:
                    column = at - 1 if at else None
                    yield _Place(f"{stage}/{split}/{at}", f"{stage} {split}", column, stage, keys[policy])


def _mark(run: OpenRun, place: _Place, manifest: Manifest | None, tainted: Tainted | None) -> Mark:
    if manifest is None:
        return "deleted" if run.store.deleted(place.stage, place.key) else "missing"
    if tainted is None:
        return ""
    policies = (manifest.metrics.get("policy"), manifest.payload["params"].get("policy"))
    return "tainted" if manifest.digest in tainted.artifacts or set(policies) & set(tainted.policies) else ""


def _links(manifests: dict[str, Manifest]) -> Iterator[Link]:
    """An adapter counts as its policy in a key, so that train and base artifacts are known by that too."""
    known: dict[str, list[str]] = {}
    for name, manifest in manifests.items():
        policy = manifest.metrics.get("policy") if manifest.stage in ("train", "base") else None
        for digest in filter(None, (manifest.digest, policy)):
            known.setdefault(digest, []).append(name)
    for name, manifest in manifests.items():
        for role, digest in sorted(manifest.payload["inputs"].items()):
            sources = [source for source in known.get(digest, ()) if source != name]
            if sources:
                yield Link(_of_stage(sources, manifests, role.partition(".")[0]), name, role)


def _of_stage(sources: list[str], manifests: dict[str, Manifest], stage: str) -> str:
    """The source that a role means: artifacts of two stages may hold the same bytes."""
    return next((source for source in sources if manifests[source].stage == stage), sources[0])
