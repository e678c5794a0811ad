"""The group stage in plain Python: slow, obvious, one rule after the other. What the fast one is compared with.

Written from the rules, not from the code: dictionaries and lists, whole numbers and fractions, no Polars. The only
thing it shares with the stage are the definitions that both must draw from: the hash behind seeded draws and group
ids, spelled out here again with Python's integers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from schemas.recipe import Recipe
from tests.oracle_rewards import MICRO, Row, chain, micro, mix, name_hash
from tests.oracle_selection import Selector, variance


def group_rows(
    rollouts: list[Row], calls: list[Row], policies: list[Row], recipe: Recipe
) -> tuple[list[Row], list[Row]]:
    """The rows of groups.parquet (without order columns of the file) and of excluded.parquet."""
    return Oracle(rollouts, calls, policies, recipe).run()


class Oracle(Selector):
    """Padding, baselines, advantages, weights, trajectories, and the account."""

    def run(self) -> tuple[list[Row], list[Row]]:
        self._leave_out_first()
        rows = self._trajectories() if self.group.unit == "trajectory" else self._invocations()
        return rows, self._excluded(rows)

    # groups of invocations

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

    def _students(self, m: Row) -> list[Row]:
        """The student's members in the scope; where none of them is, all of the student's."""
        chosen = [other for other in self._scope(m) if not other["teacher"]]
        return chosen or [other for other in m["all"] if not other["teacher"]]

    def _module_deviations(self, table: list[tuple[tuple[str, str, int, int], list[Row]]]) -> dict[str, float]:
        values: dict[str, list[int]] = defaultdict(list)
        for place, members in table:
            if members and not members[0]["thin"]:
                values[place[1]] += [m["q"] for m in self._students(members[0])]
        return {module: self._deviation(found) for module, found in values.items()}

    def _deviation(self, values: list[int]) -> float:
        n = len(values)
        if n <= self.group.ddof or n < 2:
            return 0.0
        return math.sqrt(variance(values) * n / (n - self.group.ddof))

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
        own = values if thin else [m["q"] for m in self._students(members[0])]
        scale = {
            "none": float(MICRO),
            "group_std": self._deviation(own) + self.group.eps * MICRO,
            "module_std": deviations.get(place[1], 0.0) + self.group.eps * MICRO,
        }[self.group.scale]
        everyone = self._deviation([m["q"] for m in scope]) + self.group.eps * MICRO
        teachers = scale if self.group.scale == "none" else max(scale, everyone)
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
                rows.append(self._row(place, c, kind, gap / (teachers if m["teacher"] else scale), weight, m["q"]))
        return rows

    def _baseline(self, m: Row, values: list[int], *, thin: bool) -> Fraction:
        if thin:
            return Fraction(sum(values), len(values))
        scope = self._students(m)
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
                "not_scored",
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
