"""Canaries: prompts that never change, completed greedily by every policy, to see what else training has moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import canonical_json, digest_file
from schemas.drift import CANARIES
from schemas.errors import DataError, MmgrpoError, RecipeError, StageError
from schemas.execution import Execution
from schemas.foreign import parse_json
from schemas.parquet import read_rows
from schemas.policies import SHARED
from schemas.recipe import Recipe
from stages.contract import Artifact, Inputs, Out
from stages.drifting.calls import row_of
from stages.engines.factory import make_engine, policy_adapters
from stages.engines.interface import Adapter, Engine, Request, Sampling
from stages.programs.desk import usage_figures
from stages.programs.recorder import Messages, checked_messages, encodable
from stages.training.members import Row

if TYPE_CHECKING:
    from stages.drifting.divergence import Measure

NAME = "canaries.parquet"


@dataclass(frozen=True)
class Canary:
    """A prompt."""

    id: str
    messages: Messages


def identify_canaries(recipe: Recipe, root: Path) -> str | None:
    """Digest of the recipe's file of canaries, once it is known to be one; None where it names none.

    Raises:
        RecipeError, DataError: as `read_canaries` does.
    """
    if recipe.canaries.path is None or not recipe.evaluate.drift:
        return None
    read_canaries(root / recipe.canaries.path)
    return digest_file(root / recipe.canaries.path)


def read_canaries(path: Path) -> list[Canary]:
    """The canaries of a file, sorted by id.

    Raises:
        RecipeError: when there is no such file.
        DataError: naming the line that is no canary, or whose id another one has; or for a file without any.
    """
    if not path.is_file():
        raise RecipeError(f"canaries.path: no file at {path}. The path starts at the recipe's folder.")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other line breaks may stand in a text
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    found: dict[str, Canary] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        canary = _parsed(line, f"{path}, line {number}")
        if canary.id in found:
            raise DataError(f"{path}, line {number}: another canary has the id '{canary.id}' already")
        found[canary.id] = canary
    if not found:
        raise DataError(f'{path}: no canaries; expected lines of {{"id": …, "messages": [{{"role", "content"}}, …]}}')
    return [found[name] for name in sorted(found)]


def _parsed(line: str, where: str) -> Canary:
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict) or set(record) != {"id", "messages"} or not isinstance(record["id"], str):
        raise DataError(f'{where}: expected {{"id": text, "messages": [{{"role", "content"}}, …]}}, got {line[:80]}')
    if not record["id"] or not encodable(record["id"]):
        raise DataError(f"{where}: the id is empty, or has a lone surrogate, which has no UTF-8 form")
    try:
        return Canary(record["id"], checked_messages(record["messages"]))
    except TypeError as error:
        raise DataError(f"{where}: {error}") from None


def complete(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> list[dict[str, Any]]:
    """What the policy says to each canary: rows of the canaries table, sorted by (canary_id, module), not yet compared.

    A policy with several adapters is asked with each.

    Raises:
        RecipeError, DataError: for a file that changed since the run began, messages that the model's template
            refuses, or an engine that cannot be had.
        StageError: when the engine failed.
    """
    assert recipe.canaries.path is not None
    path = inputs.root / recipe.canaries.path
    if digest_file(path) != inputs.params["canaries"]:
        raise DataError(f"{path} changed while the run was going on: restore it, or run again to use it as it is now")
    engine, sampling = make_engine(recipe, execution, inputs), Sampling(0.0, None, None, recipe.canaries.max_new_tokens)
    asked: list[tuple[dict[str, Any], Request]] = []
    for canary in read_canaries(path):
        prompt = _encoded(engine, canary, path)
        row = {"canary_id": canary.id, "messages": canonical_json(canary.messages), "prompt_ids": list(prompt)}
        for module, adapter in _distinct(policy_adapters(inputs)):
            asked.append((row | {"module": module}, Request(prompt, sampling, 0, adapter, canary.messages)))
    before = usage_figures(engine.usage)
    answers = list(_answered(engine, asked))
    out.telemetry(**{name: value - before[name] for name, value in usage_figures(engine.usage).items()})
    return answers


def _encoded(engine: Engine, canary: Canary, path: Path) -> tuple[int, ...]:
    try:
        return engine.encode_chat(canary.messages)
    except MmgrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a template may refuse in any way
        raise DataError(
            f"{path}: the model's chat template refused the messages of canary '{canary.id}': {error}"
        ) from None


def _distinct(adapters: Mapping[str, Adapter]) -> Iterator[tuple[str, Adapter | None]]:
    """Each adapter once, under the first of its modules; the base under "*"."""
    if not adapters:
        yield SHARED, None
    seen: set[str] = set()
    for module in sorted(adapters):
        if adapters[module].digest not in seen:
            seen.add(adapters[module].digest)
            yield module, adapters[module]


def _answered(engine: Engine, asked: Sequence[tuple[dict[str, Any], Request]]) -> Iterator[dict[str, Any]]:
    try:
        results = engine.generate([request for _, request in asked])
    except MmgrpoError:
        raise
    except Exception as error:
        raise StageError(f"the engine failed on the canaries ({type(error).__name__}: {error}): run again") from error
    for (row, _), result in zip(asked, results, strict=True):
        there = result.finish_reason != "context_overflow"
        ids = list(result.completion_ids) if there and result.completion_ids else None
        told = {"completion": result.text if there else None, "completion_ids": ids}
        yield row | told | {"finish_reason": result.finish_reason}


def scored_canaries(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Row]]:
    """Module and tokens of each completion that has tokens."""
    for row in rows:
        if row["completion_ids"]:
            yield row["module"], row_of(f"canary {row['canary_id']}", 0, row | {"temperature": 1.0})


def compared(
    rows: Sequence[dict[str, Any]], measures: Sequence[Measure], base: Artifact | None
) -> list[dict[str, Any]]:
    """Whole rows of the canaries table.

    Args:
        rows: as `complete` gives them.
        measures: of those of them that `scored_canaries` names, in order.
        base: the drift artifact of the base; None where the policy is the base.
    """
    others = rows if base is None else read_rows(base.file(NAME), CANARIES)
    said = {row["canary_id"]: row["completion"] for row in others}
    left = iter(measures)
    whole = []
    for row in rows:
        found = next(left) if row["completion_ids"] else None
        texts = row["completion"], said.get(row["canary_id"])
        same = None if None in texts else texts[0] == texts[1]
        figures = {"kl_to_base": found.kl if found else None, "entropy": found.entropy if found else None}
        whole.append(row | {"same": same} | figures)
    return whole


def canary_figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many completions could be compared with the base's, how many are the same, and those that changed."""
    seen = [row for row in rows if row["same"] is not None]
    scored = [(row["kl_to_base"], len(row["completion_ids"])) for row in rows if row["kl_to_base"] is not None]
    tokens = sum(count for _, count in scored)
    return {
        "n": len(seen),
        "same_share": sum(row["same"] for row in seen) / len(seen) if seen else None,
        "mean_kl": sum(kl * count for kl, count in scored) / tokens if tokens else None,
        "changed": sorted({row["canary_id"] for row in seen if not row["same"]}),
    }
