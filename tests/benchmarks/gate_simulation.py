"""Does the gate keep what it promises? Coverage of its bounds, false releases over many looks, power at +3 points.

`python -m tests.benchmarks.gate_simulation` prints three tables, in some minutes. `tests/test_stages/test_gate_laws.py`
runs a short form.

False releases: 20 candidates in a row, none of which is any better than the base. Each is the one before after a step
of a random walk in what it finds hard, as adapters of consecutive iterations are, so that the looks depend on each
other. Their true means are exactly equal, which is the hardest case: every release is a false one. The gate compares
each with what is released, on the same examples throughout or on examples drawn anew for each look. In the case "0/1,
one gain" the fifth candidate and those after it are 15 points better than the base: to release one of them is right,
once, and what is released from then on was chosen for its luck on those examples.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stages.statistics import alpha_of, lower_bound, mean_interval, tail

ALPHA, LOOKS = 0.05, 20
Scores = NDArray[np.float64]


def binary(hardness: Scores, spread: float) -> Scores:
    """0/1 scores of which 60 % are right in the population, whatever the spread."""
    return (hardness > -0.2533471 * spread).astype(np.float64)


def binary_better(hardness: Scores, spread: float) -> Scores:
    """0/1 scores of which 75 % are right."""
    return (hardness > -0.6744898 * spread).astype(np.float64)


def graded(hardness: Scores, spread: float) -> Scores:
    """Scores of five steps, of equal mean whatever the spread."""
    return np.searchsorted(np.array([-1.0, -0.4, 0.1, 0.8]) * spread, hardness) / 4


def lopsided(hardness: Scores, spread: float) -> Scores:
    """Nearly always 0.9 or 0.92, and 0 for one example in 46: mean losses are rare and large."""
    return np.where(hardness < -2.0192 * spread, 0.0, np.where(hardness < 0.0, 0.9, 0.92))


Kind = Callable[[Scores, float], Scores]
KINDS: dict[str, Kind] = {"0/1": binary, "graded": graded, "lopsided": lopsided}


def walk(kinds: list[Kind], n: int, generator: np.random.Generator, *, step: float = 0.35) -> Scores:
    """Scores on n examples of a base and of the policies after it, shape (policies, n); a kind for each policy."""
    looks = len(kinds) - 1
    steps = generator.normal(0.0, step, (looks, n))
    hardness = np.vstack([generator.normal(0.0, 1.0, n), np.zeros((looks, n))])
    hardness[1:] = hardness[0] + np.cumsum(steps, axis=0)
    spreads = np.sqrt(1.0 + step**2 * np.arange(looks + 1))
    return np.stack([kind(row, spread) for kind, row, spread in zip(kinds, hardness, spreads, strict=True)])


def gate(differences: Scores, look: int) -> bool:
    """Whether the rule `improves` releases."""
    return bool(differences.mean() > 0) and tail(differences.tolist(), -1.0) <= alpha_of(look, ALPHA)


def naive(differences: Scores, look: int) -> bool:
    """What is often done: the 95 % interval of each look alone lies above 0."""
    deviation = float(differences.std(ddof=1))
    return bool(differences.mean() > 1.96 * deviation / math.sqrt(differences.size)) and deviation > 0


def any_false_release(
    rule: Callable[[Scores, int], bool], kinds: list[Kind], n: int, generator: np.random.Generator, *, redrawn: bool
) -> bool:
    """Whether any of the looks releases a policy that is no better than what was released."""
    scores, released = walk(kinds, n, generator), 0
    for look in range(1, len(kinds)):
        if redrawn:
            scores = walk(kinds, n, generator)
        if rule(scores[look] - scores[released], look):
            if kinds[look] is kinds[released]:
                return True
            released = look
    return False


def false_releases(kinds: list[Kind], n: int, trials: int) -> dict[str, float]:
    """Share of runs with any false release, by how examples are drawn and by rule."""
    found: dict[str, float] = {}
    for redrawn in (False, True):
        for rule in (gate, naive):
            generator = np.random.default_rng([n, redrawn])
            hits = sum(any_false_release(rule, kinds, n, generator, redrawn=redrawn) for _ in range(trials))
            found[f"{rule.__name__}, {'redrawn' if redrawn else 'fixed'}"] = hits / trials
    return found


def power(n: int, look: int, trials: int, *, gain: float = 0.03, changed: float = 0.12) -> float:
    """Share of trials in which a 0/1 policy is released that is `gain` better and differs on `changed` of examples."""
    generator = np.random.default_rng([n, look])
    chances = [(changed + gain) / 2, (changed - gain) / 2, 1 - changed]
    released = 0
    for gained, lost, same in generator.multinomial(n, chances, trials):
        differences = np.concatenate([np.ones(gained), -np.ones(lost), np.zeros(same)])
        released += gate(differences, look)
    return released / trials


def coverage(kind: str, n: int, trials: int) -> dict[str, float]:
    """How often the 95 % bootstrap interval of a mean covers it, and the gate's bounds stay below a difference of 0."""
    generator = np.random.default_rng([n, 7])
    truth = float(KINDS[kind](generator.normal(0.0, 1.0, 1_000_000), 1.0).mean())
    inside = above = high = 0
    for trial in range(trials):
        base, candidate = walk([KINDS[kind]] * 2, n, generator)
        interval = mean_interval(base.tolist(), trial, resamples=1000)
        inside += interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high
        differences = (candidate - base).tolist()
        above += lower_bound(differences, -1.0, 0.05) <= 0
        high += tail(differences, -1.0) > 0.001
    return {"interval": inside / trials, "bound 95 %": above / trials, "bound 99.9 %": high / trials}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print(f"coverage ({trials} trials)")
    for kind in KINDS:
        for n in (50, 200):
            print(
                f"  {kind:<13} n {n:<5}", {name: round(share, 4) for name, share in coverage(kind, n, trials).items()}
            )
    print(f"any false release over {LOOKS} looks, alpha {ALPHA} ({trials} runs)")
    runs = {kind: [KINDS[kind]] * (LOOKS + 1) for kind in KINDS}
    for name, kinds in {**runs, "0/1, one gain": [binary] * 5 + [binary_better] * (LOOKS - 4)}.items():
        for n in (100, 500):
            print(
                f"  {name:<13} n {n:<5}",
                {rule: round(hits, 4) for rule, hits in false_releases(kinds, n, trials).items()},
            )
    print(f"power at +3 points of a 0/1 score, 12 % of examples changed ({trials} trials)")
    for n in (200, 500, 1000, 2000):
        print(f"  n {n:<5}", {f"look {look}": round(power(n, look, trials), 3) for look in (1, 5, 20)})


if __name__ == "__main__":
    main()
