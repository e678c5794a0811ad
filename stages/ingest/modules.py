"""Which module of the program a logged call belongs to, and rules to propose where the log does not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.recipe_ingest import IngestSection, ModuleRule
from stages.ingest.normal import Span
from stages.ingest.tree import Tree

NO_MODULE, AMBIGUOUS = "no_module", "ambiguous_module"
_PREDICT = re.compile(r"Predict\((\w+)\)\.forward")
_SHOWN = 60


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


@dataclass
class Suggestion:
    """Calls that look alike: one signature, or one beginning of a system prompt."""

    module: str
    field: str
    pattern: str
    calls: int


def suggest(places: Iterable[Place], modules: Sequence[str] | None) -> list[Suggestion]:
    """Rules that would tell these calls apart, the most frequent first.

    Args:
        places: of the calls that no module is known for.
        modules: of the program, where they are known: a rule whose signature is that of one module only names it.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for place in places:
        counts[("signature", place.signature) if place.signature else ("system", _first_line(place.system))] += 1
    found: list[Suggestion] = []
    taken: Counter[str] = Counter()
    for (field, text), calls in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        name = _name(text, modules)
        taken[name] += 1
        unique = name if taken[name] == 1 else f"{name}_{taken[name]}"
        found.append(Suggestion(unique, field, re.escape(text), calls))
    return found


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else ""


def _name(text: str, modules: Sequence[str] | None) -> str:
    words = re.findall(r"[A-Za-z][A-Za-z0-9]*", text)
    name = "_".join(word.lower() for word in words[-2 if "->" in text else 0 :][:4]) or "module"
    return next((known for known in modules or () if known.split(".")[-1] in (name, text)), name)


def as_toml(suggestions: Sequence[Suggestion]) -> str:
    """Rules to paste into a recipe. Names are guesses from the prompts' own words: they are there to be corrected."""
    if not suggestions:
        return "# every call has a module already\n"
    lines = []
    for item in suggestions:
        lines += ["[[ingest.modules]]", f"module = {_quoted(item.module)} # {item.calls} calls; the module's real name"]
        lines += [f"{item.field} = {_quoted(item.pattern)}", ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A TOML string: literal where that can hold it, since patterns are full of backslashes."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped) + '"'
