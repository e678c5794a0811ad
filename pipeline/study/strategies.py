"""The strategies that have a name: what the mmGRPO paper compares, as recipe settings."""

from __future__ import annotations

import difflib

OPTIMIZER = "{optimizer}"
ITERATIONS = "{iterations}"
NO_PROMPTS, PROMPTS = "prompts.optimizer=none", f"prompts.optimizer={OPTIMIZER}"
NO_REJECTION, REJECTION = "rejection.iterations=0", f"rejection.iterations={ITERATIONS}"
NO_TRAINING = "run.iterations=0"

BUILT_IN: dict[str, tuple[str, ...]] = {
    "vanilla": (NO_TRAINING, NO_PROMPTS, NO_REJECTION),
    "prompts": (NO_TRAINING, PROMPTS, NO_REJECTION),
    "mmgrpo": (NO_PROMPTS, NO_REJECTION),
    "prompts+mmgrpo": (PROMPTS, NO_REJECTION),
    "rejection": (NO_PROMPTS, REJECTION),
    "prompts+rejection": (PROMPTS, REJECTION),
}
TITLES = {
    "vanilla": "vanilla",
    "prompts": "prompts only",
    "mmgrpo": "mmGRPO only",
    "prompts+mmgrpo": "prompts, then mmGRPO",
    "rejection": "rejection fine-tuning",
    "prompts+rejection": "prompts, then rejection fine-tuning",
}
PRESETS = ("paper", "unbiased")


def settings_of(name: str, optimizer: str, iterations: int) -> list[str]:
    """The settings of a built-in strategy.

    Args:
        name: of `BUILT_IN`, alone or as `NAME@PRESET`.
        optimizer: of the prompts.
        iterations: how many the task trains for.

    Raises:
        ValueError: for an unknown name or preset.
    """
    base, at, preset = name.partition("@")
    if base not in BUILT_IN:
        close = difflib.get_close_matches(base, BUILT_IN, n=1)
        hint = f"did you mean '{close[0]}'? Known" if close else "known"
        raise ValueError(f"there is no built-in strategy '{base}'; {hint}: {', '.join(BUILT_IN)}")
    if at and preset not in PRESETS:
        raise ValueError(f"strategy '{name}': there is no preset '{preset}'; known: {', '.join(PRESETS)}")
    filled = [setting.replace(OPTIMIZER, optimizer).replace(ITERATIONS, str(iterations)) for setting in BUILT_IN[base]]
    return [*filled, f"preset={preset}"] if at else filled


def title_of(name: str) -> str:
    """What a table calls a strategy."""
    base, at, preset = name.partition("@")
    return f"{TITLES[base]} ({preset})" if at and base in TITLES else TITLES.get(name, name)
