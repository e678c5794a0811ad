"""`mmgrpo export adapter`: a policy of a run as a folder of its own, whole or not there at all."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

from pipeline.exporting import card, provenance
from pipeline.exporting.base import find_base, licence_of, look_for_base, terms_of
from pipeline.exporting.chosen import Chosen, choose
from pipeline.exporting.discreet import discreet
from pipeline.exporting.facts import Facts, facts_of
from pipeline.exporting.toml import as_toml
from pipeline.reporting.opened import open_run
from schemas.errors import RecipeError
from stages.engines.adapters import BASE, CONFIG, INDEX, WEIGHTS


def export_adapter(
    run: Path, folder: Path, *, policy: str | None = None, merged: bool = False, base: str | None = None
) -> Facts:
    """Write the adapter of a policy, or the base with it merged, with a card and where it comes from.

    Args:
        run: the run folder.
        folder: to write; must not be there.
        policy: its digest or the beginning of it, or `newest`; None: what is released.
        merged: whole weights instead of an adapter.
        base: where the base model is, if not where the recipe says, seen from the working folder.

    Raises:
        RecipeError: when there is no such policy, nothing is released, the folder is there already, several adapters
            are to be merged, or the base to merge with is not to be had.
        DataError: when the policy learnt from traces that were to be forgotten, or files are not what they were.
    """
    opened = open_run(run)
    if folder.exists() or folder.is_symlink():
        raise RecipeError(f"{folder} exists already: give another name")
    chosen = choose(opened, policy)
    if merged:
        _refuse_several(chosen)
    facts = facts_of(opened, chosen)
    name = base or opened.recipe.model.base
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        draft.mkdir(parents=True)
        if merged:
            facts = dataclasses.replace(facts, merged=_write_merged(chosen, name, draft))
        else:
            _copy_adapters(chosen, draft)
        facts = _with_terms(facts, name, draft)
        (draft / card.RECIPE).write_text(as_toml(discreet(facts.recipe)), encoding="utf-8")
        told = provenance.provenance_of(opened, chosen, draft, merged=facts.merged)
        (draft / provenance.NAME).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        (draft / card.NAME).write_text(card.card(facts), encoding="utf-8")
        for path in draft.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        draft.rename(folder)
    except OSError as error:
        raise RecipeError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return facts


def _refuse_several(chosen: Chosen) -> None:
    if len(chosen.adapters.folders) > 1 or list(chosen.adapters.names) != ["*"]:
        names = ", ".join(f"{name} for {module}" for module, name in sorted(chosen.adapters.names.items()))
        raise RecipeError(
            f"the policy has adapters of single modules ({names}); merged weights are one model, which would serve all "
            "modules alike. Export without --merged and serve each module with its own adapter"
        )


def _copy_adapters(chosen: Chosen, draft: Path) -> None:
    """The artifact's own bytes: one folder each where modules have adapters of their own."""
    own = chosen.adapters
    several = list(own.names) != ["*"]
    for name, source in own.folders.items():
        target = draft / name if several else draft
        target.mkdir(exist_ok=True)
        for file in (CONFIG, WEIGHTS, BASE):
            shutil.copyfile(source / file, target / file)
    if several:
        source = next(iter(own.folders.values())).parent / INDEX
        shutil.copyfile(source, draft / INDEX)


def _write_merged(chosen: Chosen, name: str, draft: Path) -> str:
    from pipeline.exporting.merged import write_merged

    [adapter] = chosen.adapters.folders.values()
    return write_merged(adapter, find_base(name, chosen.base["base"]), draft)


def _with_terms(facts: Facts, name: str, draft: Path) -> Facts:
    """The facts with the base's licence, whose files are copied, where the base is on this machine."""
    base = look_for_base(name, facts.base["base"])
    if base is None:
        return facts
    copied: list[str] = []
    for file in terms_of(base.path):
        copied.append(f"BASE_{file.name}")
        shutil.copyfile(file, draft / copied[-1])
    return dataclasses.replace(facts, licence=licence_of(base.path), licence_files=tuple(copied))
