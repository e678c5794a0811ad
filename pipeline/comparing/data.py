"""What two runs began with: recipe, data, program, base, and the machine that each was made on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.comparing.sides import Side
from schemas.examples import EXAMPLES
from schemas.parquet import read_frame
from stages.contract import Artifact

Pair = list[Any]
"""What it is in the first run and in the second."""


def recipe(a: Side, b: Side) -> dict[str, Pair]:
    """Fields of the recipe that differ."""
    return differing(flat(a.run.recipe), flat(b.run.recipe))


def data(a: Side, b: Side) -> dict[str, Any]:
    """How the examples differ: rows added, removed and changed, by example_id; and the snapshots of traces."""
    found: dict[str, Any] = {}
    mine, theirs = a.setup("examples"), b.setup("examples")
    if _digest(mine) != _digest(theirs):
        found["examples"] = [_digest(mine), _digest(theirs)]
        if mine is not None and theirs is not None:
            found["rows"] = _rows(mine, theirs)
            files = [side.manifest.payload["params"]["data"] for side in (mine, theirs)]
            found |= {"data_file": files} if files[0] != files[1] else {}
    snapshots = [_digest(side.setup("ingest")) for side in (a, b)]
    return found | ({"snapshot": snapshots} if snapshots[0] != snapshots[1] else {})


def _rows(a: Artifact, b: Artifact) -> dict[str, Any]:
    """Counts, and the ids of each kind."""
    old, new = (
        {row["example_id"]: row for row in read_frame(side.file("examples.parquet"), EXAMPLES).iter_rows(named=True)}
        for side in (a, b)
    )
    both = old.keys() & new.keys()
    ids = {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in both if old[name] != new[name]),
    }
    return {f"{name}": len(found) for name, found in ids.items()} | {"ids": ids}


def code(a: Side, b: Side) -> dict[str, Pair]:
    """What differs in the programs: their files by name, arguments, prompts and demonstrations."""
    programs = [side.setup("program") for side in (a, b)]
    identities = [{} if item is None else item.manifest.payload["params"]["identity"] for item in programs]
    found = differing(_named(identities[0]), _named(identities[1]))
    prompts = [_digest(side.setup("prompts")) for side in (a, b)]
    return found | ({"optimized prompts": prompts} if prompts[0] != prompts[1] else {})


def _named(identity: Mapping[str, Any]) -> dict[str, Any]:
    """A program's identity field by field; `state` stays whole, files and modules are taken apart."""
    plain = {name: value for name, value in identity.items() if name not in ("code", "files")}
    files = {f"{kind} {name}": digest for kind in ("code", "files") for name, digest in identity.get(kind, {}).items()}
    return {**plain, **files}


def base(a: Side, b: Side) -> dict[str, Pair]:
    """What differs in the base models: weights, tokenizer, template."""
    made = [side.setup("base") for side in (a, b)]
    parts = [{} if item is None else dict(item.manifest.payload["params"]["base"]) for item in made]
    return differing(parts[0], parts[1])


MACHINE = ("python", "platform", "cores", "cpu", "threads", "device")


def environment(a: Side, b: Side) -> dict[str, Pair]:
    """What differs in how they were made: package versions, our code's commit, machine, engines; all there were."""
    return differing(_environment(a), _environment(b))


def _environment(side: Side) -> dict[str, Any]:
    seen: dict[str, set[Any]] = {}
    for artifact in side.artifacts.values():
        for name, value in _told(artifact):
            seen.setdefault(name, set()).add(value)
    values = {name: sorted(found, key=str) for name, found in seen.items()}
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def _told(artifact: Artifact) -> Iterator[tuple[str, Any]]:
    told = artifact.manifest.provenance
    yield from ((f"package {name}", version) for name, version in told.get("packages", {}).items())
    yield from ((name, told[name]) for name in MACHINE if told.get(name) is not None)
    code = told.get("code", {})
    if code.get("commit") is not None:
        changed = f" with changes {code['dirty'][:12]}" if code.get("dirty") else ""
        yield "commit of mmgrpo", f"{code['commit'][:12]}{changed}"
    yield from (("engine", engine) for engine in artifact.manifest.metrics.get("engines") or {})


def differing(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Pair]:
    """Names whose values differ, with both values; None where one side has no such name."""
    names = sorted(left.keys() | right.keys())
    return {name: [left.get(name), right.get(name)] for name in names if left.get(name) != right.get(name)}


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A document with `section.field` for names."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _digest(artifact: Artifact | None) -> str | None:
    return artifact.digest if artifact else None
