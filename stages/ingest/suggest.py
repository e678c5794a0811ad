"""Rules to propose for calls whose module the log does not say. A person reads them, and pastes them into the recipe.

Calls are told apart by their predictor's signature, else by their system prompt. Words with a digit in them (dates,
counts, ids, the marks of what was taken out) are filled in anew with each call: they stand for any word. Prompts that
begin alike are told apart by a line that no other one has; where there are too many of them, what follows their first
line is data. Rather two rules for one module than one for two: a person sees the former.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stages.ingest.modules import Place

VARIANTS = 20
"""Prompts that begin alike and are told apart."""
BEGINNINGS = 200
"""First lines of prompts that become rules."""
_ANY = "\0"
_FILLED = re.compile(r"\S*\d\S*")
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Suggestion:
    """Calls that look alike."""

    module: str
    """A name from their own words, to be corrected."""
    rule: Mapping[str, str]
    """Patterns by what they look at, as in `ModuleRule`."""
    calls: int
    alike: bool = False
    """Nothing else is known of them: they may be of several modules."""


@dataclass
class _Seen:
    """What is known of the calls, counted."""

    signatures: Counter[str] = field(default_factory=Counter)
    prompts: dict[str, Counter[Lines]] = field(default_factory=dict)
    """By first line."""
    data: set[str] = field(default_factory=set)
    """First lines that too many prompts have: they stand for all of them."""
    bare: Counter[str] = field(default_factory=Counter)
    """Calls with neither, by the name of their span."""
    others: int = 0
    """Calls whose prompts begin in yet other ways."""

    def add(self, place: Place) -> None:
        lines = tuple(line for line in map(_masked, place.system.splitlines()) if line)
        if place.signature:
            self.signatures[place.signature] += 1
        elif not lines:
            self.bare[place.names[0] if place.names else ""] += 1
        elif lines[0] in self.prompts or len(self.prompts) < BEGINNINGS:
            self._prompt(self.prompts.setdefault(lines[0], Counter()), lines)
        else:
            self.others += 1

    def _prompt(self, found: Counter[Lines], lines: Lines) -> None:
        beginning = lines[:1]
        if lines not in found and len(found) == VARIANTS:
            self.data.add(lines[0])
            calls = found.total()
            found.clear()
            found[beginning] = calls
        found[beginning if lines[0] in self.data else lines] += 1


@dataclass(frozen=True)
class Proposal:
    """What is proposed for a log."""

    rules: tuple[Suggestion, ...]
    """The most frequent first."""
    modules: tuple[str, ...]
    """Of the program, where they are known."""
    others: int
    """Calls that none of the rules is for."""


def suggest(places: Iterable[Place], modules: Sequence[str] | None) -> Proposal:
    """Rules that would tell these calls apart.

    Args:
        places: of the calls that no module is known for.
        modules: of the program, where they are known: a rule whose signature is that of one module only names it.
    """
    seen = _Seen()
    for place in places:
        seen.add(place)
    taken: Counter[str] = Counter()
    rules = []
    for words, rule, calls, alike in sorted(_rules(seen), key=lambda item: (-item[2], item[0])):
        name = _name(words, modules)
        taken[name] += 1
        rules.append(Suggestion(name if taken[name] == 1 else f"{name}_{taken[name]}", rule, calls, alike))
    return Proposal(tuple(rules), tuple(modules or ()), seen.others)


def _rules(seen: _Seen) -> Iterator[tuple[str, dict[str, str], int, bool]]:
    """Words to name it by, the rule, its calls, and whether nothing else is known of them."""
    for signature, calls in seen.signatures.items():
        yield signature, {"signature": _escaped(signature)}, calls, False
    prompts = [(lines, calls) for found in seen.prompts.values() for lines, calls in found.items()]
    in_how_many = Counter(line for lines, _ in prompts for line in set(lines))
    for lines, calls in prompts:
        own = next((line for line in lines if in_how_many[line] == 1), None)
        pattern = rf"\A\s*{_WRAP.join(map(_escaped, lines))}\s*\Z" if own is None else rf"(?m)^\s*{_escaped(own)}\s*$"
        yield own or lines[0], {"system": pattern}, calls, False
    for name, calls in seen.bare.items():
        span = {"span": _escaped(name)} if name else {}
        yield name, {**span, "system": "^$"}, calls, True


_WRAP = r"\s*\n\s*"


def _masked(line: str) -> str:
    return _FILLED.sub(_ANY, line.replace(_ANY, " ").strip())


def _escaped(text: str) -> str:
    """A pattern for a text as it is, but for what is filled in; blanks stay readable."""
    return _SPECIAL.sub(r"\\\1", text).replace(_ANY, r"\S+")


def _name(text: str, modules: Sequence[str] | None) -> str:
    words = re.findall(r"[A-Za-z][A-Za-z0-9]*", text)
    name = "_".join(word.lower() for word in words[-2 if "->" in text else 0 :][:4]) or "module"
    return next((known for known in modules or () if known.split(".")[-1] in (name, text)), name)


def as_toml(proposal: Proposal) -> str:
    """Rules to paste into a recipe, whose names are there to be corrected."""
    if not proposal.rules:
        return "# every call has a module already\n"
    lines = []
    if proposal.modules:
        lines += [f"# the program's modules: {', '.join(map(_shown, proposal.modules))}", ""]
    if proposal.others:
        lines += [
            f"# {proposal.others} calls more begin in over {BEGINNINGS} ways: shorten a rule to what they share, and",
            "# ask again",
            "",
        ]
    for item in proposal.rules:
        alike = ["# no system prompt tells these apart: if they are of several modules, log mmgrpo.module"]
        lines += ["[[ingest.modules]]", *(alike if item.alike else [])]
        lines += [f"module = {_quoted(item.module)} # {item.calls} calls; the module's real name"]
        lines += [*(f"{name} = {_quoted(pattern)}" for name, pattern in item.rule.items()), ""]
    return "\n".join(lines)


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _quoted(text: str) -> str:
    """A TOML string: literal where that can hold it, since patterns are full of backslashes."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped) + '"'
