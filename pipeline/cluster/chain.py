"""The stages of one iteration, in the order in which jobs of a cluster run them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pipeline.stages_in_order import STAGES
from schemas.cluster import Cluster
from schemas.recipe import Recipe


@dataclass(frozen=True)
class Chain:
    """A recipe as a chain of jobs."""

    recipe: Recipe
    path: str
    """The recipe's file, relative to the cluster's project folder or absolute."""
    settings: tuple[str, ...]
    """What `--set` was given."""
    cluster: Cluster

    def stages(self, iteration: int) -> list[str]:
        """Stages of an iteration in order; those that the recipe has no use for are left out."""
        names = ["base"] if iteration == 0 else []
        names += ["prompts"] if self.recipe.prompts.due(iteration) else []
        names += ["rollout", *(["teacher"] if self.recipe.teachers else []), "group", "logprobs", "train"]
        every = self.recipe.run.evaluate_every
        last = iteration + 1 == self.recipe.run.iterations
        if every and (last or (iteration + 1) % every == 0):
            names += ["evaluate", *(["drift"] if self.recipe.evaluate.drift else [])]
        return names

    def every_stage(self) -> list[str]:
        """Stages that occur in any iteration, in order."""
        found = {name for iteration in range(self.recipe.run.iterations) for name in self.stages(iteration)}
        return [name for name in STAGES if name in found]

    def arguments(self, *words: str) -> list[str]:
        """The command line of `mmgrpo` for a command on the recipe, such as `next` or `stage rollout`."""
        line = [*shlex.split(self.cluster.command), *words, self.path, "--run-dir", self.cluster.run_dir]
        line += [part for setting in self.settings for part in ("--set", setting)]
        return line + (["--execution", self.cluster.execution] if self.cluster.execution else [])

    def stage(self, name: str) -> list[str]:
        """The command line of a stage, but for its iteration."""
        return [*self.arguments("stage", name), *self.processes(name)]

    def processes(self, stage: str) -> list[str]:
        """Settings of a job that trains: a process for each GPU of each node. Empty where it is one process."""
        needs = self.cluster.resources(stage)
        if stage not in {"train", "next"}:
            return []
        told = {"processes": needs["gpus"], "nodes": needs["nodes"]}
        return [part for name, count in told.items() if count > 1 for part in ("--exec", f"train.{name}={count}")]


def beside(line: str, tell: str = 'kill -TERM "$child"') -> str:
    """Shell lines that run a command beside the shell, tell it of SIGTERM, and leave its exit code in `code`.

    A shell waits for a child in front of it before it obeys a signal.

    Args:
        line: the command.
        tell: how it is told.
    """
    return "\n".join(
        [
            f"{line} &",
            "child=$!",
            f"trap '{tell} 2>/dev/null || true' TERM",
            "code=0",
            'wait "$child" || code=$?',
            'while kill -0 "$child" 2>/dev/null; do code=0; wait "$child" || code=$?; done',
        ]
    )
