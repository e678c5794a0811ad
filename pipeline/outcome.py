"""What a run says on the terminal of its outcome: a score after each evaluation, the cost at the end."""

from __future__ import annotations

from pathlib import Path

from pipeline.cost_forms import money
from pipeline.costs import ledger
from pipeline.reporting.findings import engines_of, failed_runs, when
from pipeline.reporting.opened import open_run
from pipeline.reporting.scores import collect_scores
from pipeline.reporting.text import bounds, by_status, count, duration, number, signed


def score_line(folder: Path, split: str, position: int) -> str:
    """Score of one policy with its 95 % interval, the paired difference to the first policy, and failed runs.

    There is no difference where runs of either policy failed for a reason that is not the policy's.
    """
    scores = collect_scores(open_run(folder), split)
    score = next((item for item in scores.policies if item.position == position), None)
    if score is None:
        return f"{split} score of policy {position}: not there"
    line = f"{split} score {when(score)}: {number(score.score.estimate)} {bounds(score.score)}"
    if score.to_first is not None and scores.first and scores.first.spoiled:
        line += f", not comparable to the start, where runs failed ({by_status(scores.first.spoiled)})"
    elif score.to_first is not None and not score.spoiled:
        line += f", {signed(score.to_first.estimate)} {bounds(score.to_first, sign=True)} against the start"
        if scores.first and score.other_engine(scores.first):
            line += f" (which {engines_of(scores.first)} sampled, this {engines_of(score)}: engines alone may differ)"
    return f"{line}, {failed_runs([score])}" if score.failed else line


def cost_line(folder: Path) -> str:
    """What the run has cost, over all its stages and restarts: `mmgrpo costs` takes it apart."""
    found = ledger(folder)
    spent = found.total.spent
    known = {
        "of cores": spent.core_seconds and duration(spent.core_seconds),
        "of GPUs": spent.gpu_seconds and duration(spent.gpu_seconds),
        "prompt tokens": spent.prompt_tokens and count(spent.prompt_tokens),
        "completion tokens": spent.completion_tokens and count(spent.completion_tokens),
        "trained tokens": spent.trained_tokens and count(spent.trained_tokens),
        found.currency: spent.money and money(spent.money),
    }
    time = "unknown time" if spent.seconds is None else duration(spent.seconds)
    return f"Cost: {', '.join([time, *(f'{value} {name}' for name, value in known.items() if value)])}"
