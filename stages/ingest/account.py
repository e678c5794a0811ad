"""What a snapshot holds, counted from its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from stages.ingest.records import Record

NAMED = 50
"""Names of scores, at most, that are counted by themselves in the manifest: the most frequent ones."""


@dataclass
class Account:
    """Counts of what was read."""

    traces: int = 0
    rollouts: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    rewards: Counter[str] = field(default_factory=Counter)
    fidelity: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)
    scores: Counter[str] = field(default_factory=Counter)
    """Rollouts by the names of the scores that were logged of them."""
    siblings: Counter[int] = field(default_factory=Counter)
    """Examples by the number of their rollouts."""

    def count(self, record: Record) -> None:
        """Add what came of a trace; why it has no reward is counted when it is scored."""
        self.traces += 1
        for row in record.left_out:
            self.calls[row["reason"]] += 1
        if record.trace["redacted"] != "{}":
            self.redacted.update(orjson.loads(record.trace["redacted"]))
        if record.rollout is None:
            self.reasons[str(record.trace["reason"])] += 1
            return
        self.rollouts += 1
        if record.trace["scores"] != "{}":
            self.scores.update(orjson.loads(record.trace["scores"]).keys())
        for row in record.invocations:
            self.modules[row["module"]] += 1
            self.fidelity[row["fidelity"]] += 1
        for reason, count in orjson.loads(record.trace["fidelity_reasons"]).items():
            self.why[reason] += count

    def as_json(self) -> dict[str, Any]:
        """The counts as JSON values, of records whose tables are not made yet."""
        assert not self.siblings
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "siblings"}

    @classmethod
    def of_json(cls, counts: dict[str, Any]) -> Account:
        """What `as_json` gave."""
        made = cls()
        for name, count in counts.items():
            setattr(made, name, count if isinstance(count, int) else Counter(count))
        return made

    def add(self, other: Account) -> None:
        """Add the counts of another account."""
        for item in fields(self):
            mine, its = getattr(self, item.name), getattr(other, item.name)
            setattr(self, item.name, mine + its)

    def metrics(self) -> dict[str, Any]:
        """The counts, for the manifest."""
        named = {
            "left_out_traces": self.reasons,
            "left_out_calls": self.calls,
            "no_reward": self.rewards,
            "fidelity": self.fidelity,
            "fidelity_reasons": self.why,
            "redacted": self.redacted,
            "modules": self.modules,
            "scores": Counter(dict(self.scores.most_common(NAMED))),
        }
        return {
            "traces": self.traces,
            "rollouts": self.rollouts,
            "invocations": sum(self.modules.values()),
            "examples": sum(self.siblings.values()),
            "examples_with_siblings": sum(count for size, count in self.siblings.items() if size > 1),
            **{name: dict(sorted(counts.items())) for name, counts in named.items()},
        }
