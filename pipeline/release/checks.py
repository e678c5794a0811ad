"""What verify asks of a run's records: are the chains whole, and does each decision have what it was made on?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.manifests import read_stored
from pipeline.release.ledger import ledger_of, looks, missing_looks
from pipeline.release.openings import openings
from pipeline.release.records import FOLDER, decisions, name_of
from pipeline.release.standing import history
from pipeline.reporting.opened import OpenRun, open_run
from schemas.decisions import Decision
from schemas.errors import DataError


def record_problems(folder: Path) -> list[str]:
    """Every problem of `decisions/`, the ledger and `openings.jsonl`; none where a run has none of them."""
    problems: list[str] = []
    made: list[Decision] = []
    try:
        openings(folder)
        made = decisions(folder)
    except DataError as error:
        problems.append(str(error))
    try:
        run = open_run(folder)
        problems += _of_ledger(run, made)
    except DataError as error:
        problems.append(str(error))
    return problems


def _of_ledger(run: OpenRun, made: list[Decision]) -> Iterator[str]:
    path = ledger_of(run.folder, run.recipe)
    found = looks(path)
    yield from (f"{path}: {lost}" for lost in missing_looks(found, made, run.recipe.gate.ledger))
    decided = {item.evidence.look for item in made if item.evidence is not None}
    undecided = [look for look in found if look.candidate in run.state.policies and look.digest not in decided]
    # Runs with one ledger may have policies in common, such as a run and its copy: whose look it was, the scores say.
    every = run.store.all() if undecided else []
    scored = {read_stored(folder).digest for stage, folder in every if stage == "evaluate"}
    for look in undecided:
        if look.candidate_scores in scored:
            yield (
                f"{path}: look {look.k} has no decision in {run.folder / FOLDER}: it was removed, or the run was "
                "killed before it was written; then `mmgrpo run` writes it"
            )
    if not run.state.policies:
        return
    now = history(run.state.policies[0], made)[-1]
    if now.decision is not None and now.adapter and run.store.find("train", now.adapter) is None:
        name = name_of(now.decision.number)
        yield f"{run.folder / FOLDER / name}: the adapter that it released, train/{now.adapter[:16]}, is not there"
