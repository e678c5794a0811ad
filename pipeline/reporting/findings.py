"""What the numbers of a run say, in sentences: the verdict, and what a reader should know beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from pipeline.reporting.data import Iteration, Note, PolicyScore, SplitScores
from pipeline.reporting.data_training import Step
from pipeline.reporting.opened import OpenRun
from pipeline.reporting.text import after, bounds, by_status, count, number, plural, share, signed
from stages.statistics import Interval
from stages.training.names import LIKELIHOOD, REJECTION

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
    if scores.spoiled:
        return Note("warning", f"Cannot say: {_spoiled(scores)}.")
    if last.to_first is None:
        return Note("warning", f"The score went {span}, on different examples: the two cannot be compared.")
    return _by_engine(first, last, _change(scores.split, span, last.to_first))


def _by_engine(first: PolicyScore, last: PolicyScore, change: Note) -> Note:
    """The change, marked where it may be of the engines and not of the policies."""
    if not last.other_engine(first):
        return change
    who = f"{engines_of(first)} ({when(first)}), {engines_of(last)} ({when(last)})"
    return Note("warning", f"{change.text} Different engines sampled them, which alone may move a score: {who}.")


def engines_of(score: PolicyScore) -> str:
    """What sampled a score."""
    return " and ".join(sorted(score.engines))


def _change(split: str, span: str, change: Interval) -> Note:
    if change.low is None:
        return Note("plain", f"Cannot say: the {split} score went {span} on one example, which tells no spread.")
    by = f"{signed(change.estimate)} {bounds(change, sign=True)}"
    if change.above_zero:
        return Note("good", f"Better: the {split} score rose {span}, by {by}.")
    if change.below_zero:
        return Note("warning", f"Worse: the {split} score fell {span}, by {by}.")
    return Note("plain", f"No clear change: the {split} score went {span}, by {by}; the interval includes 0.")


def _spoiled(scores: SplitScores) -> str:
    """Why the first and the last policy cannot be compared, and what to do about it."""
    told = []
    for score in scores.spoiled:
        which = "first" if score is scores.first else "last"
        runs = f"{count(sum(score.spoiled.values()))} of {plural(score.rows, 'run')}"
        told.append(f"{runs} of the {which} policy ended in {_statuses(score.spoiled)}")
    folders = " and ".join(score.artifact for score in scores.spoiled)
    again = f"score again once that is mended (delete {folders} in the run folder and run again)"
    return f"{' and '.join(told)}, which says nothing of the policy; {again}"


def _statuses(counts: Mapping[str, int]) -> str:
    return by_status(counts) if len(counts) > 1 else next(iter(counts))


def when(score: PolicyScore) -> str:
    """Which point of the run a policy stands for."""
    return after(score.position)


def failed_runs(scores: Sequence[PolicyScore]) -> str:
    """How many runs of some policies failed, and how."""
    statuses: dict[str, int] = {}
    for score in scores:
        for status, number_ in score.failures.items():
            statuses[status] = statuses.get(status, 0) + number_
    failed, rows = sum(score.failed for score in scores), sum(score.rows for score in scores)
    return f"{count(failed)} of {plural(rows, 'run')} failed ({by_status(statuses)})"


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
    is_done = "is" if done == 1 else "are"
    return Note("plain", f"{count(done)} of the recipe's {plural(wanted, 'iteration')} {is_done} done.{lacks}")


def _about_scores(split: SplitScores) -> Iterator[Note]:
    spans = _failing(split)
    if len(spans) > NOTES_SHOWN:
        spans = [[score for span in spans for score in span]]
    for span in spans:
        told = f"{failed_runs(span)}; each counts as the failure score."
        yield Note("warning", f"Scoring {_span(span)} on {split.split}: {told}")
    if len({tuple(sorted(score.engines)) for score in split.policies if score.engines}) > 1:
        named = ", ".join(split.engines)
        said = "Differences between policies are then of engines too; the table says which sampled what."
        yield Note("warning", f"{split.split} was scored with different engines: {named}. {said}")
    sizes = {score.score.n for score in split.policies}
    if len(sizes) > 1:
        yield Note("warning", f"Policies were scored on different numbers of {split.split} examples: {sorted(sizes)}.")


def _failing(split: SplitScores) -> list[list[PolicyScore]]:
    """Policies with failed runs worth saying, consecutive ones together."""
    distinct: dict[str, PolicyScore] = {}
    for score in split.policies:
        distinct.setdefault(score.policy, score)  # an iteration that trained nothing keeps its policy and its runs
    return [list(span) for failing, span in groupby(distinct.values(), _worth_saying) if failing]


def _worth_saying(score: PolicyScore) -> bool:
    return bool(score.spoiled) or score.failed > FAILED_SHARE * score.rows


def _span(scores: Sequence[PolicyScore]) -> str:
    if len(scores) == 1:
        return when(scores[0])
    return f"{len(scores)} policies ({when(scores[0])} to {when(scores[-1])})"


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
    others = [iteration for iteration in iterations if iteration.likelihood_members]
    if others:
        members = plural(sum(iteration.likelihood_members for iteration in others), "member")
        where = _which([iteration.index for iteration in others])
        said = f"{where}: {members} without a known behaviour policy trained as {LIKELIHOOD}, which is no mmGRPO."
        yield Note("warning", said)
    if any(iteration.narrowed_rows for iteration in iterations):
        cut, rows = sum(each.narrowed_rows for each in iterations), sum(each.rows for each in iterations)
        where = _which([iteration.index for iteration in iterations if iteration.narrowed_rows])
        bias = "The ratio to what sampled them says nothing of tokens that were cut (train.truncated_sampling)"
        yield Note(
            "plain",
            f"{where}: {count(cut)} of {count(rows)} calls trained on were sampled with top_p or top_k. {bias}.",
        )
    rejected = [iteration.index for iteration in iterations if iteration.objective == REJECTION]
    if rejected:
        said = f"{_which(rejected)}: {REJECTION}, on the best members of each group. That is no mmGRPO."
        yield Note("plain", said)
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
