"""A rollout as plain data: its facts, and its LM calls in order, each with its texts, tokens and what became of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from pipeline.browsing.bounds import WHOLE, Bounds, clip, content, ends, laid_out
from pipeline.browsing.fates import Place, fates
from pipeline.browsing.rows import call_rows
from pipeline.browsing.sources import Rolled, grouped, reading, rolled, scan
from pipeline.browsing.tokens import Vocabulary, halves
from pipeline.reporting.opened import OpenRun
from schemas.cells import MESSAGES, NUMBERS, cell
from schemas.errors import RecipeError
from schemas.examples import EXAMPLES
from schemas.rollouts import ROLLOUTS

Record = dict[str, Any]

_ROLLOUT = ["rollout_id", "example_id", "rollout_index", "source", "policy", "program", "seed", "reward", "status"]
_CALL = ["call_index", "module", "invocation_index", "attempt", "lm", "finish_reason", "parse_status", "parsed_share"]
_CALL += ["temperature", "logprob_kind", "engine", "adapter", "fidelity", "concurrent", "transfer"]
_LONG = ["messages", "student_messages", "completion", "tokenizer"]


def trajectory(run: OpenRun, iteration: int | None, rollout_id: str, bounds: Bounds = WHOLE) -> Record:
    """One rollout of an iteration (None: of the logged traces).

    Raises:
        RecipeError: when that iteration has no such rollout.
    """
    vocabulary = Vocabulary(run.recipe.model.base)
    for item in rolled(run):
        if item.iteration == iteration and (found := trajectories(run, item, [rollout_id], bounds, vocabulary)):
            return found[0]
    where = "the logged traces have" if iteration is None else f"iteration {iteration} has"
    raise RecipeError(f"{run.folder}: {where} no rollout '{rollout_id}'; `mmgrpo report {run.folder}` lists some")


def trajectories(
    run: OpenRun, item: Rolled, ids: Sequence[str], bounds: Bounds, vocabulary: Vocabulary
) -> list[Record]:
    """Those of some rollouts that an artifact has, by (example_id, rollout_index, rollout_id).

    Raises:
        DataError: when a table cannot be read.
    """
    with reading(run.folder):
        return _trajectories(run, item, ids, bounds, vocabulary)


def _trajectories(
    run: OpenRun, item: Rolled, ids: Sequence[str], bounds: Bounds, vocabulary: Vocabulary
) -> list[Record]:
    mine = pl.col("rollout_id").is_in(list(ids))
    columns = [*_ROLLOUT, "reward_parts", "error", "output"]
    rows = scan(item.artifact, ROLLOUTS).select(columns).filter(mine).sort("example_id", "rollout_index", "rollout_id")
    found = rows.collect().to_dicts()
    if not found:
        return []
    inputs = inputs_of(run, item, [row["example_id"] for row in found])
    became = fates(grouped(run), item.artifact, [row["rollout_id"] for row in found])
    made, calls = _calls(item, ids, bounds, vocabulary, became)
    return [
        {
            **{name: row[name] for name in _ROLLOUT},
            "iteration": item.iteration,
            "reward_parts": cell(row["reward_parts"], NUMBERS, f"{item.artifact.folder}, reward_parts")
            if row["reward_parts"]
            else {},
            "error": None if row["error"] is None else clip(row["error"], bounds.field),
            "output": laid_out(row["output"], bounds.field),
            "inputs": laid_out(inputs.get(row["example_id"]), bounds.field),
            "excluded": became.get((row["rollout_id"], None), []),
            "calls_made": made.get(row["rollout_id"], 0),
            "calls": calls.get(row["rollout_id"], []),
        }
        for row in found
    ]


def inputs_of(run: OpenRun, item: Rolled, example_ids: Sequence[str]) -> dict[str, str]:
    """The inputs of examples, as JSON text. Those of logged traces may stand in the snapshot alone."""
    examples = run.store.find("examples", run.state.setup.get("examples", ""))
    found: dict[str, str] = {}
    for artifact in (item.artifact, *([examples] if examples else [])):
        rows = scan(artifact, EXAMPLES).select("example_id", "inputs")
        found |= dict(rows.filter(pl.col("example_id").is_in(list(set(example_ids)))).collect().iter_rows())
    return found


def _calls(
    item: Rolled,
    ids: Sequence[str],
    bounds: Bounds,
    vocabulary: Vocabulary,
    became: dict[Place, list[dict[str, Any]]],
) -> tuple[dict[str, int], dict[str, list[Record]]]:
    """By rollout: how many calls it made, and those that are shown."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in call_rows(item.artifact, ids, ["rollout_id", *_CALL, *_LONG]):
        rows.setdefault(row["rollout_id"], []).append(row)

    def call(row: dict[str, Any]) -> Record:
        fates_ = became.get((row["rollout_id"], row["call_index"]), [])
        return (
            {name: row[name] for name in _CALL}
            | {"fates": fates_}
            | _texts(row, bounds, vocabulary, str(item.artifact.folder))
        )

    shown = {name: [call(row) for row in ends(own, bounds.calls)] for name, own in rows.items()}
    return {name: len(own) for name, own in rows.items()}, shown


def _texts(row: dict[str, Any], bounds: Bounds, vocabulary: Vocabulary, where: str) -> Record:
    """Prompt, completion and tokens of a call."""
    student = row["student_messages"]
    other = student if student != row["messages"] else None
    completion = row["completion"]
    return {
        **_messages("messages", row["messages"], bounds, where),
        **_messages("student_messages", other, bounds, where),
        "completion": None if completion is None else clip(completion, bounds.completion),
        **_tokens(row, bounds, vocabulary),
    }


def _messages(name: str, text: str | None, bounds: Bounds, where: str) -> Record:
    """Chat messages as {role, text}, and how many there are; None where there are none."""
    if text is None:
        return {name: None, f"{name}_made": 0}
    messages = cell(text, MESSAGES, f"{where}, {name}")
    return {
        name: [_message(item, bounds.message) for item in ends(messages, bounds.messages)],
        f"{name}_made": len(messages),
    }


def _message(item: dict[str, Any], most: int) -> Record:
    """Role and text of a message; what it has beside them, such as tool calls, as JSON below the text."""
    more = {name: value for name, value in item.items() if name not in {"role", "content"}}
    text = item.get("content") if not more else f"{_plain(item.get('content'))}\n{_plain(more)}"
    return {"role": str(item.get("role", "")), "text": content(text, most)}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tokens(row: dict[str, Any], bounds: Bounds, vocabulary: Vocabulary) -> Record:
    """`tokens`: the text of each and its log-probability when it was sampled; None where the text is not to be had.

    `cut_at` is how many stand before those left out in the middle.
    """
    ids, logprobs = row["completion_ids"], row["sampling_logprobs"]
    told = {"token_count": None if ids is None else len(ids), "logprob_mean": None, "tokens": None}
    if logprobs:
        told["logprob_mean"] = round(sum(logprobs) / len(logprobs), 4)
    cut = vocabulary.pieces(row["tokenizer"]) if ids else None
    if ids is None or cut is None:
        return told
    places, left_out = halves(ids, bounds.tokens)
    before = len(places) // 2 if left_out else len(places)
    shown = [ids[place] for place in places]
    pieces = [*cut(shown[:before]), *cut(shown[before:])]
    values = None if logprobs is None else [round(logprobs[place], 3) for place in places]
    return told | {"tokens": {"pieces": pieces, "logprobs": values, "left_out": left_out, "cut_at": before}}
