"""`mmgrpo evaluate --test RECIPE`."""

from __future__ import annotations

import argparse

from pipeline.commands.arguments import recipe_arguments
from pipeline.terminal import say
from schemas.errors import RecipeError

TEXT = "score the base, the released and the newest policy on the test split"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    recipe_arguments(parser)
    parser.add_argument(
        "--test",
        action="store_true",
        required=True,
        help="required: the held-out split is meant; each opening is counted",
    )


def do(options: argparse.Namespace) -> int:
    """`mmgrpo evaluate --test RECIPE`."""
    from pipeline.commands.resolved import resolve
    from pipeline.outcome import score_line
    from pipeline.progress import Reporter
    from pipeline.release.compare import comparisons
    from pipeline.release.words import comparison_of
    from pipeline.reporting.build import build_report
    from pipeline.run import open_run
    from pipeline.single import run_test
    from pipeline.walk import identify

    loaded, execution, folder = resolve(options)
    split = loaded.recipe.examples.test
    if split is None:
        raise RecipeError("the recipe names no test split: set examples.test")
    with open_run(loaded, execution, folder, Reporter(execution.progress)) as runner:
        setup = identify(loaded.recipe, loaded.root, execution.cache)
        for index in run_test(runner, setup, split):
            say(score_line(folder, split, index))
        for item in comparisons(folder, split):
            others = {"the base": item.to_base}
            if item.released != runner.state.policies[0]:
                others[f"policy {item.released[:12]}, which is released"] = item.to_released
            for name, found in others.items():
                if found is not None and item.position:
                    say(f"  policy {item.policy[:12]}: {comparison_of(found, name)}")
        say(f"The test split of this run has been opened {runner.state.tests_opened} time(s).")
        build_report(folder)
    return 0
