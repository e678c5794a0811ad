"""What an adapter was not shown to be, from the facts of its run."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.exporting.facts import Facts
from pipeline.exporting.markdown import code, escaped
from pipeline.reporting.text import by_status, count, plural, share
from schemas.policies import SHARED

FEW = 200
"""Examples below which an interval is wide, whatever the metric."""


def limits(facts: Facts) -> Iterator[str]:
    """Sentences in Markdown."""
    yield from _of_scores(facts)
    yield (f"One run with one seed ({facts.recipe['seed']}): it says nothing of what the method does on average.")
    yield from _of_use(facts)
    yield from _of_data(facts)
    yield from _of_training(facts)


def _of_scores(facts: Facts) -> Iterator[str]:
    for score in facts.scores:
        n = score.policy.score.n
        few = ", which is few" if n < FEW else ""
        yield f"An interval speaks for this adapter on examples like the {n} of {code(score.split)}{few}."
        change = score.policy.to_first
        if score.base is None or change is None:
            yield f"On {code(score.split)} it cannot be compared with the base."
        elif not change.above_zero:
            yield f"On {code(score.split)} it is not shown to be better than the base: the interval holds 0 or less."
        if score.policy.failed:
            part, told = share(score.policy.failed / score.policy.rows), escaped(by_status(score.policy.failures))
            yield f"On {code(score.split)} {part} of its runs failed ({told})."
        if score.base and score.policy.other_engine(score.base):
            yield f"On {code(score.split)} the base was scored on another engine, which alone may move a score."
    if not facts.scores:
        yield "No score of it is known."
    if facts.recipe["examples"].get("test") and not facts.tests_opened:
        yield "It was not tried on the test split: the dev score was looked at while it was trained."
    elif facts.tests_opened > 1:
        yield f"The test split was opened {facts.tests_opened} times, and is the less a test of it."


def _of_use(facts: Facts) -> Iterator[str]:
    served = sorted({module for modules in facts.adapters.values() for module in modules})
    if served != [SHARED]:
        yield f"It serves {', '.join(map(code, served))}; every other module has the base."
    yield (
        "It was trained behind the prompts of its program, with its chat template, and is no assistant of its own: "
        "with other prompts nothing is known of it."
    )
    if facts.merged:
        yield f"The adapter was merged in float32 and the sum rounded to {facts.merged}; scores are of the adapter."


def _of_data(facts: Facts) -> Iterator[str]:
    weak = {name: number_ for name, number_ in facts.fidelity.items() if name != "exact"}
    if weak:
        whole = sum(facts.fidelity.values())
        yield (
            f"Of {plural(whole, 'call')} among the rollouts {count(sum(weak.values()))} are not exact: "
            f"{by_status(weak)} (tokens or log-probabilities were not logged)."
        )
    if facts.snapshot:
        yield "It learnt from logged traces, which hold what their users wrote."


def _of_training(facts: Facts) -> Iterator[str]:
    likelihood = sum(int(metrics.get("likelihood_members") or 0) for metrics in facts.train)
    if likelihood:
        yield (
            f"{plural(likelihood, 'member')} without a known policy were trained on as advantage-weighted likelihood, "
            "which is no mmGRPO."
        )
    narrowed = sum(int(metrics.get("narrowed_rows") or 0) for metrics in facts.train)
    if narrowed:
        yield f"{plural(narrowed, 'call')} were sampled with top_p or top_k, of what that cut nothing was learnt."
    for index, metrics in enumerate(facts.train):
        if metrics.get("reason"):
            yield f"Iteration {index} trained nothing: {escaped(metrics['reason'])}."
        elif metrics.get("ended_early"):
            yield f"Training of iteration {index} ended early: {escaped(metrics['ended_early'])}."
