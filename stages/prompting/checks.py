"""What can be refused before anything is paid for: an optimizer that is not there, a program that has no prompts."""

from __future__ import annotations

import importlib.util

from schemas.errors import RecipeError
from schemas.installing import install
from schemas.recipe_prompts import PromptsSection
from stages.programs.load import Program

NEEDS = {"mipro": "optuna", "gepa": "gepa"}


def check_installed(section: PromptsSection) -> None:
    """Refuse an optimizer whose package is not there.

    Raises:
        RecipeError: naming the command that installs it.
    """
    package = NEEDS.get(section.optimizer)
    if package is not None and importlib.util.find_spec(package) is None:
        raise RecipeError(
            f'prompts.optimizer = "{section.optimizer}" needs the package {package}, which is not installed: '
            f"{install('prompts')}"
        )


def check_program(program: Program, factory: str) -> None:
    """Refuse a program that DSPy's optimizers cannot work on.

    Raises:
        RecipeError: when it is no DSPy module, or has no predictor.
    """
    if program.module is None:
        raise RecipeError(
            f"prompts.optimizer: '{factory}' makes a plain callable, whose prompts are its own code. DSPy's optimizers "
            'need a dspy.Module: make the program one, or set prompts.optimizer = "none".'
        )
    if not program.module.named_predictors():
        raise RecipeError(f"prompts.optimizer: the program of '{factory}' has no predictor, so no prompt to optimize")
