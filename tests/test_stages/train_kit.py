"""What the trainer's tests share: small artifacts on disk, a minimal Out, and runs of the stage on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from schemas.execution import Execution
from schemas.groups import GROUPS
from schemas.manifest import Manifest
from schemas.parquet import read_rows, write_table
from schemas.policies import POLICIES, policy_digest
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS
from stages import logprobs, train
from stages.contract import Artifact, Inputs
from stages.engines.models import BaseModel, resolve_base
from stages.training.needs import look, needs

EOS = 2
VOCABULARY = 99
BASE = "(base)"
"""Stands for the digest of the base's policy."""


class Killed(BaseException):
    """Stands for a SIGKILL at a step: nothing may catch it."""


class KillsOnce:
    """For `LocalOut`: ends the stage wherever it tells its progress, once at each place."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str]] = set()

    def __call__(self, done: int, total: int, unit: str) -> None:
        if (done, unit) not in self.seen:
            self.seen.add((done, unit))
            raise Killed


@dataclass
class LocalOut:
    """An Out over one folder."""

    root: Path
    on_progress: Callable[[int, int, str], None] = lambda done, total, unit: None
    excluded: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def scratch(self) -> Path:
        folder = self.root / ".scratch"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit_shard(self, name: str, file: Path) -> None:
        target = self.root / "files" / name
        assert not target.exists(), f"{name} is committed twice"
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)

    def committed(self, prefix: str = "") -> dict[str, Path]:
        base = self.root / "files"
        found = {p.relative_to(base).as_posix(): p for p in base.rglob("*") if p.is_file()}
        return {name: path for name, path in found.items() if name.startswith(prefix)}

    def drop(self, prefix: str) -> None:
        self.dropped.append(prefix)

    def exclude(self, reason: str, count: int = 1) -> None:
        self.excluded[reason] = self.excluded.get(reason, 0) + count

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        self.on_progress(done, total, unit)

    def telemetry(self, **figures: float) -> None:
        self.figures |= figures


def artifact(folder: Path) -> Artifact:
    manifest = Manifest(
        stage="x", stage_version=1, key="k", payload={}, digest="d", files={}, metrics={}, excluded={}, provenance={}
    )
    return Artifact(folder, manifest)


@dataclass
class Call:
    """One invocation and the group members that point to it."""

    prompt: list[int]
    completion: list[int]
    sampling: list[float]
    example: str
    group: str
    advantage: float
    module: str = "m"
    temperature: float = 1.0
    weight: float = 1.0
    copies: int = 1
    rollout: str | None = None
    """Default: a rollout of its own."""
    call_index: int = 0
    policy: str | None = BASE
    source: str = "student"
    fields: dict[str, Any] = field(default_factory=dict)
    """Further columns of its invocation."""


def make_calls(seed: int = 0, examples: int = 3, members: int = 4, advantages: bool = True) -> list[Call]:
    """Calls with a shared trunk, one prompt an example, completions of 1 to 6 tokens that often agree."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(3, VOCABULARY, 24).tolist()
    calls = []
    for example in range(examples):
        own = rng.integers(3, VOCABULARY, 3 + example).tolist()
        for member in range(members):
            length = 1 if member == 0 else int(rng.integers(1, 7))
            completion = [*rng.integers(60, 64, length - 1).tolist(), EOS]
            calls.append(
                Call(
                    [*trunk, *own],
                    completion,
                    (-3.0 + rng.normal(0, 0.7, length)).tolist(),
                    f"e{example}",
                    f"g{example}",
                    float(rng.normal()) if advantages else 0.0,
                    copies=2 if member == 1 else 1,
                )
            )
    return calls


def write_artifacts(root: Path, calls: list[Call], cache: Path) -> tuple[Inputs, BaseModel]:
    """base, rollout and group artifacts."""
    base = resolve_base("tiny-random", root, cache)
    for name in ("base", "rollout", "group"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "base" / "base.json").write_text(json.dumps({"base": base.digest}))
    first = {"policy": policy_digest(base.digest, {}), "base": base.digest, "adapters": "{}", "iteration": 0}
    write_table([first], root / "base" / "policies.parquet", POLICIES)
    names = [call.rollout or f"r{index:03d}" for index, call in enumerate(calls)]
    write_table(
        [_invocation(name, call) for name, call in zip(names, calls, strict=True)],
        root / "rollout" / "invocations.parquet",
        INVOCATIONS,
    )
    for call in calls:
        call.policy = first["policy"] if call.policy == BASE else call.policy
    members: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        own = [call for call, of in zip(calls, names, strict=True) if of == name]
        for copy in range(own[0].copies):
            for call in own:
                members.append(_member(name, call, copy, members))
    write_table(members, root / "group" / "groups.parquet", GROUPS)
    inputs = {name: artifact(root / name) for name in ("base", "rollout", "group")}
    return Inputs(inputs, {"iteration": 0}, root), base


def _invocation(rollout: str, call: Call) -> dict[str, Any]:
    return {
        "rollout_id": rollout,
        "call_index": call.call_index,
        "module": call.module,
        "invocation_index": 0,
        "attempt": 0,
        "lm": "student",
        "messages": "[]",
        "prompt_ids": call.prompt,
        "completion_ids": call.completion,
        "sampling_logprobs": call.sampling,
        "parse_status": "ok",
        "temperature": call.temperature,
        "logprob_kind": "processed",
        "trainable": True,
        "concurrent": False,
        "fidelity": "exact",
    } | call.fields


def _member(rollout: str, call: Call, copy: int, before: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group_id": call.group,
        "member_index": sum(row["group_id"] == call.group for row in before),
        "example_id": call.example,
        "module": call.module,
        "invocation_index": 0,
        "rollout_id": rollout,
        "call_index": call.call_index,
        "attempt": 0,
        "copy_kind": "fill" if copy else "none",
        "source": call.source,
        "policy": call.policy,
        "reward": 0.5,
        "advantage": call.advantage,
        "weight": call.weight,
    }


def recipe(**train_fields: Any) -> Recipe:
    """A float32 recipe on the tiny model; `adapter`, `rollout` and `group` are sections, the rest is train's."""
    sections = {
        name: train_fields.pop(name) for name in ("adapter", "rollout", "group", "model") if name in train_fields
    }
    document: dict[str, Any] = {
        "name": "t",
        "model": {"base": "tiny-random", "dtype": "float32"},
        "program": {"factory": "x:y", "metric": "x:y"},
        "examples": {"path": "x.csv", "inputs": ["a"]},
        "adapter": {"r": 4, "alpha": 8},
        "train": {"precision": "float32", "learning_rate": 1e-3, "examples_per_step": 8, "ess_floor": 0.0}
        | train_fields,
    }
    return Recipe.model_validate(document | sections)


def run(
    inputs: Inputs, cache: Path, root: Path, tokens: int = 4096, out: LocalOut | None = None, **train_fields: Any
) -> tuple[dict[str, Any], LocalOut]:
    """One run of the stage, one torch thread, with the log-probabilities that it needs scored first."""
    out = out or LocalOut(root)
    how = recipe(**train_fields)
    given = with_logprobs(inputs, how, cache, root / "scored", tokens)
    return train.run(given, how, execution(cache, tokens), out), out


def execution(cache: Path, tokens: int = 4096) -> Execution:
    """One torch thread on the CPU."""
    return Execution(device="cpu", threads=1, cache=str(cache), train_tokens=tokens)


def with_logprobs(inputs: Inputs, how: Recipe, cache: Path, root: Path, tokens: int = 4096) -> Inputs:
    """The inputs with the artifacts of the logprobs stage that the walk would make."""
    chain = policies(inputs)
    wanted = needs(
        how,
        look(inputs["group"].file("groups.parquet")),
        policy=chain[-1],
        fresh="previous" not in inputs.artifacts,
        archived=chain,
    )
    scored = {}
    for purpose, policy, is_wanted in (("old", chain[-1], wanted.old), ("reference", chain[0], wanted.reference)):
        if is_wanted:
            scored[f"logprobs.{purpose}"] = score(inputs, how, policy, cache, root / purpose, tokens)[1]
    for policy in wanted.behaviours:
        scored[f"logprobs.{policy[:12]}"] = score(inputs, how, policy, cache, root / policy[:12], tokens, rows="own")[1]
    return Inputs({**inputs.artifacts, **scored}, inputs.params, inputs.root)


def score(
    inputs: Inputs,
    how: Recipe,
    policy: str,
    cache: Path,
    root: Path,
    tokens: int = 4096,
    *,
    out: LocalOut | None = None,
    rows: str = "all",
) -> tuple[dict[str, Any], Artifact]:
    """One run of the logprobs stage. The policy is the base, or the one of the previous train artifact."""
    out = out or LocalOut(root)
    if "logprobs.parquet" in out.committed():
        return {}, artifact(out.root / "files")
    artifacts = {name: inputs[name] for name in inputs.artifacts if name != "previous"}
    if policy != policies(inputs)[0]:
        artifacts["adapter"] = inputs["previous"]
    job = Inputs(artifacts, {"policy": policy, "rows": rows}, inputs.root)
    return logprobs.run(job, how, execution(cache, tokens), out), artifact(out.root / "files")


def policies(inputs: Inputs) -> list[str]:
    """Digests of the policy chain, the base first."""
    rows = read_rows(inputs.artifacts.get("previous", inputs["base"]).file("policies.parquet"), POLICIES)
    return [row["policy"] for row in sorted(rows, key=lambda row: row["iteration"])]


def as_previous(out: LocalOut, inputs: Inputs, folder: Path) -> Inputs:
    """Inputs of the next iteration over the same data, continuing from a finished stage."""
    shutil.copytree(out.root / "files", folder)
    return Inputs({**inputs.artifacts, "previous": artifact(folder)}, {"iteration": 1}, inputs.root)
