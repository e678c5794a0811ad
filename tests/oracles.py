"""The group stage in plain Python: slow, obvious, one rule after the other. What the fast one is compared with.

Written from the rules, not from the code: dictionaries and lists, whole numbers and fractions, no Polars. The only
thing it shares with the stage are the definitions that both must draw from: the hash behind seeded draws and group
ids, spelled out here again with Python's integers.
"""

from __future__ import annotations

import json
import math
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


def group_rows(
    rollouts: list[Row], calls: list[Row], policies: list[Row], recipe: Recipe
) -> tuple[list[Row], list[Row]]:
    """The rows of groups.parquet (without order columns of the file) and of excluded.parquet."""
    return Oracle(rollouts, calls, policies, recipe).run()


class Oracle:
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

    def run(self) -> tuple[list[Row], list[Row]]:
        self.excluded_rollouts = self._excluded_rollouts()
        self._mark_attempts()
        self._judge()
        rows = self._trajectories() if self.group.unit == "trajectory" else self._invocations()
        return rows, self._excluded(rows)

    # rollouts that are left out as a whole

    def _excluded_rollouts(self) -> dict[str, str]:
        out: dict[str, str] = {}
        for r in self.rollouts:
            if self.age.get(r["policy"], 0) > self.group.staleness:
                out[r["rollout_id"]] = "stale"
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

    # groups of invocations

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

    def _invocations(self) -> list[Row]:
        for c in self.calls:
            c["key"] = self._key(c)
        groups: dict[tuple[str, str, int, int], list[Row]] = defaultdict(list)
        sets = {(self.of[c["rollout_id"]]["example_id"], c["module"], c["key"]) for c in self.calls}
        for example, module, key in sets:
            for position, member in self._padded(example, module, key):
                groups[example, module, key, position].append(member)
        return self._finish(groups)

    def _padded(self, example: str, module: str, key: int) -> list[tuple[int, Row]]:
        mine = [
            c for c in self.calls
            if (self.of[c["rollout_id"]]["example_id"], c["module"], c["key"]) == (example, module, key)
        ]  # fmt: skip
        lanes: dict[str, list[Row]] = defaultdict(list)
        reach: dict[str, int] = {}
        for c in mine:
            if c["final"]:
                reach[c["rollout_id"]] = max(reach.get(c["rollout_id"], -1), c["invocation_index"])
                if c["reason"] is None:
                    lanes[c["rollout_id"]].append(c)
        if self.group.strict:
            live = [
                r for r in self.rollouts if r["example_id"] == example and r["rollout_id"] not in self.excluded_rollouts
            ]
            if len(lanes) < len(live):
                self._leave_out(mine, "strict")
                lanes = {}
        if self.group.pad == "truncate" and lanes:
            end = min(reach[name] for name in lanes)
            self._leave_out([c for c in mine if c["invocation_index"] > end], "position_truncated")
        found = [(c["invocation_index"], self._member(c, "none")) for c in mine if c["reason"] is None]
        if self.group.pad in ("fill", "fill_last"):
            positions = {position for position, member in found if not member["early"]}
            for name, own in lanes.items():
                holes = [position for position in sorted(positions) if position > reach[name]]
                found += [(at, self._member(self._source(own, module, at), "fill")) for at in holes]
        return found

    def _source(self, own: list[Row], module: str, position: int) -> Row:
        if self.group.pad == "fill_last":
            return own[-1]
        draw = chain(mix(self.recipe.seed), own[0]["rollout_id"], name_hash(0, module), position)
        return own[draw % len(own)]

    @staticmethod
    def _leave_out(calls: list[Row], reason: str) -> None:
        for c in calls:
            if c["reason"] is None:
                c["reason"] = reason

    def _member(self, c: Row, kind: str) -> Row:
        teacher = self.of[c["rollout_id"]]["source"].split(":")[0] == "teacher"
        return {
            "call": c,
            "copy_kind": kind,
            "early": c["early"],
            "q": c["q"],
            "teacher": teacher,
            "rollout": c["rollout_id"],
        }

    # selection, advantages, weights

    def _finish(self, groups: dict[tuple[str, str, int, int], list[Row]]) -> list[Row]:
        table: list[tuple[tuple[str, str, int, int], list[Row]]] = []
        formed: dict[tuple[str, str], int] = defaultdict(int)
        for place in sorted(groups):
            members = sorted(groups[place], key=lambda m: (self.order[m["rollout"]], m["early"]))
            counted = [m for m in members if not m["early"]]
            thin = sum(not m["teacher"] for m in counted) < self.group.min_group
            chosen = [[m] for m in counted] if thin else self._select(place, counted)
            baseline = self._example_baseline(place) if thin and counted else None
            for m in members:
                m["thin"], m["baseline"], m["all"] = thin, baseline, counted
                m["chosen"] = [copy for copies in chosen for copy in copies]
            if thin and baseline is None:
                self._leave_out([c for m in members for c in _calls(m)], "small_group")
                continue
            formed[place[0], place[1]] += 1
            kept = [copy for copies in chosen for copy in copies]
            for m in counted:
                m["selected"] = any(copy is m for copy in kept)
            everyone = sorted(
                [*kept, *(m for m in members if m["early"])], key=lambda m: (self.order[m["rollout"]], m["early"])
            )
            table.append((place, everyone))
        deviations = self._module_deviations(table)
        rows: list[Row] = []
        for place, members in table:
            rows += self._rows(place, members, deviations, formed)
        return rows

    def _select(self, place: tuple[str, str, int, int], members: list[Row]) -> list[list[Row]]:
        """Per member the times it is kept: [] when left out, [m, copy, copy] with two extra copies."""
        k, mode, n = self.k, self.group.select, len(members)
        if mode == "all" or n == 0:
            return [[m] for m in members]
        ranked = sorted(members, key=lambda m: (m["q"], m["copy_kind"] != "none", self.order[m["rollout"]]))
        if mode == "even":
            places = (
                [(n - 1) // 2]
                if k == 1
                else [math.floor(Fraction(t * (n - 1), k - 1) + Fraction(1, 2)) for t in range(k)]
            )
            return [[m] * sum(ranked[at] is m for at in places) for m in members]
        if mode == "random":
            return self._random(place, members)
        if n == k:
            return [[m] for m in members]
        if n > k:
            kept = self._outermost(ranked)
            return [[m] if any(m is other for other in kept) else [] for m in members]
        return self._with_copies(members)

    def _random(self, place: tuple[str, str, int, int], members: list[Row]) -> list[list[Row]]:
        example, module, key, position = place
        n = len(members)
        if n <= self.k:
            state = chain(mix(self.recipe.seed), example, name_hash(2, module), key, position)
            times = [1] * n
            for turn in range(self.k - n):
                times[chain(state, turn) % n] += 1
            return [[m] * count for m, count in zip(members, times, strict=True)]
        draws = [chain(mix(self.recipe.seed), m["rollout"], name_hash(1, module), position) for m in members]
        kept = sorted(range(n), key=lambda at: draws[at])[: self.k]
        return [[m] if at in kept else [] for at, m in enumerate(members)]

    def _outermost(self, ranked: list[Row]) -> list[Row]:
        """Greatest variance over every cut; then fewest copies; then most high rewards; then preference."""
        n, k = len(ranked), self.k
        best: tuple[Any, ...] | None = None
        chosen: list[Row] = []
        for j in range(k + 1):
            wanted = [m["q"] for m in ranked[:j]] + [m["q"] for m in ranked[n - k + j :]]
            kept: list[Row] = []
            for value in sorted(set(wanted)):
                kept += [m for m in ranked if m["q"] == value][: wanted.count(value)]
            score = (-_variance(wanted), sum(m["copy_kind"] != "none" for m in kept), j)
            if best is None or score < best:
                best, chosen = score, kept
        return chosen

    def _with_copies(self, members: list[Row]) -> list[list[Row]]:
        """Every member once, and K - n copies of the least and the greatest: the best split, most of the greatest."""
        extra = self.k - len(members)
        values = [m["q"] for m in members]
        low, high = min(values), max(values)
        top = max(range(extra + 1), key=lambda b: (_variance(values + [high] * b + [low] * (extra - b)), b))
        times = {id(m): 1 for m in members}
        for value, count in ((high, top), (low, extra - top)):
            ends = [m for m in members if m["q"] == value]
            ends = [m for m in ends if m["copy_kind"] == "none"] or ends
            for turn in range(count):
                times[id(ends[turn % len(ends)])] += 1
        return [[m] * times[id(m)] for m in members]

    def _example_baseline(self, place: tuple[str, str, int, int]) -> list[int] | None:
        if self.group.small_groups != "example_baseline" or self.group.unit == "trajectory":
            return None
        live = [
            r for r in self.rollouts
            if r["example_id"] == place[0] and r["rollout_id"] not in self.excluded_rollouts
            and r["source"].split(":")[0] != "teacher"
        ]  # fmt: skip
        values = [value for r in live if (value := self.carried(r, place[1])) is not None]
        return values if len(values) >= self.group.min_group else None

    def _scope(self, m: Row) -> list[Row]:
        """The members that mean and deviation are over, with their multiplicity."""
        if m["thin"] or self.group.baseline_over == "all":
            return list(m["all"])
        return list(m["chosen"])

    def _module_deviations(self, table: list[tuple[tuple[str, str, int, int], list[Row]]]) -> dict[str, float]:
        values: dict[str, list[int]] = defaultdict(list)
        for place, members in table:
            if members and not members[0]["thin"]:
                values[place[1]] += [m["q"] for m in self._scope(members[0])]
        return {module: self._deviation(found) for module, found in values.items()}

    def _deviation(self, values: list[int]) -> float:
        n = len(values)
        if n <= self.group.ddof or n < 2:
            return 0.0
        return math.sqrt(_variance(values) * n / (n - self.group.ddof))

    def _rows(
        self,
        place: tuple[str, str, int, int],
        members: list[Row],
        deviations: dict[str, float],
        formed: dict[tuple[str, str], int],
    ) -> list[Row]:
        scope = self._scope(members[0]) if members else []
        thin = bool(members) and members[0]["thin"]
        values = members[0]["baseline"] if thin else [m["q"] for m in scope]
        for m in members[0]["all"] if members else []:
            if not m.get("selected", True):
                self._maybe(m, "not_selected")
        if not values:
            return []
        flat = max(values) - min(values) <= round(self.group.min_spread * MICRO)
        if flat and self.group.flat == "drop":
            for m in members:
                self._maybe(m, "flat_group")
            return []
        scale = {
            "none": float(MICRO),
            "group_std": self._deviation(values) + self.group.eps * MICRO,
            "module_std": deviations.get(place[1], 0.0) + self.group.eps * MICRO,
        }[self.group.scale]
        weight = 1.0 / formed[place[0], place[1]] if self.recipe.train.balance == "module" else 1.0
        rows = []
        seen: set[int] = set()
        for m in members:
            gap = 0.0 if flat else float(m["q"] - self._baseline(m, values, thin=thin))
            kind = "select" if id(m) in seen else m["copy_kind"]
            seen.add(id(m))
            tokens = sum(len(c["completion_ids"]) for c in _calls(m))
            for c in _calls(m):
                if self.group.unit == "trajectory":
                    weight = (len(c["completion_ids"]) if self.recipe.train.balance == "sequence" else 1) / tokens
                rows.append(self._row(place, c, kind, gap / scale, weight, m["q"]))
        return rows

    def _baseline(self, m: Row, values: list[int], *, thin: bool) -> Fraction:
        if thin:
            return Fraction(sum(values), len(values))
        scope = [other for other in self._scope(m) if not other["teacher"]]
        scope = scope or [other for other in m["all"] if not other["teacher"]]
        if self.group.baseline == "leave_one_rollout_out" and any(not o["teacher"] for o in self._scope(m)):
            others = [other for other in scope if other["rollout"] != m["rollout"]]
            scope = others or scope
        return Fraction(sum(other["q"] for other in scope), len(scope))

    def _row(self, place: tuple[str, str, int, int], c: Row, kind: str, advantage: float, weight: float, q: int) -> Row:
        example, module, key, position = place
        lanes = [chain(mix(lane), example) for lane in (1, 2)]
        text = "".join(
            f"{chain(state, name_hash(lane, module), key, position):016x}"
            for lane, state in zip((1, 2), lanes, strict=True)
        )
        r = self.of[c["rollout_id"]]
        trajectory = module == "*"
        return {
            "group_id": text[:20],
            "example_id": example,
            "module": c["module"] if trajectory else module,
            "invocation_index": c["invocation_index"] if trajectory else position,
            "rollout_id": c["rollout_id"],
            "call_index": c["call_index"],
            "attempt": c["attempt"],
            "copy_kind": kind,
            "source": r["source"],
            "policy": r["policy"],
            "reward": q / MICRO,
            "advantage": advantage,
            "weight": weight,
        }

    # groups of trajectories

    def _trajectories(self) -> list[Row]:
        groups: dict[tuple[str, str, int, int], list[Row]] = defaultdict(list)
        for r in self.rollouts:
            mine = [c for c in self.calls if c["rollout_id"] == r["rollout_id"]]
            self._leave_out([c for c in mine if not c["final"]], "earlier_attempt")
            order = [
                "stale",
                "source_cap",
                "reward_missing",
                "context_overflow",
                "no_completion",
                "truncated",
                "upstream_of_failure",
            ]
            lost = [c["reason"] for c in mine if c["final"] and c["reason"] not in (None, "not_trainable")]
            if lost:
                self._leave_out(mine, min(lost, key=order.index))
            usable = [c for c in mine if c["reason"] is None]
            if usable:
                cut = any(
                    c["final"] and c["trainable"] and c["lm"] == "student" and c["finish_reason"] == "length"
                    for c in mine
                )
                q = micro(self.group.failure_score)
                if r["status"] == "parse_failed":
                    q = self._format_reward(self._worst(r["rollout_id"]))
                elif r["status"] == "ok" and not cut:
                    q = micro(r["reward"])
                stand_in = {"rollout_id": r["rollout_id"], "calls": usable, "early": False, "q": q, "reason": None}
                groups[r["example_id"], "*", 0, 0].append(self._member(stand_in, "none"))
        return self._finish(groups)

    @staticmethod
    def _maybe(m: Row, reason: str) -> None:
        for c in _calls(m):
            c.setdefault("fate", reason)

    # what is in no group

    def _excluded(self, rows: list[Row]) -> list[Row]:
        used = {(row["rollout_id"], row["call_index"]) for row in rows}
        out = []
        for c in self.calls:
            if (c["rollout_id"], c["call_index"]) not in used:
                reason = c["reason"] or c.get("fate", "small_group")
                names = ("rollout_id", "call_index", "module", "invocation_index", "attempt")
                out.append({**{name: c[name] for name in names}, "reason": reason})
        called = {c["rollout_id"] for c in self.calls}
        for r in self.rollouts:
            if r["rollout_id"] not in called:
                nothing = dict.fromkeys(("call_index", "module", "invocation_index", "attempt"))
                out.append({"rollout_id": r["rollout_id"], **nothing, "reason": "no_calls"})
        return out


def _calls(m: Row) -> list[Row]:
    """The calls of a member: its own, or those of its trajectory."""
    return list(m["call"].get("calls", [m["call"]]))


def _distinct(rows: list[Row]) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        if row not in found:
            found.append(dict(row))
    return found


def _variance(values: list[int]) -> Fraction:
    """Population variance, exactly."""
    n, total = len(values), sum(values)
    return Fraction(n * sum(value * value for value in values) - total * total, n * n)
