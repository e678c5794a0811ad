"""Policies: the digests that later stages name follow from the adapters' bytes, and each from the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.audit.check import Check, Run, each
from pipeline.manifests import MANIFEST
from schemas.canonical import canonical_json
from schemas.parquet import read_rows
from schemas.policies import POLICIES, named_adapters, policy_digest
from stages.contract import Artifact


def recomputed(run: Run) -> Check:
    """Every policy from its base and the bytes of its adapters, and its place behind the one that it came from."""

    def look(artifact: Artifact) -> Iterator[str]:
        rows = _chain(artifact)
        if artifact.manifest.stage == "base":
            base = artifact.manifest.payload["params"]["base"]["base"]
            yield from _same(artifact, rows, [_row(policy_digest(base, {}), base, "{}", None, 0)])
            return
        inputs = run.graph.inputs(artifact)
        holder = inputs.get("previous") or inputs.get("base")
        if holder is None:
            yield f"{artifact.path / MANIFEST}: neither the policy that it went on from nor the base is there"
            return
        before = _chain(holder)
        if not artifact.manifest.metrics["trained"]:
            yield from _same(artifact, rows, before)
            return
        yield from adapter_problems(artifact)
        yield from _same(artifact, rows, [*before, _next(artifact, before)])

    return each(run, Check("policies follow from their adapters' bytes"), ("base", "train"), look)


def _next(artifact: Artifact, before: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of the policy that a train artifact made."""
    from stages.engines.adapters import read_adapters

    adapters = read_adapters(artifact.path).digests()
    base, parent = before[0]["base"], before[-1]["policy"]
    iteration = int(artifact.manifest.payload["params"]["iteration"]) + 1
    return _row(policy_digest(base, adapters), base, canonical_json(adapters), parent, iteration)


def _row(policy: str, base: str, adapters: str, parent: str | None, iteration: int) -> dict[str, Any]:
    return {"policy": policy, "base": base, "adapters": adapters, "parent": parent, "iteration": iteration}


def _same(artifact: Artifact, rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> Iterator[str]:
    path = artifact.file("policies.parquet")
    if len(rows) != len(expected):
        yield f"{path}: {len(rows)} policies, expected {len(expected)}"
    for found, wanted in zip(rows, expected, strict=False):
        for name, value in wanted.items():
            if found[name] != value:
                yield f"{path}: {name} of policy {found['policy'][:12]} is {found[name]}, expected {value}"
    named = artifact.manifest.metrics["policy"]
    if named != expected[-1]["policy"]:
        yield f"{artifact.path / MANIFEST}: it names the policy {named[:12]}, expected {expected[-1]['policy'][:12]}"


def _chain(artifact: Artifact) -> list[dict[str, Any]]:
    return sorted(read_rows(artifact.file("policies.parquet"), POLICIES), key=lambda row: row["iteration"])


def adapter_problems(artifact: Artifact) -> Iterator[str]:
    """The bytes of the adapters give their digests, and those the policy which later stages say they sampled from."""
    from stages.engines.adapters import read_adapters

    policy = artifact.manifest.metrics["policy"]
    path = artifact.file("policies.parquet")
    rows = {row["policy"]: row for row in read_rows(path, POLICIES)}
    row = rows.get(policy)
    if row is None:
        yield f"{path}: lacks the policy {policy[:12]} that the manifest names"
        return
    adapters = named_adapters(path, policy)
    if policy_digest(row["base"], adapters) != policy:
        yield f"{path}: policy {policy[:12]} does not follow from its base and adapters"
    there = read_adapters(artifact.path)
    found = there.digests()
    for module in sorted(adapters.keys() | found.keys()):
        if adapters.get(module) != found.get(module):
            where = there.by_module.get(module, artifact.path)
            was, named = (str(digests.get(module))[:12] for digests in (found, adapters))
            yield f"{where}: the digest of the adapter of '{module}' is {was}, the policy names {named}"
    before = named_adapters(path, row["parent"]) if row["parent"] in rows else {}
    yield from _kept(artifact, before, adapters)


def _kept(artifact: Artifact, before: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """An adapter that took no step is the one that it was."""
    told = artifact.manifest.metrics.get("adapters", {})  # earlier releases had one adapter, which took every step
    for name, figures in told.items():
        changed = [module for module in figures["modules"] if before.get(module) != now.get(module)]
        if changed and not figures["steps"]:
            modules = ", ".join(changed)
            yield f"{artifact.path}: the adapter '{name}' of {modules} took no step, but is another than before"
