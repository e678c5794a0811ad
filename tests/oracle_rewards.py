"""The plain version of the group stage, first part: seeded draws, what each call is worth, and what is left out."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from typing import Any

from schemas.recipe import Recipe

Row = dict[str, Any]
MASK = 2**64 - 1
MICRO = 10**6


# --- seeded draws -----------------------------------------------------------------------------------------------------


def mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def chain(state: int, *values: int | str) -> int:
    """Numbers and texts chained onto a hash: texts eight bytes at a time, then their length in bytes."""
    for value in values:
        if isinstance(value, str):
            data = value.encode()
            for at in range(0, len(data), 8):
                state = mix(state ^ int.from_bytes(data[at : at + 8], "little"))
            state = mix(state ^ len(data))
        else:
            state = mix(state ^ (value & MASK))
    return state


def name_hash(salt: int, name: str) -> int:
    return chain(mix(salt), name)


# --- rewards and exclusions -------------------------------------------------------------------------------------------


def micro(value: float) -> int:
    return round(value * MICRO)


class Judge:
    """Rollouts and calls, each call with its reward `q` or the `reason` why it is left out."""

    def __init__(self, rollouts: list[Row], calls: list[Row], policies: list[Row], recipe: Recipe) -> None:
        self.recipe, self.group = recipe, recipe.group
        self.k = recipe.group.k or recipe.rollout.rollouts
        self.rollouts = sorted(
            _distinct(rollouts), key=lambda r: (r["example_id"], r["rollout_index"], r["rollout_id"])
        )
        self.of = {r["rollout_id"]: r for r in self.rollouts}
        self.order = {r["rollout_id"]: at for at, r in enumerate(self.rollouts)}
        self.calls = sorted(_distinct(calls), key=lambda c: (self.order[c["rollout_id"]], c["call_index"]))
        newest = sorted(policies, key=lambda p: (p["iteration"], p["policy"]), reverse=True)
        self.age = {p["policy"]: at for at, p in enumerate(newest)}
        self.reason: dict[tuple[str, int], str] = {}

    def _leave_out_first(self) -> None:
        self.excluded_rollouts = self._excluded_rollouts()
        self._mark_attempts()
        self._judge()

    # rollouts that are left out as a whole

    def _excluded_rollouts(self) -> dict[str, str]:
        out: dict[str, str] = {}
        for r in self.rollouts:
            if self.age.get(r["policy"], 0) > self.group.staleness:
                out[r["rollout_id"]] = "stale"
            elif r["status"] in ("engine_error", "metric_error") and self.group.outage == "exclude":
                out[r["rollout_id"]] = "not_scored"
            elif r["status"] == "ok" and r["reward"] is None:
                out[r["rollout_id"]] = "reward_missing"
        for example in {r["example_id"] for r in self.rollouts}:
            mine = [r for r in self.rollouts if r["example_id"] == example and r["rollout_id"] not in out]
            free = sum(self._cap(r) is None for r in mine)
            used: dict[str, int] = defaultdict(int)
            for r in mine:
                cap = self._cap(r)
                if cap is None or cap[1] >= 1:
                    continue
                used[cap[0]] += 1
                share = Fraction(cap[1]).limit_denominator(1000)
                if used[cap[0]] > share * (used[cap[0]] + free):
                    out[r["rollout_id"]] = "source_cap"
        return out

    def _cap(self, r: Row) -> tuple[str, float] | None:
        for name in (r["source"], r["source"].split(":")[0]):
            if name in self.group.source_caps:
                return name, self.group.source_caps[name]
        return None

    # attempts

    def _mark_attempts(self) -> None:
        tries: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
        for c in self.calls:
            c["again"] = c["final"] = c["early"] = False
            same = tries[c["rollout_id"], c["module"], c["invocation_index"]]
            if any(other["attempt"] == c["attempt"] for other in same):
                c["again"] = True
            else:
                same.append(c)
        for same in tries.values():
            same.sort(key=lambda c: c["attempt"])
            same[-1]["final"] = True
            failed = [c for c in same[:-1] if c["parse_status"] == "failed"]
            if failed:
                failed[0]["early"] = True

    # what each call is worth, or why it is left out

    def _format_reward(self, share: float | None) -> int:
        low, high = self.group.format_failure_score, self.group.failure_score
        return micro(low + (share or 0.0) * (high - low))

    def _worst(self, rollout: str) -> float:
        failed = [c for c in self.calls if c["rollout_id"] == rollout and c["final"] and c["parse_status"] == "failed"]
        return min((c["parsed_share"] or 0.0 for c in failed), default=0.0)

    def carried(self, r: Row, module: str) -> int | None:
        """What a sound call of `module` is worth in a rollout."""
        if r["status"] == "ok":
            mixed = self.group.credit.get(module)
            if mixed is None:
                return None if r["reward"] is None else micro(r["reward"])
            parts = json.loads(r["reward_parts"] or "{}")
            values = {name: r["reward"] if name == "reward" else parts.get(name) for name in mixed}
            if any(value is None for value in values.values()):
                return None
            return micro(sum(weight * values[name] for name, weight in mixed.items()))
        if r["status"] == "parse_failed" and self.group.upstream_on_failure == "format":
            return self._format_reward(self._worst(r["rollout_id"]))
        return micro(self.group.failure_score)

    def _judge(self) -> None:
        for c in self.calls:
            r, failed = self.of[c["rollout_id"]], c["parse_status"] == "failed"
            cut = c["finish_reason"] == "length"
            c["q"] = self.carried(r, c["module"])
            rules = [
                ("duplicate", c["again"]),
                ("not_trainable", not c["trainable"] or c["lm"] != "student"),
                (self.excluded_rollouts.get(c["rollout_id"]), c["rollout_id"] in self.excluded_rollouts),
                ("reward_missing", c["q"] is None),
                ("context_overflow", c["finish_reason"] == "context_overflow"),
                ("no_completion", not c["completion_ids"]),
                ("concurrent", c["concurrent"] and not self.group.admit_concurrent and self.group.unit == "invocation"),
                ("truncated", cut and self.group.truncated == "mask"),
                ("earlier_attempt", not c["final"] and not c["early"]),
                (
                    "upstream_of_failure",
                    r["status"] == "parse_failed" and not failed and self.group.upstream_on_failure == "exclude",
                ),
            ]
            c["reason"] = next((name for name, applies in rules if applies), None)
            if failed:
                c["q"] = self._format_reward(c["parsed_share"])
            elif cut:
                c["q"] = micro(self.group.failure_score)

    # the key of a group beyond (example, module, position)

    def _key(self, c: Row) -> int:
        """The hash of the key columns' values."""
        if not self.group.key_columns:
            return 0
        state = mix(0)
        for name in self.group.key_columns:
            if name == "path":
                state = chain(state, self._path(c))
            else:
                value = c[name]
                text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
                state = chain(state, text, int(value is None))
        return state

    def _path(self, c: Row) -> int:
        """A sum over the invocations that began before this one's first attempt: a term of (module, rank)."""
        mine = [other for other in self.calls if other["rollout_id"] == c["rollout_id"]]
        begun: list[tuple[str, int]] = []
        for other in mine:
            place = other["module"], other["invocation_index"]
            if place == (c["module"], c["invocation_index"]):
                break
            if place not in begun:
                begun.append(place)
        return sum(mix(name_hash(1, module) ^ (rank + 1)) for rank, (module, _) in enumerate(begun)) & MASK


def _distinct(rows: list[Row]) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        if row not in found:
            found.append(dict(row))
    return found
