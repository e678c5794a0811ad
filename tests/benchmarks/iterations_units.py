"""The units of the comparison of iterations: a variant of the recipe with a seed, run, tested and measured."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.recipes import load_recipe
from pipeline.reporting.costs import collect_costs, total_seconds
from pipeline.reporting.opened import OpenRun, frame, open_run
from pipeline.reporting.scores import collect_scores
from schemas.canonical import digest
from schemas.recipe import Recipe
from schemas.scores import SCORES
from stages.statistics import example_means

BASE = "base"
_BOTH = (
    "import json, sys; from pipeline.cli import main; "
    "sys.exit(next(filter(None, map(main, json.loads(sys.argv[1]))), 0))"
)
"""Both commands in one process, so that libraries are imported once; the second only when the first ended with 0."""


def variants(recipe: Recipe, iterations: int) -> dict[str, list[str]]:
    """The settings of each variant, derived from the recipe's own numbers."""
    examples = recipe.rollout.examples
    steps = iterations * math.ceil(examples / recipe.train.examples_per_step)
    halves = f"train.examples_per_step={max(1, recipe.train.examples_per_step // 2)}"
    return {
        BASE: [],
        "optimizer state reset": ["train.optimizer_state=reset"],
        "cosine schedule, warm-up": [
            "train.schedule=cosine",
            f"train.total_steps={steps}",
            f"train.warmup_steps={max(1, steps // 10)}",
        ],
        "two epochs": ["train.epochs=2"],
        "two steps": [halves],
        "two steps, clip-higher": [halves, "train.epsilon_high=0.28"],
        "choice by spread": ["rollout.choice=spread"],
        "refill": [f"rollout.refill={examples * 3 // 4}"],
        "replay": ["run.replay=1"],
    }


@dataclass(frozen=True)
class Machine:
    """How units are run; no part of what they give."""

    device: str
    threads: int
    concurrency: int
    cache: Path | None


@dataclass(frozen=True)
class Unit:
    """One run to make."""

    recipe: Path
    variant: str
    settings: tuple[str, ...]
    seed: int
    iterations: int
    base: Path
    """The folder that run folders are made in."""

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.base / f"{self.variant.replace(', ', '-').replace(' ', '-')}-{self.seed}"

    @property
    def identity(self) -> str:
        """Digest of everything that decides its result, as far as the recipe says."""
        resolved = load_recipe(self.recipe, [*self.settings, f"seed={self.seed}"]).recipe
        return digest({"recipe": resolved.model_dump(mode="json"), "iterations": self.iterations})

    def start(self, machine: Machine) -> subprocess.Popen[bytes]:
        """`mmgrpo run` and `mmgrpo evaluate --test`, in one process; its output goes to log.txt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        common = [str(self.recipe), "--run-dir", str(self.folder)]
        for setting in (*self.settings, f"seed={self.seed}"):
            common += ["--set", setting]
        for name, value in (("progress", "off"), *dataclasses.asdict(machine).items()):
            common += ["--exec", f"{name}={value}"] if value is not None else []
        commands = [["run", *common, "--iterations", str(self.iterations)], ["evaluate", "--test", *common]]
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _BOTH, json.dumps(commands)],
                stdout=log,
                stderr=log,
                env={"HF_HUB_OFFLINE": "1", **os.environ},
            )

    def measure(self, wall: float) -> dict[str, Any]:
        """Scores and cost of the finished run.

        Args:
            wall: seconds from start to end, waiting for others on the same machine included.
        """
        run = open_run(self.folder)
        scores = collect_scores(run, "test")
        assert scores.first is not None
        assert scores.last is not None
        return {
            "variant": self.variant,
            "seed": self.seed,
            "settings": list(self.settings),
            "iterations": self.iterations,
            "identity": self.identity,
            "test_first": dataclasses.asdict(scores.first.score),
            "test_last": dataclasses.asdict(scores.last.score),
            "test_scores": _by_example(run, scores.last.artifact),
            "dev": [round(policy.score.estimate, 4) for policy in collect_scores(run, "dev").policies],
            "wall_seconds": round(wall, 1),
            **_cost(run),
        }

    def error(self) -> str:
        """The end of its log."""
        return (self.folder / "log.txt").read_text(errors="replace")[-2000:]


def _by_example(run: OpenRun, artifact: str) -> list[float]:
    """Mean score of every test example, in order of example_id."""
    scored = [run.store.open("evaluate", key) for key in run.state.evaluations["test"].values()]
    found = next(item for item in scored if item.path == run.folder / artifact)
    table = frame(found, SCORES, ["example_id", "score"])
    means = example_means(table["example_id"].to_list(), table["score"].to_list(), run.recipe.evaluate.failure_score)
    return [means[example] for example in sorted(means)]


def _cost(run: OpenRun) -> dict[str, Any]:
    costs = collect_costs(run)
    figures = {cost.stage: cost.figures for cost in costs}
    metrics = [
        [artifact.manifest.metrics for i in range(len(run.state.iterations)) if (artifact := run.stage(i, stage))]
        for stage in ("rollout", "train")
    ]
    return {
        "stage_seconds": round(total_seconds(costs) or 0.0, 1),
        "seconds_by_stage": {stage: round(each.get("seconds", 0.0), 1) for stage, each in figures.items()},
        "rollouts": sum(each["rollouts"] for each in metrics[0]),
        "steps": sum(each.get("steps", 0) for each in metrics[1]),
        "sampled_tokens": int(figures["rollout"].get("completion_tokens", 0)),
        "trained_row_tokens": int(figures["train"].get("train_row_tokens", 0)),
        "trained_forward_tokens": int(figures["train"].get("train_forward_tokens", 0)),
    }
