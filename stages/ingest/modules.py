"""Which module of the program a logged call belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.recipe_ingest import IngestSection, ModuleRule
from stages.ingest.normal import Span
from stages.ingest.tree import Tree

NO_MODULE, AMBIGUOUS = "no_module", "ambiguous_module"
_PREDICT = re.compile(r"Predict\((\w+)\)\.forward")


class Place(NamedTuple):
    """What the log says of where a call was made."""

    names: tuple[str, ...]
    """Of its span and those above it, nearest first."""
    agent: str | None
    signature: str | None
    system: str


def place_of(span: Span, tree: Tree) -> Place:
    """What is known of a call's place."""
    above = list(tree.above(span))
    return Place(
        names=tuple(step.name for step in above if step.name),
        agent=next((step.agent for step in above if step.agent), None),
        signature=next((found for step in above if (found := _signature(step))), None),
        system=next((str(said["content"]) for said in _messages(span) if said.get("role") == "system"), ""),
    )


def _signature(span: Span) -> str | None:
    """Of a predictor: as an attribute, or in the name of its span."""
    named = _PREDICT.fullmatch(span.name)
    return span.signature or (named[1] if named else None)


def _messages(span: Span) -> Sequence[Mapping[str, object]]:
    return () if span.call is None else span.call.messages


def module_of(span: Span, tree: Tree, section: IngestSection) -> tuple[str | None, str | None]:
    """The module of a call, and why there is none: `mmgrpo.module`, else the recipe's rules, else the agent's name."""
    if span.module:
        return span.module, None
    if section.modules:
        place = place_of(span, tree)
        found = {rule.module for rule in section.modules if _holds(rule, place)}
        if len(found) > 1:
            return None, AMBIGUOUS
        if found:
            return found.pop(), None
    if section.names == "agents":
        for step in tree.above(span):
            if step.agent:
                return step.agent, None
    return None, NO_MODULE


def _holds(rule: ModuleRule, place: Place) -> bool:
    return (
        (rule.span is None or any(re.fullmatch(rule.span, name) for name in place.names))
        and (rule.agent is None or re.fullmatch(rule.agent, place.agent or "") is not None)
        and (rule.signature is None or re.fullmatch(rule.signature, place.signature or "") is not None)
        and (rule.system is None or re.search(rule.system, place.system) is not None)
    )
