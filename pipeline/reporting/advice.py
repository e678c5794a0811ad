"""What to do next: rules over the numbers of a run, most urgent first. Pure: facts in, advice out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.reporting.data_answers import Advice
from pipeline.reporting.text import bounds, count, number, plural, share, signed
from stages.statistics import Interval

FAILED_SHARE, FLAT_SHARE = 0.1, 0.5
ESS_LOW = 0.5
OUTSIZED_SHARE = 0.2
GAIN = 0.03
"""What a gain is taken to be worth where none was seen."""
POWER = 1.96 + 0.84
"""z of a two-sided 5 % and of a power of 80 %."""

MENDS = {
    "parse_failed": "give more parse_retries or max_new_tokens, or write the format into the prompt",
    "context_overflow": "shorten the prompts, or take a base with a longer context",
    "program_error": "mend the program: its errors are listed by their first line",
    "timeout": "raise program.timeout_s, or lower --exec concurrency",
    "engine_error": 'see the engine\'s log and `mmgrpo doctor`, or leave such runs out: group.outage = "exclude"',
    "metric_error": 'mend the metric; where its judge was away, leave such runs out: group.outage = "exclude"',
}
"""By status: what mends most of such failures."""


@dataclass(frozen=True)
class Facts:
    """What the advice depends on. Absent is None."""

    done: int
    """Iterations finished."""
    wanted: int
    running: str | None = None
    """The stage at work now."""
    ended: str | None = None
    """Why the run ended before its last iteration."""
    idle: str | None = None
    """Why the last iteration trained nothing."""
    scored: int = 0
    """Policies scored on dev."""
    changed: bool = True
    """Whether the last policy is another than the first."""
    change: Interval | None = None
    """The last policy against the first, paired."""
    spoiled: bool = False
    """Whether runs failed for reasons that are not the policy's, so that scores cannot be compared."""
    flat_share: float | None = None
    """In the latest iteration."""
    outsized: float | None = None
    """Likewise; see `GroupStats`."""
    ess: float | None = None
    """Likewise, mean over steps."""
    failed_share: float | None = None
    """Of all rollouts."""
    worst_status: str | None = None
    """The most frequent way to fail."""
    deleted: int = 0
    """Artifacts deleted by request."""
    tainted: int = 0
    """Artifacts that hold, or learnt from, traces that were to be forgotten."""
    successor: str | None = None
    """The snapshot to train with instead."""
    released: str | None = None
    """The policy that is released; None for the base, or where nothing is ever released."""
    newest_released: bool = False
    refused: str | None = None
    """Why the gate did not release the newest policy."""
    alarms: tuple[str, ...] = ()
    test_split: bool = False
    tests_opened: int = 0
    folder: str = "RUN"


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Everything that is worth doing, most urgent first; never empty."""
    found = [*_blocking(facts), *_unfinished(facts), *_wrong(facts), *_outcome(facts)]
    return tuple(found) or (
        Advice("Nothing is open", "The run is complete, and no number of it asks for anything.", "plain"),
    )


def examples_needed(change: Interval, gain: float) -> int | None:
    """How many examples would show a gain: two-sided 5 %, power 80 %, for the spread between examples seen here.

    None where the interval tells no spread.
    """
    if change.low is None or change.high is None or change.high <= change.low or gain <= 0:
        return None
    deviation = (change.high - change.low) / (2 * 1.96) * math.sqrt(change.n)
    return math.ceil((POWER * deviation / gain) ** 2)


def _blocking(facts: Facts) -> Iterator[Advice]:
    if facts.deleted or facts.tainted:
        instead = f"set traces.snapshot to {facts.successor}" if facts.successor else "take traces.snapshot out"
        text = (
            f"{count(facts.deleted)} artifacts were deleted by request and {count(facts.tainted)} hold or learnt from "
            f"what was to be forgotten. In the recipe, {instead}; what they had reached is then made anew."
        )
        yield Advice("Train again without what was forgotten", text, "warning", "mmgrpo run RECIPE")
    if facts.spoiled:
        text = "Runs of the first or the last policy failed for reasons that are not the policy's: no score says much."
        yield Advice("Mend the scoring, then score again", text, "warning", "mmgrpo run RECIPE")
    for alarm in facts.alarms:
        yield Advice("Look at the drift", alarm, "warning")


def _unfinished(facts: Facts) -> Iterator[Advice]:
    left = facts.wanted - facts.done
    if facts.running:
        yield Advice(
            "Wait", f"At work: {facts.running}. {count(left)} of {plural(facts.wanted, 'iteration')} to come.", "plain"
        )
    elif facts.ended:
        yield Advice("See why it ended early", f"{facts.ended}.", "warning")
    elif left > 0:
        text = f"{count(facts.done)} of {count(facts.wanted)} iterations are done. The same command goes on from there."
        yield Advice("Go on", text, "plain", "mmgrpo run RECIPE")
    if facts.idle:
        text = (
            f"The last iteration trained nothing: {facts.idle}. Where all rewards of a group are equal, other or "
            "harder examples, more rollouts, a higher temperature or rollout.refill give some that differ."
        )
        yield Advice("Give it something to learn from", text, "warning")


def _wrong(facts: Facts) -> Iterator[Advice]:
    if facts.failed_share is not None and facts.failed_share > FAILED_SHARE:
        mend = MENDS.get(facts.worst_status or "", "see the list of errors")
        status = facts.worst_status or "an unknown status"
        text = f"{share(facts.failed_share)} of the rollouts failed, most often with {status}: {mend}."
        yield Advice("Mend what fails", text, "warning")
    if facts.flat_share is not None and facts.flat_share > FLAT_SHARE and not facts.idle:
        text = (
            f"{share(facts.flat_share)} of the groups of the latest iteration are flat and teach nothing. Take other "
            "or harder examples, more rollouts an example, a higher temperature, or rollout.refill."
        )
        yield Advice("Make rewards differ", text, "warning")
    if facts.outsized is not None and facts.outsized > OUTSIZED_SHARE:
        text = (
            f"{share(facts.outsized)} of what moves the weights are failed attempts in groups whose other rewards are "
            "nearly equal: divided by so small a deviation, one failure outweighs whole groups. Raise group.min_spread "
            'to what a difference of rewards has to be to mean something, or set group.scale = "none".'
        )
        yield Advice("Leave nearly flat groups out", text, "warning")
    if facts.ess is not None and facts.ess < ESS_LOW:
        text = (
            f"The effective sample size is {number(facts.ess, 2)} of 1: the policy has left its data behind. Take "
            "fewer steps an iteration (more train.examples_per_step, one epoch), a lower learning rate, or no replay."
        )
        yield Advice("Take fewer steps an iteration", text, "warning")


def _outcome(facts: Facts) -> Iterator[Advice]:
    if facts.released and facts.newest_released:
        text = f"The newest policy is released: {facts.released}."
        yield Advice("Export the adapter", text, "good", f"mmgrpo export adapter {facts.folder} FOLDER")
    elif facts.released:
        why = f" ({facts.refused})" if facts.refused else ""
        text = f"{facts.released} stays released; the newest policy is not{why}."
        yield Advice("Export what is released", text, "plain", f"mmgrpo export adapter {facts.folder} FOLDER")
    if facts.scored < 2 and not facts.running:
        text = "A gain is the difference of two scores: set run.evaluate_every to 1 or more."
        yield Advice("Score more policies", text, "plain", "mmgrpo run RECIPE --set run.evaluate_every=1")
    if facts.change is None or facts.spoiled or not facts.changed:
        return
    if facts.change.above_zero:
        yield from _gained(facts, facts.change)
    elif facts.change.below_zero:
        by = f"{signed(facts.change.estimate)} {bounds(facts.change, sign=True)}"
        text = f"The score fell by {by}: lower train.learning_rate, raise train.beta, or go back to an earlier policy."
        yield Advice("Train more gently", text, "warning")
    else:
        yield _open(facts.change)


def _gained(facts: Facts, change: Interval) -> Iterator[Advice]:
    if facts.test_split and not facts.tests_opened and facts.done >= facts.wanted and not facts.running:
        text = "The gain on dev is clear. The test split has not been opened: it tells what is left on new examples."
        yield Advice("Open the test split", text, "good", "mmgrpo evaluate RECIPE --test")
    elif facts.done >= facts.wanted and not facts.running and not facts.newest_released:
        text = (
            f"The gain of {signed(change.estimate)} {bounds(change, sign=True)} may not be the last: more iterations."
        )
        yield Advice("Train on", text, "good", f"mmgrpo run RECIPE --set run.iterations={facts.wanted * 2}")


def _open(change: Interval) -> Advice:
    gain = change.estimate if change.estimate > 0 else GAIN
    needed = examples_needed(change, gain)
    seen = f"The change of {signed(change.estimate)} {bounds(change, sign=True)} may be chance."
    if needed is None:
        return Advice("Score on more dev examples", f"{seen} {count(change.n)} examples tell no spread.", "plain")
    of = f"a gain of {signed(gain)}" if change.estimate > 0 else f"a gain of {signed(gain)}, had there been one,"
    more = (
        f"To show {of} takes some {count(needed)} dev examples (5 %, power 80 %); there are {count(change.n)}."
        if needed > change.n
        else f"{count(change.n)} dev examples would show {of} four times in five: train on, or change the recipe."
    )
    return Advice("Score on more dev examples" if needed > change.n else "Train on", f"{seen} {more}", "plain")
