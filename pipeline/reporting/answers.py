"""The first screen: six questions that everybody asks of a run, answered from its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.cost_forms import money
from pipeline.costs import Ledger
from pipeline.reporting.data import Failure, Iteration, Note, SplitScores
from pipeline.reporting.data_answers import Advice, Answer, Level
from pipeline.reporting.data_chain import Chain
from pipeline.reporting.data_gate import Decided, Gate
from pipeline.reporting.opened import OpenRun
from pipeline.reporting.text import ABSENT, bounds, by_status, count, duration, number, plural, share, signed

SHORT = 12
"""Digits of a digest."""
ERROR_LENGTH = 160


def better(verdict: Note, dev: SplitScores) -> Answer:
    """Did it get better?"""
    value = ABSENT
    if dev.last is not None:
        value = number(dev.last.score.estimate)
        if dev.spoiled:
            value = "cannot say"
        elif dev.last.to_first is not None:
            value = signed(dev.last.to_first.estimate)
    return Answer("better", "Did it get better?", value, verdict.text, verdict.level, "scores")


def real(dev: SplitScores, test: SplitScores | None, opened: int, gate: Gate | None) -> Answer:
    """Is that real?"""
    told: list[str] = []
    value = "not known"
    level: Level = "plain"
    change = dev.last.to_first if dev.last else None
    if change is not None and not dev.spoiled and dev.last is not dev.first:
        clear = change.above_zero or change.below_zero
        value = f"clear on {dev.split}" if clear else "not clear"
        level = ("good" if change.above_zero else "warning") if clear else "plain"
        told.append(
            f"One {dev.split} example tells no spread, and so no interval."
            if change.low is None
            else f"The 95 % interval of the paired change over {count(change.n)} {dev.split} examples is "
            f"{bounds(change, sign=True)}{'' if clear else ', which includes 0'}."
        )
    compared = gate.difference_of(dev.last.position) if gate and dev.last else None
    if told and compared and compared.to_base and compared.to_base.sign_flip_p is not None:
        told.append(f"By sign flips p = {compared.to_base.sign_flip_p:.2g}, for this one look.")
    if gate is not None and gate.decisions:
        last = gate.decisions[-1]
        value, level = _standing(last, level)
        told.append(_decided(last, gate, newest=dev.last.policy if dev.last else None))
    if test is not None and test.last is not None and test.last.to_first is not None:
        on_test = test.last.to_first
        times = "once" if opened == 1 else f"{count(opened)} times"
        told.append(f"On {test.split}, opened {times}: {signed(on_test.estimate)} {bounds(on_test, sign=True)}.")
    elif told:
        told.append("It speaks for these adapters on examples like these; the method needs several seeds.")
    return Answer("real", "Is that real?", value, " ".join(told) or "Two scores are needed to say.", level, "scores")


def _standing(last: Decided, level: Level) -> tuple[str, Level]:
    """What the last decision came to. Only evidence makes it good: none stands behind a rollback, nor behind force."""
    if last.verdict != "released":
        return "not released", level
    if last.kind == "rollback":
        return "rolled back", "warning"
    if last.forced:
        return "released by force", "warning"
    return "released", "good" if last.lower is not None and last.lower > 0 else level


def _decided(last: Decided, gate: Gate, newest: str | None) -> str:
    """The last decision, whom it is about where that is not the newest policy, and what the run's looks have spent."""
    looks = {row.look: row.spent for row in gate.decisions if row.look is not None and row.spent is not None}
    spent = f" Spent so far: {sum(looks.values()):.3g} of alpha = {last.alpha:g}" if looks and last.alpha else ""
    shared = ", by this run alone: others share its ledger" if spent and max(looks) > len(looks) else ""
    about = "" if last.policy == newest else f", on policy {last.policy[:12]}"
    return f"{last.kind.capitalize()}{about}: {last.reason.rstrip('.')}.{spent}{shared}{'.' if spent else ''}"


def cost(ledger: Ledger) -> Answer:
    """What did it cost?"""
    spent = ledger.total.spent
    named = {"of cores": spent.core_seconds, "of GPUs": spent.gpu_seconds}
    told = [f"{duration(seconds)} {name}" for name, seconds in named.items() if seconds]
    told.append(f"{count(spent.prompt_tokens)} prompt and {count(spent.completion_tokens)} completion tokens sampled")
    longest = max(ledger.stages, key=lambda row: row.spent.seconds or 0.0, default=None)
    if longest is not None and longest.spent.seconds and spent.seconds:
        told.append(f"{share(longest.spent.seconds / spent.seconds)} of the time went into {longest.stage}")
    if ledger.total.silent:
        told.append(f"{plural(ledger.total.silent, 'artifact')} recorded nothing")
    value = duration(spent.seconds)
    if spent.money is not None:
        value += f" · {money(spent.money)} {ledger.currency}"
    return Answer("cost", "What did it cost?", value, f"{'; '.join(told)}.", "plain", "cost")


def data(run: OpenRun, iterations: Sequence[Iteration], chain: Chain) -> Answer:
    """What data made it?"""
    by_name = {box.name: box for box in chain.boxes}
    rolled = [iteration.rollouts for iteration in iterations if iteration.rollouts]
    told = (
        [f"examples of {run.recipe.examples.path} ({_digest(by_name['setup/examples'].digest)})"]
        if "setup/examples" in by_name
        else []
    )
    if (snapshot := by_name.get("setup/ingest")) is not None:
        told.append(f"the snapshot of traces {_digest(snapshot.digest)}")
    told.append(f"{plural(sum(stats.rollouts for stats in rolled), 'rollout')} of {plural(len(rolled), 'iteration')}")
    trained = [box for box in chain.boxes if box.stage == "train" and box.digest]
    made = " No adapter was made yet."
    if trained:
        made = f" They made the adapter of the train artifact {_digest(trained[-1].digest)}."
    bad = [f"{count(number_)} {mark}" for mark in ("deleted", "tainted") if (number_ := chain.marked(mark))]
    warned = f" Of these artifacts, {' and '.join(bad)}." if bad else ""
    text = f"{'; '.join(told)}.{made}{warned}"
    value = count(sum(stats.rollouts for stats in rolled)) + " rollouts"
    return Answer(
        "data", "What data made it?", value, text[0].upper() + text[1:], "warning" if bad else "plain", "origin"
    )


def failures(iterations: Sequence[Iteration], found: Sequence[Failure]) -> Answer:
    """What went wrong in the failed rollouts?"""
    question = "What went wrong in the failed rollouts?"
    rolled = [iteration.rollouts for iteration in iterations if iteration.rollouts]
    statuses: dict[str, int] = {}
    for stats in rolled:
        for status, number_ in stats.statuses.items():
            statuses[status] = statuses.get(status, 0) + number_
    total, failed = sum(statuses.values()), {name: n for name, n in statuses.items() if name != "ok"}
    if not total:
        return Answer("failures", question, ABSENT, "There are no rollouts yet.", "plain", "rewards")
    if not failed:
        return Answer("failures", question, "none failed", f"All {count(total)} ended well.", "good", "rewards")
    worst = next((row for row in found if row.split is None), None)
    sample = f" Most often: {_cut(worst.error) or worst.status} ({count(worst.count)} times)." if worst else ""
    text = f"{count(sum(failed.values()))} of {count(total)} failed: {by_status(failed)}.{sample}"
    ratio = sum(failed.values()) / total
    return Answer("failures", question, share(ratio), text, "warning" if ratio > 0.1 else "plain", "rewards")


def following(advice: Sequence[Advice]) -> Answer:
    """What to do next?"""
    first = advice[0]
    more = f" Then: {'; '.join(item.title.lower() for item in advice[1:4])}." if len(advice) > 1 else ""
    return Answer("next", "What to do next?", first.title, first.text + more, first.level, "next", first.command)


def _cut(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= ERROR_LENGTH else f"{line[: ERROR_LENGTH - 1]}…"


def _digest(digest: str | None) -> str:
    return digest[:SHORT] if digest else "not there"
