"""The input of a trace as the inputs of the program, and the id of its example."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.canonical import canonical_json, digest_bytes
from schemas.recipe_ingest import IngestSection
from stages.ingest.stored import canonical_bytes
from stages.ingest.tree import Tree
from stages.ingest.values import unpacked

NO_INPUT, UNKNOWN_INPUTS, NO_JSON = "no_input", "unknown_inputs", "input_without_json_form"


def inputs_of(tree: Tree, names: Sequence[str], section: IngestSection) -> dict[str, Any] | str:
    """The program's inputs in a trace, or the reason why they are not known.

    They stand in the root's input under their names, where the recipe's `ingest.inputs` says, or are the whole of it
    where the program has one input and the log a text. Where the root logs no input, or there is none, the program's
    one input is what the user says first in its first LM call.
    """
    if tree.root and tree.root.own:
        section = section.model_copy(update={"inputs": {}})  # our own tables have them by their names
    root = _unwrapped(tree.root.inputs if tree.root else None)
    if root is None and not section.inputs:
        root = _first_said(tree)
    if root is None:
        return NO_INPUT
    found = {name: _at(root, section.inputs.get(name, name)) for name in names}
    if len(names) == 1 and found[names[0]] is None and not section.inputs and not (tree.root and tree.root.own):
        found = {names[0]: _only_text(root)}
    if any(value is None for value in found.values()):
        return UNKNOWN_INPUTS
    try:
        _told(found)
    except TypeError:
        return NO_JSON
    return found


def _told(inputs: dict[str, Any]) -> bytes:
    """Their canonical JSON.

    Raises:
        TypeError: for what has none.
    """
    if all(type(value) is str for value in inputs.values()):
        return canonical_bytes(inputs)  # the same, in a fifth of the time
    return canonical_json(inputs).encode()


def _unwrapped(value: Any) -> Any:
    """The input out of what callers wrap around it: JSON in texts, and `{"args": [], "kwargs": {…}}`."""
    value = unpacked(value)
    if isinstance(value, Mapping) and isinstance(value.get("kwargs"), Mapping) and not value.get("args"):
        return value["kwargs"]
    return value


def _at(value: Any, path: str) -> Any:
    """What stands at a dotted path; None where there is nothing."""
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for step in path.split("."):
        value = unpacked(value)
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdecimal() and -len(value) <= int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def _only_text(value: Any) -> str | None:
    """A text, or the only text that an object of one field holds."""
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return value if isinstance(value, str) and value else None


def _first_said(tree: Tree) -> str | None:
    for span in tree.calls():
        for said in span.call.messages if span.call else ():
            if said.get("role") == "user" and said.get("content"):
                return str(said["content"])
    return None


def id_of(inputs: dict[str, Any], secret: bytes | None) -> str:
    """The example's id: that of the examples table, or keyed by a secret."""
    told = _told(inputs)
    return (digest_bytes(told) if secret is None else hmac.new(secret, told, hashlib.sha256).hexdigest())[:16]


def split_of(identity: str, dev: float) -> str:
    """`train` or `dev`: by the id alone, so that an example stays where it is as traces come in."""
    share = int(hashlib.sha256(f"split {identity}".encode()).hexdigest()[:13], 16) / 16**13
    return "dev" if share < dev else "train"


def json_or_none(value: Any) -> str | None:
    """Canonical JSON, or None for nothing and for what has no JSON form."""
    if value is None:
        return None
    try:
        return canonical_bytes(value).decode()
    except (TypeError, ValueError):
        return None
