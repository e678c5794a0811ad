"""A small run folder written with the real store and table writers: two modules, one of them called in a loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.browsing.section import script
from pipeline.metering import Meter
from pipeline.progress import Reporter
from pipeline.reporting.scripts import own_script
from pipeline.runfile import RunFile, write_run
from pipeline.store import Store
from schemas.canonical import canonical_json, digest
from schemas.drift import DRIFT
from schemas.examples import EXAMPLES, example_row
from schemas.groups import EXCLUDED, GROUPS
from schemas.made_up import FILES
from schemas.parquet import write_table
from schemas.policies import POLICIES
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.scores import SCORES
from schemas.table import TableSpec
from schemas.training import AGES, MODULES, RATIO_EDGES, STEPS

PROGRAM = digest("program")
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\x00\u202eevil"

Rows = list[dict[str, Any]]
Tables = dict[str, tuple[TableSpec, Rows]]


def written(page: str) -> str:
    """A page without the scripts that the report itself brings."""
    for own in (own_script(), script()):
        page = page.replace(f"<script>{own}</script>", "")
    return page.replace('<script type="application/json" class="rb-data">', "")


FIGURES: dict[str, dict[str, Any]] = {
    "examples": {"examples": 4, "splits": {"train": 4}},
    "rollout": {"statuses": {}},
    "teacher": {"statuses": {}},
    "evaluate": {"split": "dev", "mean": 0.5, "n": 4, "statuses": {}, "failures": {}},
}
"""What manifests of a stage have at least."""
SAMPLING = ("base", "examples", "program")
ROLES = {
    **dict.fromkeys(("prompts", "rollout", "teacher", "evaluate"), SAMPLING),
    "group": ("policies", "rollout"),
    "logprobs": ("base", "group", "rollout"),
    "train": ("base", "group", "rollout"),
    "drift": ("base", "evaluate"),
}
"""Inputs that a stage always has."""
SLICES: dict[str, dict[str, Any]] = {
    "group": {"seed": 0, "group": {}, "k": 4, "balance": "sequence", "context": 128},
    "train": {"model": {}},
    "evaluate": {"evaluate": {"failure_score": 0.0, "samples": 1, "limit": None}},
}
"""What of a recipe stands in a key, as far as others read it."""
EMPTY = {f"{spec.name}.parquet": spec for spec in (EXAMPLES, INVOCATIONS, EXCLUDED, GROUPS, POLICIES, DRIFT)}
"""Tables that every artifact of some stage has."""


def least_params(stage: str) -> dict[str, Any]:
    """Parameters of a stage, of a policy that nothing else is about."""
    policy, base = digest("a policy"), dict.fromkeys(("base", "weights", "tokenizer", "template"), digest("a base"))
    return {
        "examples": {"data": digest("a file")},
        "program": {"identity": {"factory": "loop:factory"}},
        "base": {"base": base},
        "rollout": {"iteration": 0, "policy": policy},
        "group": {"iteration": 0},
        "train": {"iteration": 0},
        "evaluate": {"policy": policy, "split": "dev"},
        "drift": {"policy": policy, "split": "dev", "canaries": None},
    }.get(stage, {})


class RunWriter:
    """Writes artifacts of a made-up run and remembers their keys for run.json."""

    def __init__(self, folder: Path, *, iterations: int = 3, examples: int = 6, rollouts: int = 4) -> None:
        self.folder, self.examples, self.rollouts = folder, examples, rollouts
        self.store = Store(folder / "artifacts")
        self.recipe = Recipe.model_validate(
            {
                "name": "made-up",
                "model": {"base": "tiny-random"},
                "program": {"factory": "loop:factory", "metric": "loop:metric"},
                "examples": {"path": "data.parquet", "inputs": ["question"], "test": "test"},
                "evaluate": {"bootstrap": 2000},
                "run": {"iterations": iterations},
            }
        )
        self.meter: Meter | None = None
        self.setup: dict[str, str] = {}
        self.iterations: list[dict[str, str]] = []
        self.evaluations: dict[str, dict[str, str]] = {}
        self.policies = [digest(f"policy {index}") for index in range(iterations + 1)]
        self.state: dict[str, Any] = {}
        self.digests: dict[str, str] = {}
        """Of what was written, by key."""

    def artifact(
        self,
        stage: str,
        name: str,
        tables: Tables,
        *,
        metrics: dict[str, Any] | None = None,
        excluded: dict[str, int] | None = None,
        params: dict[str, Any] | None = None,
        inputs: dict[str, str] | None = None,
        made_for: str | None = None,
        **telemetry: float,
    ) -> str:
        """Write one finished artifact; returns its key.

        `inputs` are keys of others, or the policy of an adapter; `made_for` is a run's place.
        """
        taken = {role: digest(f"no {role}") for role in ROLES.get(stage, ())}
        taken |= {role: self.digests.get(source, source) for role, source in (inputs or {}).items()}
        payload = {
            "stage": stage,
            "stage_version": 1,
            "name": name,
            "recipe": SLICES.get(stage, {}),
            "params": least_params(stage) | (params or {}),
            "inputs": taken,
        }
        tables = tables | {file: (EMPTY[file], []) for file in FILES[stage] if file in EMPTY.keys() - tables.keys()}
        key = digest(payload)
        with self.store.begin(stage, key, Reporter("off"), self.meter) as out:
            for file, (spec, rows) in tables.items():
                write_table(rows, out.scratch / "table.parquet", spec)
                out.commit_shard(file, out.scratch / "table.parquet")
            for file in FILES[stage]:
                if file.endswith(".json"):
                    (out.scratch / "draft.json").write_text("{}\n")
                    out.commit_shard(file, out.scratch / "draft.json")
            for reason, count in (excluded or {}).items():
                out.exclude(reason, count)
            if telemetry:
                out.telemetry(**telemetry)
            made = out.finish(
                stage=stage,
                version=1,
                key=key,
                payload=payload,
                metrics=FIGURES.get(stage, {}) | (metrics or {}),
                provenance={"code": {"commit": "c0ffee" * 6, "dirty": None}, "run": made_for},
            )
        self.digests[key] = made.digest
        return key

    def write(self) -> Path:
        """Write run.json as it stands."""
        trained = sum("train" in keys for keys in self.iterations)
        run = RunFile(
            name=self.recipe.name,
            recipe=self.recipe.model_dump(mode="json"),
            setup=self.setup,
            iterations=tuple(self.iterations),
            policies=tuple(self.policies[: max(len(self.iterations), 1 + trained)]),
            evaluations=self.evaluations,
            **self.state,
        )
        write_run(self.folder, run)
        return self.folder

    def add_setup(self) -> None:
        """Examples, program and base."""
        rows = [example_row("train", {"question": f"question {index}"}, None, None) for index in range(self.examples)]
        tables: Tables = {"examples.parquet": (EXAMPLES, rows)}
        self.example_ids = [row["example_id"] for row in rows]
        self.setup["examples"] = self.artifact("examples", "e", tables, excluded={"duplicate": 2}, seconds=0.5)
        self.setup["program"] = self.artifact("program", "p", {}, seconds=0.1)
        self.setup["base"] = self.artifact("base", "b", {}, metrics={"policy": self.policies[0]}, seconds=2.0)

    def sampling_inputs(self, position: int) -> dict[str, str]:
        """Inputs of what samples from the policy at a position."""
        return self.setup | ({"adapter": self.policies[position]} if position else {})

    def add_rollout(self, change: Callable[[Rows, Rows], None] | None = None) -> None:
        """Rollouts of the next iteration. `change` may edit the rows (rollouts, invocations) first."""
        index = len(self.iterations)
        rollouts, calls = make_rollouts(index, self.policies[index], self.example_ids, self.rollouts)
        if change:
            change(rollouts, calls)
        tables: Tables = {"rollouts.parquet": (ROLLOUTS, rollouts), "invocations.parquet": (INVOCATIONS, calls)}
        figures = {"prompt_tokens": 9000.0, "prefilled_tokens": 1500.0, "completion_tokens": 1200.0 + index}
        inputs = self.sampling_inputs(index)
        key = self.artifact("rollout", f"r{index}", tables, inputs=inputs, seconds=30.0, **figures)
        self.iterations.append({"rollout": key})
        self.made = rollouts, calls

    def add_group(self) -> None:
        """Groups of the iteration whose rollouts were added last."""
        index = len(self.iterations) - 1
        groups, excluded = make_groups(*self.made)
        tables: Tables = {"groups.parquet": (GROUPS, groups), "excluded.parquet": (EXCLUDED, excluded)}
        counts: dict[str, int] = {}
        for row in excluded:
            counts[row["reason"]] = counts.get(row["reason"], 0) + 1
        inputs = {"rollout": self.iterations[-1]["rollout"]}
        key = self.artifact("group", f"g{index}", tables, excluded=counts, inputs=inputs, seconds=0.4)
        self.iterations[-1]["group"] = key

    def add_train(self, steps: int = 2, adapters: tuple[str, ...] = ("shared",), **metrics: Any) -> None:
        """Training of the current iteration."""
        index = len(self.iterations) - 1
        rows = [make_step(index * steps + step, name) for step in range(steps) for name in adapters]
        told = {"trained": True, "policy": self.policies[index + 1], **metrics}
        tokens = {"row_tokens": 8000.0, "forward_tokens": 900.0}
        tables: Tables = {
            "steps.parquet": (STEPS, rows),
            "ages.parquet": (AGES, [make_age(row["step"], age) for row in rows for age in (0, None)]),
            "modules.parquet": (MODULES, [make_module(row["step"]) for row in rows]),
        }
        inputs = {"base": self.setup["base"]} | self.iterations[-1]
        if index:
            inputs["previous"] = self.iterations[-2]["train"]
        key = self.artifact("train", f"t{index}", tables, metrics=told, inputs=inputs, seconds=12.0, **tokens)
        self.iterations[-1]["train"] = key

    def add_scores(
        self,
        position: int,
        scores: list[float | None],
        split: str = "dev",
        failure: tuple[str, str] = ("parse_failed", "completion lacks answer"),
        engine: str | None = None,
        **parts: float,
    ) -> None:
        """Scores of the policy at a position of the run; None is a run that failed with a status and an error."""
        policy = self.policies[position]
        rows = [score_row(policy, example, score, failure) for example, score in enumerate(scores)]
        tables: Tables = {"scores.parquet": (SCORES, rows)}
        metrics: dict[str, Any] = {"parts": parts, "parse_first_attempt_valid": 0.75}
        if engine:
            metrics["engines"] = {engine: len(scores)}
        about: dict[str, Any] = {"params": {"policy": policy, "split": split}, "metrics": metrics}
        about["inputs"] = self.sampling_inputs(position)
        figures = {"seconds": 5.0, "completion_tokens": 400.0}
        key = self.artifact("evaluate", f"{split} {position}", tables, **about, **figures)
        self.evaluations.setdefault(split, {})[policy] = key


def whole_run(folder: Path, *, iterations: int = 3, change: Callable[[Rows, Rows], None] | None = None) -> Path:
    """A finished run whose dev score rises, with one test split opened. `change` edits the last iteration's rows."""
    writer = RunWriter(folder, iterations=iterations)
    writer.add_setup()
    draw = random.Random(5)
    for position in range(iterations + 1):
        if position:
            writer.add_rollout(change if position == iterations else None)
            writer.add_group()
            writer.add_train()
        right = 0.4 + 0.4 * position / iterations
        scores: list[float | None] = [float(draw.random() < right) for _ in range(100)]
        writer.add_scores(position, [None, *scores])
    for position in (0, iterations):
        writer.add_scores(position, [0.0, 1.0] * 10 if position == 0 else [1.0] * 20, "test")
    writer.state["tests_opened"] = 1
    return writer.write()


def make_rollouts(iteration: int, policy: str, example_ids: list[str], count: int) -> tuple[Rows, Rows]:
    """Rollouts of `plan` once and `act` one to three times; the last rollout of the first example fails to parse."""
    rollouts: Rows = []
    calls: Rows = []
    for order, example in enumerate(example_ids):
        for index in range(count):
            name = digest([iteration, example, index])[:20]
            failed = order == 0 and index == count - 1
            reward = None if failed else round(((order + index + iteration) % 4) / 3, 6)
            if order == len(example_ids) - 1:
                reward = 0.5  # a flat example
            rollouts.append(rollout_row(name, iteration, policy, example, index, reward, failed=failed))
            calls.append(call_row(name, 0, "plan", 0, f"plan {index} of iteration {iteration}"))
            for act in range(1 + (order + index) % 3):
                calls.append(call_row(name, 1 + act, "act", act, f"act {act}", failed=failed and act == 0))
    return rollouts, calls


def make_groups(rollouts: Rows, calls: Rows) -> tuple[Rows, Rows]:
    """Groups by example, module and call; flat ones are left out, and each group gets one fill copy."""
    by_id = {row["rollout_id"]: row for row in rollouts}
    positions: dict[tuple[str, str, int], Rows] = {}
    for call in calls:
        rollout = by_id[call["rollout_id"]]
        positions.setdefault((rollout["example_id"], call["module"], call["invocation_index"]), []).append(call)
    groups: Rows = []
    excluded: Rows = []
    for place, members in sorted(positions.items()):
        rewards = [by_id[call["rollout_id"]]["reward"] or 0.0 for call in members]
        if len(members) < 2 or max(rewards) == min(rewards):
            reason = "small_group" if len(members) < 2 else "flat_group"
            excluded += [excluded_row(call, reason) for call in members]
            continue
        mean = sum(rewards) / len(rewards)
        copied = [*zip(members, rewards, strict=True), (members[0], rewards[0])]
        for index, (call, reward) in enumerate(copied):
            kind = "fill" if index == len(members) else "none"
            groups.append(member_row(place, index, call, kind, reward, reward - mean))
    return groups, excluded


def rollout_row(
    name: str, iteration: int, policy: str, example: str, index: int, reward: float | None, *, failed: bool
) -> dict[str, Any]:
    return {
        "example_id": example,
        "rollout_index": index,
        "rollout_id": name,
        "iteration": iteration,
        "source": "student",
        "policy": policy,
        "program": PROGRAM,
        "reward": reward,
        "reward_parts": None if reward is None else canonical_json({"right": reward}),
        "status": "parse_failed" if failed else "ok",
        "error": "completion lacks answer" if failed else None,
        "output": None if failed else canonical_json({"answer": f"answer {index}"}),
        "seed": 7,
    }


def call_row(
    name: str, call_index: int, module: str, position: int, completion: str, *, failed: bool = False
) -> dict[str, Any]:
    messages = [{"role": "system", "content": f"Do {module}."}, {"role": "user", "content": f"step {position}"}]
    absent = ("inputs", "outputs", "parsed_share", "temperature", "top_p", "top_k", "max_new_tokens", "seed", "adapter")
    return {
        **dict.fromkeys((*absent, "tokenizer", "template", "engine")),
        "rollout_id": name,
        "call_index": call_index,
        "module": module,
        "invocation_index": position,
        "attempt": 0,
        "lm": "student",
        "messages": canonical_json(messages),
        "completion": completion,
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4],
        "sampling_logprobs": [-0.5, -0.25],
        "finish_reason": "stop",
        "parse_status": "failed" if failed else "ok",
        "logprob_kind": "processed",
        "trainable": True,
        "concurrent": False,
        "fidelity": "exact",
    }


def member_row(
    place: tuple[str, str, int], index: int, call: dict[str, Any], kind: str, reward: float, advantage: float
) -> dict[str, Any]:
    return {
        "group_id": digest(list(place))[:20],
        "member_index": index,
        "example_id": place[0],
        "module": place[1],
        "invocation_index": place[2],
        "rollout_id": call["rollout_id"],
        "call_index": call["call_index"],
        "attempt": 0,
        "copy_kind": kind,
        "source": "student",
        "policy": None,
        "reward": reward,
        "advantage": advantage,
        "weight": 1.0,
    }


def excluded_row(call: dict[str, Any], reason: str) -> dict[str, Any]:
    columns = ("rollout_id", "call_index", "module", "invocation_index", "attempt")
    return {**{name: call[name] for name in columns}, "reason": reason}


def make_step(step: int, adapter: str = "shared") -> dict[str, Any]:
    return {
        "step": step,
        "adapter": adapter,
        "loss": 0.5 - 0.05 * step,
        "learning_rate": 1e-4,
        "grad_norm": 1.5,
        "reward": 0.4,
        "advantage_abs": 0.7,
        "kl_old": 0.001 * step,
        "kl_ref": None,
        "entropy": 1.2 - 0.1 * step,
        "clip_share": 0.02,
        "ess": 0.9,
        "mismatch_ess": 0.99,
        "mismatch_mean": 0.002,
        "mismatch_p99": 0.02 + 0.001 * step,
        "mismatch_max": 0.1,
        "rho_cut": 0.005,
        "members": 20,
        "groups": 5,
        "completion_tokens": 300,
        "row_tokens": 4000,
        "forward_tokens": 450,
    }


def make_age(step: int, age: int | None) -> dict[str, Any]:
    bins = [0] * (len(RATIO_EDGES) + 1)
    bins[6] = 150
    return {
        "step": step,
        "adapter": "shared",
        "age": age,
        "members": 10,
        "completion_tokens": 150,
        "ess": None if age is None else 0.9,
        "clip_share": 0.02,
        "kl_k1": 0.001 * step,
        "kl_k3": 0.002 * step,
        "entropy": 1.1,
        "ratio_histogram": bins,
        "rho_histogram": None if age is None else bins,
    }


def make_module(step: int) -> dict[str, Any]:
    place = {"step": step, "adapter": "shared", "module": "plan"}
    return place | {"members": 20, "completion_tokens": 300, "grad_norm": 1.5}


def score_row(policy: str, example: int, score: float | None, failure: tuple[str, str]) -> dict[str, Any]:
    return {
        "policy": policy,
        "example_id": f"{example:016x}",
        "sample": 0,
        "score": score,
        "parts": None,
        "output": None,
        "status": failure[0] if score is None else "ok",
        "error": failure[1] if score is None else None,
        "rollout_id": f"e{example:03d}",
        "calls": 2,
        "prompt_tokens": 60,
        "completion_tokens": 12,
    }
