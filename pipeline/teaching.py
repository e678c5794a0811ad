"""The teachers of a run: looked at before anything is paid for, and their jobs in an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.jobs import Job
from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.rollouts import ROLLOUTS
from stages import teacher
from stages.contract import Artifact

if TYPE_CHECKING:
    from stages.engines.models import BaseModel
    from stages.programs.load import Program

STAGE = teacher.NAME
Taught = Mapping[str, Artifact | None]
"""An iteration's teacher artifacts, by teacher."""


def identify_teachers(recipe: Recipe, root: Path, student: Program, base: BaseModel) -> dict[str, dict[str, Any]]:
    """What identifies each teacher of the recipe, by name.

    Raises:
        RecipeError, DataError: as `identify_teacher` does.
    """
    from stages.programs.teachers import identify_teacher

    return {name: identify_teacher(recipe, name, root, student, base) for name in sorted(recipe.teachers)}


def teacher_job(
    recipe: Recipe,
    about: dict[str, Any],
    *,
    iteration: int,
    rolled: Artifact | None,
    sampling: tuple[dict[str, Artifact | None], dict[str, str]],
    shared: dict[str, Artifact | None],
    start: str | None,
    student: str | None,
) -> Job:
    """The job of one teacher in one iteration.

    Its key knows which examples the student ran on, and not what came of them.

    Args:
        recipe: the whole recipe.
        about: what identifies the teacher.
        iteration: which one.
        rolled: the student's rollouts; None while they are not made.
        sampling: inputs of a job that samples from the student's policy, and their identities.
        shared: inputs that the whole run shares.
        start: digest of the base's policy.
        student: digest of the student's policy.
    """
    from stages.programs.teachers import follows_student, policy_of

    artifacts, identities = sampling if follows_student(about) else (dict(shared), {})
    if rolled is None:
        artifacts = {**artifacts, "rollout": None}
    model = shared["base"]
    base = "" if model is None else model.manifest.payload["params"]["base"]["base"]
    params = {
        "iteration": iteration,
        "teacher": about,
        "policy": policy_of(recipe, about, base=base, start=start, student=student),
        "examples": None if rolled is None else _examples(rolled),
    }
    return Job(teacher, ("iterations", str(iteration), f"{STAGE}.{about['name']}"), params, artifacts, identities)


def _examples(rolled: Artifact) -> list[str]:
    frame = read_frame(rolled.file("rollouts.parquet"), ROLLOUTS, columns=["example_id"], validate=False)
    found: list[str] = frame["example_id"].unique().sort().to_list()
    return found


def teacher_roles(taught: Sequence[Taught], replay: int) -> dict[str, Artifact | None]:
    """Teachers' rollouts by role: those of the last iteration, and of the `replay` ones before it."""
    newest_first = list(reversed(taught))[: replay + 1]
    return {
        f"rollout.back-{back}.{STAGE}-{name}" if back else role_of(name): artifact
        for back, found in enumerate(newest_first)
        for name, artifact in found.items()
    }


def role_of(name: str) -> str:
    """The role of a teacher's rollouts in the jobs behind them."""
    return f"rollout.{STAGE}-{name}"
