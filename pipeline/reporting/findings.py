"""What the numbers of a run say, in sentences: the verdict, and what a reader should know beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.reporting.data import Iteration, Note, PolicyScore, SplitScores, Step
from pipeline.reporting.opened import OpenRun
from pipeline.reporting.text import bounds, count, number, plural, share, signed
from stages.statistics import Interval

FLAT_SHARE = 0.5
FAILED_SHARE = 0.1
NOTES_SHOWN = 5


def verdict(scores: SplitScores) -> Note:
    """Whether the score of a split got better over the run."""
    first, last = scores.first, scores.last
    if first is None or last is None:
        return Note("plain", f"No policy has been scored on {scores.split} yet.")
    if first is last:
        return Note("plain", f"Only {when(first)} has been scored on {scores.split} yet: {_score(first)}.")
    span = f"from {number(first.score.estimate)} ({when(first)}) to {number(last.score.estimate)} ({when(last)})"
    if first.policy == last.policy:
        return Note("plain", f"The policy did not change: no iteration trained anything. Its score is {_score(last)}.")
    if last.to_first is None:
        return Note("warning", f"The score went {span}, on different examples: the two cannot be compared.")
    return _change(scores.split, span, last.to_first)


def _change(split: str, span: str, change: Interval) -> Note:
    by = f"{signed(change.estimate)} {bounds(change, sign=True)}"
    if change.above_zero:
        return Note("good", f"Better: the {split} score rose {span}, by {by}.")
    if change.below_zero:
        return Note("warning", f"Worse: the {split} score fell {span}, by {by}.")
    return Note("plain", f"No clear change: the {split} score went {span}, by {by}; the interval includes 0.")


def when(score: PolicyScore) -> str:
    """Which point of the run a policy stands for."""
    return "before training" if score.position == 0 else f"after iteration {score.position - 1}"


def notes(
    run: OpenRun, iterations: Sequence[Iteration], steps: Sequence[Step], splits: Sequence[SplitScores]
) -> tuple[Note, ...]:
    """What happened in the run."""
    found = [_progress(run, iterations)]
    found += [note for split in splits for note in _about_scores(split)]
    found += _about_rollouts(iterations)
    found += _about_groups(iterations)
    found += _about_training(iterations, steps, run.recipe.train.ess_floor)
    return tuple(found)


def _progress(run: OpenRun, iterations: Sequence[Iteration]) -> Note:
    done = sum(not iteration.missing for iteration in iterations)
    wanted = run.recipe.run.iterations
    if run.state.ended:
        return Note("plain", f"The run ended after {plural(done, 'iteration')}: {run.state.ended}.")
    if done >= wanted:
        return Note("plain", f"The run is complete: {plural(done, 'iteration')}.")
    open_ = [iteration for iteration in iterations if iteration.missing]
    lacks = f" Iteration {open_[0].index} lacks {', '.join(open_[0].missing)}." if open_ else ""
    return Note("warning", f"The run is not finished: {done} of {plural(wanted, 'iteration')}.{lacks}")


def _about_scores(split: SplitScores) -> Iterator[Note]:
    last = split.last
    if last and last.failed > FAILED_SHARE * last.rows:
        failed = f"{count(last.failed)} of {count(last.rows)} runs failed"
        yield Note("warning", f"Scoring {when(last)} on {split.split}: {failed}; each counts as the failure score.")
    sizes = {score.score.n for score in split.policies}
    if len(sizes) > 1:
        yield Note("warning", f"Policies were scored on different numbers of {split.split} examples: {sorted(sizes)}.")


def _about_rollouts(iterations: Sequence[Iteration]) -> Iterator[Note]:
    rolled = [iteration.rollouts for iteration in iterations if iteration.rollouts]
    total = sum(stats.rollouts for stats in rolled)
    failed = sum(stats.rollouts - stats.statuses.get("ok", 0) for stats in rolled)
    if failed:
        said = f"{count(failed)} of {count(total)} rollouts failed ({share(failed / total)})."
        yield Note("warning" if failed > FAILED_SHARE * total else "plain", said)
    without = sum(stats.statuses.get("ok", 0) - stats.rewarded for stats in rolled)
    if without > 0:
        yield Note("warning", f"{count(without)} rollouts that ended well have no reward: they train nothing.")


def _about_groups(iterations: Sequence[Iteration]) -> Iterator[Note]:
    grouped = [iteration for iteration in iterations if iteration.groups]
    if not grouped or grouped[-1].groups is None:
        return
    flat = grouped[-1].groups.flat_share
    if flat is not None and flat > FLAT_SHARE:
        where = f"In iteration {grouped[-1].index}, {share(flat)} of the groups were flat"
        yield Note("warning", f"{where}: all members had the same reward, so they teach nothing.")


def _about_training(iterations: Sequence[Iteration], steps: Sequence[Step], ess_floor: float) -> Iterator[Note]:
    idle = _by_note([iteration for iteration in iterations if iteration.trained is False])
    for reason, which in idle:
        yield Note("warning", f"{which} trained nothing: {reason}.")
    for reason, which in _by_note(
        [iteration for iteration in iterations if iteration.trained and iteration.train_note]
    ):
        yield Note("plain", f"Training ended early in {which[0].lower()}{which[1:]}: {reason}.")
    for name in sorted({name for step in steps for name, value in step.figures.items() if _broken(value)}):
        bad = sum(_broken(step.figures[name]) for step in steps)
        yield Note(
            "warning", f"{name.replace('_', ' ')} was not finite in {count(bad)} of {plural(len(steps), 'step')}."
        )
    low = [step for step in steps if (ess := step.figures.get("ess")) is not None and ess < ess_floor]
    if low:
        yield Note("warning", f"The effective sample size fell below {ess_floor:g} in {plural(len(low), 'step')}.")


def _by_note(iterations: Sequence[Iteration]) -> list[tuple[str, str]]:
    """(what the train stage said, which iterations), the most frequent ones."""
    groups: dict[str, list[int]] = {}
    for iteration in iterations:
        groups.setdefault(iteration.train_note or "no reason recorded", []).append(iteration.index)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))[:NOTES_SHOWN]
    return [(note, _which(indices)) for note, indices in ordered]


def _which(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"Iteration {indices[0]}"
    if len(indices) <= 5:
        return f"Iterations {', '.join(map(str, indices))}"
    return f"{len(indices)} iterations ({indices[0]} to {indices[-1]})"


def _broken(value: float | None) -> bool:
    return value is not None and not abs(value) < float("inf")


def _score(score: PolicyScore) -> str:
    return f"{number(score.score.estimate)} {bounds(score.score)}"
