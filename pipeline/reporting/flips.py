"""Examples of the dev split that one policy solved and another did not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pipeline.reporting.data_answers import Flip, Flips, Kind
from pipeline.reporting.opened import OpenRun, frame
from pipeline.reporting.text import ABSENT
from schemas.examples import EXAMPLES
from schemas.scores import SCORES
from stages.statistics import example_means

SHOWN = 200
"""Examples that a page holds."""
ENDS = 2, 5
"""Policies whose scores are shown: the first ones and the last ones."""
INPUTS_LENGTH = 160
SAME = 1e-9
"""Scores that differ by no more are equal: means of samples are sums of floats."""

KINDS: tuple[Kind, ...] = ("lost", "gained", "back again")


def collect_flips(run: OpenRun, split: str) -> Flips | None:
    """Which examples changed; None where fewer than two policies were scored on the same ones."""
    scored = _scored(run, split)
    if len(scored) < 2:
        return None
    examples = set.intersection(*(set(means) for _, means in scored))
    if not examples:
        return None
    paths = {example: [means[example] for _, means in scored] for example in examples}
    kinds = {example: kind for example, path in paths.items() if (kind := kind_of(path))}
    ordered = _largest(kinds, paths)
    places = _ends(len(scored))
    inputs = _inputs(run, set(ordered))
    shown = tuple(
        Flip(name, kinds[name], inputs.get(name, ""), tuple(paths[name][place] for place in places)) for name in ordered
    )
    counts = {kind: sum(own == kind for own in kinds.values()) for kind in KINDS}
    return Flips(split, tuple(scored[place][0] for place in places), len(examples), counts, shown)


def kind_of(path: Sequence[float]) -> Kind | None:
    """What became of an example over the policies; None where nothing did."""
    if path[-1] > path[0] + SAME:
        return "gained"
    if path[-1] < path[0] - SAME:
        return "lost"
    return "back again" if _size(path) > SAME else None


def _largest(kinds: Mapping[str, Kind], paths: Mapping[str, Sequence[float]]) -> list[str]:
    """At most SHOWN examples, the largest changes of each kind in turn, so that many gains do not hide the losses."""
    ranked = sorted(kinds, key=lambda example: (-_size(paths[example]), example))
    turn = {name: place for kind in KINDS for place, name in enumerate(each for each in ranked if kinds[each] == kind)}
    taken = sorted(ranked, key=lambda example: (turn[example], KINDS.index(kinds[example])))[:SHOWN]
    return sorted(taken, key=lambda example: (-_size(paths[example]), KINDS.index(kinds[example]), example))


def _size(path: Sequence[float]) -> float:
    """The change from the first to the last, or where they are equal, a thousandth of the largest in between."""
    ends = abs(path[-1] - path[0])
    return ends if ends > SAME else 1e-3 * (max(path) - min(path))


def _ends(count: int) -> list[int]:
    first, last = ENDS
    return list(range(count)) if count <= first + last else [*range(first), *range(count - last, count)]


def _scored(run: OpenRun, split: str) -> list[tuple[int, dict[str, float]]]:
    """Position and mean score by example of every distinct policy that was scored."""
    keys = run.state.evaluations.get(split, {})
    found: list[tuple[int, dict[str, float]]] = []
    for policy in dict.fromkeys(run.state.policies):
        artifact = run.store.find("evaluate", keys[policy]) if policy in keys else None
        if artifact is None:
            continue
        table = frame(artifact, SCORES, ["example_id", "score"])
        means = example_means(
            table["example_id"].to_list(), table["score"].to_list(), run.recipe.evaluate.failure_score
        )
        if means:
            found.append((run.state.policies.index(policy), means))
    return found


def _inputs(run: OpenRun, wanted: set[str]) -> dict[str, str]:
    artifact = run.store.find("examples", run.state.setup.get("examples", ""))
    if artifact is None or not wanted:
        return {}
    rows = frame(artifact, EXAMPLES, ["example_id", "inputs"])
    found = rows.filter(rows["example_id"].is_in(sorted(wanted)))
    return {name: excerpt(inputs) for name, inputs in found.iter_rows()}


def excerpt(inputs: str) -> str:
    """The beginning of an example's inputs (JSON), as a person would read them."""
    try:
        fields = json.loads(inputs)
    except ValueError:
        fields = inputs
    values = [str(value) for value in fields.values()] if isinstance(fields, dict) else [str(fields)]
    text = " · ".join(" ".join(value.split()) for value in values) or ABSENT
    return text if len(text) <= INPUTS_LENGTH else f"{text[: INPUTS_LENGTH - 1]}…"
