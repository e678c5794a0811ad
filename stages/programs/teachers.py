"""A teacher: what identifies it, whether it fits the student, and what it samples with.

A teacher runs the student's program with other prompts, another adapter, or another LM in the student's place. Its
completions are trained in the *student's* prompt, which must be known: for a DSPy program it is rendered from the
recorded inputs; the prompts of a plain function are made by its code, so that a teacher of one has the student's own
prompts, and may differ in its adapter or LM only.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import digest
from schemas.errors import DataError, RecipeError
from schemas.policies import SHARED, policy_digest
from schemas.recipe import Recipe
from schemas.recipe_data import SamplingSection
from stages.engines.adapters import adapter_digest, check_adapter
from stages.engines.interface import Adapter, Sampling
from stages.programs.load import Program, difference, identity_of, load_program
from stages.programs.session import STUDENT, Session

if TYPE_CHECKING:
    from stages.engines.models import BaseModel


def program_of(recipe: Recipe, name: str) -> Recipe:
    """The recipe with a teacher's program in the place of the student's."""
    teacher, section = recipe.teachers[name], recipe.program
    if not teacher.own_program:
        return recipe
    another = teacher.factory is not None or teacher.args is not None
    changes = {
        "factory": teacher.factory or section.factory,
        "args": section.args if teacher.args is None else teacher.args,
        "state": teacher.state or (None if another else section.state),
    }
    return recipe.model_copy(update={"program": section.model_copy(update=changes)})


def identify_teacher(recipe: Recipe, name: str, root: Path, student: Program, base: BaseModel) -> dict[str, Any]:
    """What decides a teacher's rollouts beside the examples and the student's policy, as canonical JSON.

    Raises:
        RecipeError: when its program is not there, has other modules than the student's, or has prompts of its own
            while the student's cannot be rendered.
        DataError: for an adapter that is none, or was made for another base.
    """
    teacher = recipe.teachers[name]
    about: dict[str, Any] = {"name": name, "rollouts": teacher.rollouts, "lm": teacher.lm}
    about["sampling"] = sampling_of(recipe, name).model_dump(mode="json")
    if teacher.own_program:
        about["program"] = _identify_program(recipe, name, root, student)
    if teacher.adapter is not None:
        about["adapter"] = _identify_adapter(name, root / teacher.adapter, base)
    return about


def _identify_program(recipe: Recipe, name: str, root: Path, student: Program) -> dict[str, Any]:
    own = program_of(recipe, name)
    try:
        program = load_program(own, root)
    except RecipeError as error:
        raise RecipeError(f"teachers.{name}: its program: {error}") from error
    if student.predict is None or program.predict is None:
        raise RecipeError(
            f"teachers.{name} has prompts of its own (state, factory or args), but what the student would have been "
            "sent is known of DSPy programs alone: the prompts of a plain function are made by its code. Give this "
            "teacher an `adapter` or an `lm`, or write both programs with DSPy"
        )
    theirs, ours = program.modules or (), student.modules or ()
    if set(theirs) != set(ours):
        lacks = difference(theirs, ours, "the teacher", "the student")
        raise RecipeError(
            f"teachers.{name} has other modules than the student: {lacks}. "
            "Groups compare calls of one module, so that both must have the same names"
        )
    if load_program(recipe, root).state != student.state:
        raise RecipeError(
            f"program.factory '{recipe.program.factory}' returns one and the same object every time, so that the "
            f"prompts of teachers.{name} would become the student's: let it make a new program at each call"
        )
    return identity_of(own, root, program)


def _identify_adapter(name: str, folder: Path, base: BaseModel) -> str:
    try:
        found = adapter_digest(folder)
        check_adapter(folder, base)
    except DataError as error:
        raise DataError(f"teachers.{name}.adapter: {error}") from error
    return found


def sampling_of(recipe: Recipe, name: str) -> SamplingSection:
    """How a teacher's completions are drawn where the program says nothing."""
    teacher = recipe.teachers[name]
    if teacher.sampling is not None:
        return teacher.sampling
    if teacher.lm is not None:
        other = recipe.lms[teacher.lm]
        return SamplingSection(temperature=other.temperature, max_new_tokens=other.max_new_tokens)
    return recipe.rollout.sampling


def policy_of(
    recipe: Recipe, about: dict[str, Any], *, base: str, start: str | None, student: str | None
) -> str | None:
    """Digest of the policy that a teacher samples from; None for an endpoint, which has none here.

    Args:
        recipe: the whole recipe.
        about: see `identify_teacher`.
        base: digest of the base model.
        start: digest of the base's policy, None while it is not made.
        student: digest of the student's policy, None while it is not made.
    """
    if about["lm"] is not None:
        return None if recipe.lms[about["lm"]].kind == "openai" else start
    if "adapter" in about:
        return policy_digest(base, {SHARED: about["adapter"]})
    return student


def follows_student(about: dict[str, Any]) -> bool:
    """Whether a teacher samples from the student's policy, under other prompts."""
    return about["lm"] is None and "adapter" not in about


def program_digest(about: dict[str, Any], student: str) -> str:
    """Identity of the program that a teacher ran: its own, or the student's."""
    return digest(about["program"]) if "program" in about else student


def as_teacher(session: Session, recipe: Recipe, about: dict[str, Any], root: Path) -> Session:
    """The session of the student's engine with the teacher in the student's place.

    Raises:
        DataError: when the teacher's adapter is not the one that it was.
    """
    section = SamplingSection.model_validate(about["sampling"])
    sampling = Sampling(section.temperature, section.top_p, section.top_k, section.max_new_tokens)
    if about["lm"] is not None:
        others = dict(session.endpoints)
        served = {**others, STUDENT: others[about["lm"]]} if about["lm"] in others else others
        return replace(session, sampling=sampling, adapters={}, endpoints=served)
    if "adapter" not in about:
        return replace(session, sampling=sampling)
    folder = root / str(recipe.teachers[about["name"]].adapter)
    found = adapter_digest(folder)
    if found != about["adapter"]:
        raise DataError(f"the adapter {folder} changed while the run was under way: restore it, or run again")
    return replace(session, sampling=sampling, adapters={SHARED: Adapter(folder, found)})
