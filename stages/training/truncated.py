"""Truncated sampling (top_p, top_k) and what a recipe admits of it, looked at before anything is sampled.

What sampled has no mass on the tokens that were cut, so that no ratio to it can correct for them. What the train stage
says of each row stands in `behaviour.py`; this is the same said of the recipe.
"""

from __future__ import annotations

from schemas.errors import RecipeError
from schemas.recipe import Recipe


def check_sampling(recipe: Recipe) -> None:
    """Refuse, before anything is sampled, rollouts that the train stage would refuse.

    Raises:
        RecipeError: for top_p or top_k that `train.truncated_sampling` does not admit.
    """
    sampling, train = recipe.rollout.sampling, recipe.train
    settings = {"top_p": sampling.top_p if (sampling.top_p or 1) < 1 else None, "top_k": sampling.top_k}
    named = " and ".join(f"{name} = {value:g}" for name, value in settings.items() if value is not None)
    if not named or sampling.temperature == 0 or recipe.rejection.iterations >= recipe.run.iterations:
        return
    if train.truncated_sampling == "refuse":
        raise RecipeError(
            f"rollout.sampling has {named}: what it cuts off has no mass in the policy that samples, so that the ratio "
            "to it is biased. Leave them out, or set train.truncated_sampling = 'renormalised' to train on such "
            "samples knowingly"
        )
    if train.rho == "none":
        return
    if train.rho_level == "sequence":
        raise RecipeError(
            f"train.rho_level = 'sequence' with {named} of rollout.sampling: over a sequence rho is the product of the "
            "mass that was kept at each token, which comes to nothing. Set train.rho_level = 'token', or leave them out"
        )
    if train.behaviour == "recomputed":
        raise RecipeError(
            f"train.behaviour = 'recomputed' with {named} of rollout.sampling: scored again, samples would have the "
            "log-probabilities of the whole distribution. Set train.behaviour = 'logged', or leave them out"
        )
