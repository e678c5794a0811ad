"""What a run says on the terminal of its outcome: a score after each evaluation, the cost at the end."""

from __future__ import annotations

from pathlib import Path

from pipeline.reporting.costs import collect_costs, total_seconds
from pipeline.reporting.findings import engines_of, failed_runs, when
from pipeline.reporting.opened import open_run
from pipeline.reporting.scores import collect_scores
from pipeline.reporting.text import bounds, by_status, count, number, signed


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
    """Seconds and tokens that the run has cost, over all its stages and restarts."""
    costs = collect_costs(open_run(folder))
    totals: dict[str, float] = {}
    for cost in costs:
        for name, value in cost.figures.items():
            totals[name] = totals.get(name, 0.0) + value
    tokens = [
        f"{count(int(totals[name]))} {name.replace('_', ' ')}" for name in sorted(totals) if name.endswith("tokens")
    ]
    seconds = total_seconds(costs)
    spent = "unknown time" if seconds is None else f"{seconds:.0f} s"
    return f"Cost: {', '.join([spent, *tokens])}"
