"""What is done in a run that trained on traces which are to be forgotten: bytes purged, adapters marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.reached import Reach, Sought, reach
from pipeline.remote.attached import removed
from pipeline.reporting.build import NUMBERS, PAGE
from pipeline.runfile import read_run
from pipeline.tainted import Tainted, mark, read_tainted
from pipeline.tombstones import Tombstone, bury, tombstone_of
from stages.contract import Artifact


@dataclass(frozen=True)
class Purged:
    """What was found and done in a run."""

    run: str
    lines: tuple[str, ...]
    """One for each thing, in words; empty where the traces had not been there."""
    policies: tuple[str, ...]
    """Digests of the policies that learnt from them."""


def purge(run: Path, sought: Sought, stones: Mapping[str, Tombstone]) -> Purged:
    """See to one run, whose lock is held. Marks come first: what is marked may not leave the run.

    Args:
        run: its folder.
        sought: what is to be forgotten.
        stones: tombstones of the snapshots that held it, by their keys: the run's copies have the same ones.

    Raises:
        DataError: when the run is damaged.
    """
    found = reach(run, sought)
    if not found:
        return Purged(str(run), (), ())
    state = read_run(run)
    stone = next(iter(stones.values()))
    clean = [policy for policy in state.policies if policy not in found.policies]
    mark(
        run,
        Tainted(
            traces=stone.traces,
            artifacts=tuple(sorted(found.digests)),
            policies=tuple(sorted(found.policies)),
            clean=clean[-1] if clean else None,
            successor=_instead(run, found, stones),
            at=stone.at,
        ),
    )
    lines = [*_buried(run, found, stones, stone), *_reports(run), *_told(run, found)]
    return Purged(str(run), tuple(lines), tuple(sorted(found.policies)))


def _buried(run: Path, found: Reach, stones: Mapping[str, Tombstone], stone: Tombstone) -> list[str]:
    lines = []
    for artifact in found.held.values():
        own = stones.get(artifact.manifest.key)
        if tombstone_of(artifact.path) is None:
            bury(artifact.path, own or stone.model_copy(update={"artifact": artifact.digest}))
        after = f"; its successor is {own.successor}" if own and own.successor else ""
        lines.append(f"purged: {_name(run, artifact)}, which held them{after}")
    return lines


def _instead(run: Path, found: Reach, stones: Mapping[str, Tombstone]) -> str | None:
    """What the run is to be trained with: the successor of the snapshot that it has taken in last."""
    held = {artifact.manifest.key: stones.get(artifact.manifest.key) for artifact in found.held.values()}
    newest = read_run(run).setup.get("ingest", "")
    own = held.get(newest) or next((stone for stone in held.values() if stone), None)
    if own is None and (before := read_tainted(run)) is not None:
        return before.successor
    return (own or next(iter(stones.values()))).successor


def _reports(run: Path) -> list[str]:
    """The report shows samples; `mmgrpo run` writes it anew."""
    there = [run / name for name in (PAGE, NUMBERS) if (run / name).exists()]
    for path in there:
        removed(path)
        path.unlink()
    return [f"purged: {path.name}, which may show them" for path in there]


def _told(run: Path, found: Reach) -> list[str]:
    return [f"{_WORDS[artifact.manifest.stage]}: {_name(run, artifact)}: {how}" for artifact, how in _sorted(found)]


def _sorted(found: Reach) -> list[tuple[Artifact, str]]:
    order = list(_WORDS)
    return sorted(found.reached.values(), key=lambda item: (order.index(item[0].manifest.stage), str(item[0].path)))


def _name(run: Path, artifact: Artifact) -> str:
    return artifact.path.relative_to(run).as_posix()


_WORDS = {
    "group": "groups",
    "logprobs": "log-probabilities",
    "train": "adapter, blocked from export",
    "prompts": "prompts and demonstrations",
    "rollout": "rollouts and judge calls",
    "teacher": "a teacher's rollouts",
    "evaluate": "scores",
    "drift": "drift of policies",
    "examples": "examples",
    "program": "program",
    "base": "base",
    "ingest": "snapshot",
}
