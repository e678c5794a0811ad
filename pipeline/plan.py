"""The plan: what a run would do, and for anything stale which field or input changed. Nothing is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline import runfile
from pipeline.jobs import Job, changes, key_of
from pipeline.recipes import LoadedRecipe
from pipeline.release.early import why_stop_behind
from pipeline.release.records import decisions
from pipeline.runfile import RunFile
from pipeline.store import Store
from pipeline.walk import identify, walk
from stages.contract import Artifact

WAITING_SHOWN = 8
"""Jobs that wait for others and are listed one by one."""


@dataclass(frozen=True)
class PlannedJob:
    """One job of the plan. `state` is `done`, `run`, `wait`, or `end` of the run; `why` says what makes it so."""

    label: str
    state: str
    why: tuple[str, ...] = ()


def plan(loaded: LoadedRecipe, folder: Path, iterations: int, cache: str | None) -> list[PlannedJob]:
    """Look up each job of a run in order.

    Raises:
        RecipeError: when the program, the model or the data file is not there.
        DataError: when run.json or a manifest is damaged.
    """
    store = Store(folder / "artifacts")
    old = runfile.read_run(folder) if (folder / runfile.NAME).exists() else None
    jobs = walk(loaded.recipe, identify(loaded.recipe, loaded.root, cache), iterations)
    made, planned = decisions(folder), list[PlannedJob]()
    artifact: Artifact | None = None
    while True:
        try:
            job = jobs.send(artifact)
        except StopIteration:
            return planned
        artifact, entry = _look_up(job, loaded, store, old)
        planned.append(entry)
        if old and artifact and (ended := why_stop_behind(job, loaded.recipe, old.policies, made)):
            return [*planned, PlannedJob("the run", "end", (ended,))]


def _look_up(job: Job, loaded: LoadedRecipe, store: Store, old: RunFile | None) -> tuple[Artifact | None, PlannedJob]:
    if job.waits_for:
        return None, PlannedJob(job.label, "wait", (f"needs {', '.join(job.waits_for)}, not made yet",))
    payload = job.payload(loaded.recipe)
    key = key_of(payload)
    artifact = store.find(job.stage.NAME, key)
    if artifact is not None:
        return artifact, PlannedJob(job.label, "done")
    earlier_key = _earlier_key(job, old) if old else None
    earlier = store.find(job.stage.NAME, earlier_key) if earlier_key else None
    if earlier is None:
        why = "made before, but its artifact is gone" if earlier_key else "never made"
        return None, PlannedJob(job.label, "run", (why,))
    return None, PlannedJob(job.label, "run", tuple(changes(earlier.manifest.payload, payload)))


def _earlier_key(job: Job, old: RunFile) -> str | None:
    place, name = job.slot[0], job.slot[-1]
    if place == "setup":
        return old.setup.get(name)
    index = int(job.slot[2] if job.of_policy else job.slot[1])
    if job.of_policy:
        policy = old.policies[index] if index < len(old.policies) else None
        by_split: dict[str, dict[str, str]] = getattr(old, place)
        return by_split.get(job.slot[1], {}).get(policy or "")
    return old.iterations[index].get(name) if index < len(old.iterations) else None


def render(planned: list[PlannedJob]) -> str:
    """The plan as text: a line a job, its reasons below it, and a count."""
    words = {"done": "up to date", "run": "will run", "wait": "will run, later", "end": "ends early"}
    waiting = [entry for entry in planned if entry.state == "wait"]
    shown = [entry for entry in planned if entry not in waiting[WAITING_SHOWN:]]
    lines: list[str] = []
    for entry in shown:
        lines.append(f"{words[entry.state]:<15} {entry.label}")
        lines += [f"{'':<15}   {reason}" for reason in entry.why]
    if len(shown) < len(planned):
        lines.append(f"{words['wait']:<15} … and {len(planned) - len(shown)} more like these")
    todo = sum(entry.state in {"run", "wait"} for entry in planned)
    every = sum(entry.state != "end" for entry in planned)
    lines.append(f"{todo} of {every} jobs to run" if todo else f"all {every} jobs are up to date")
    return "\n".join(lines)
