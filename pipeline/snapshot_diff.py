"""What came, went and changed from one snapshot to another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stages.contract import Artifact
from stages.ingest.records import fingerprint, records_of

SHOWN = 10
"""Ids that are shown of each kind; all with --json."""


@dataclass(frozen=True)
class Change:
    """Ids by what happened to them, sorted."""

    came: tuple[str, ...]
    went: tuple[str, ...]
    changed: tuple[str, ...]
    same: int


@dataclass(frozen=True)
class Difference:
    """From one snapshot to another."""

    before: str
    """Digest."""
    after: str
    settings: tuple[str, ...]
    """What differs in how they were made."""
    traces: Change
    rollouts: Change
    metrics: dict[str, tuple[Any, Any]]
    """Counts that differ: before and after."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def diff(before: Artifact, after: Artifact) -> Difference:
    """Compare two snapshots, trace by trace and rollout by rollout."""
    from pipeline.jobs import changes

    old, new = _contents(before), _contents(after)
    keys = [{"recipe": item.manifest.payload["recipe"]} for item in (before, after)]
    figures = [item.manifest.metrics for item in (before, after)]
    names = sorted(figures[0].keys() & figures[1].keys())
    return Difference(
        before=before.digest,
        after=after.digest,
        settings=tuple(changes(*keys)),
        traces=_change(old[0], new[0]),
        rollouts=_change(old[1], new[1]),
        metrics={name: (figures[0][name], figures[1][name]) for name in names if figures[0][name] != figures[1][name]},
    )


def _contents(snapshot: Artifact) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of what is held of each trace, and of each rollout."""
    traces: dict[str, str] = {}
    rollouts: dict[str, str] = {}
    for record in records_of(snapshot.path):
        traces[record.id] = fingerprint(record, scored=True)
        if record.rollout is not None:
            rollouts[record.rollout["rollout_id"]] = traces[record.id]
    return traces, rollouts


def _change(old: dict[str, str], new: dict[str, str]) -> Change:
    both = old.keys() & new.keys()
    changed = sorted(name for name in both if old[name] != new[name])
    came, went = sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())
    return Change(tuple(came), tuple(went), tuple(changed), len(both) - len(changed))


def render(found: Difference) -> str:
    """In words: counts, and the first ids of each kind."""
    lines = [f"from {found.before[:12]} to {found.after[:12]}"]
    lines += [f"made with other settings: {line}" for line in found.settings]
    for what, change in (("traces", found.traces), ("rollouts", found.rollouts)):
        lines.append(
            f"{what}: {len(change.came)} came, {len(change.went)} went, {len(change.changed)} changed, "
            f"{change.same} as before"
        )
        for word, names in (("came", change.came), ("went", change.went), ("changed", change.changed)):
            more = f" and {len(names) - SHOWN} more (--json)" if len(names) > SHOWN else ""
            lines += [f"  {word}: {', '.join(names[:SHOWN])}{more}"] if names else []
    lines += [f"{name.replace('_', ' ')}: {was} -> {now}" for name, (was, now) in found.metrics.items()]
    return "\n".join(lines)
