"""A chat template rendered once for all conversations of one shape: what is said is put in afterwards.

That is right only where the template puts texts out as they are and decides nothing by them. Both are checked: its
source may hold only what is known here, and the texts that it is tried with raise when it does anything to them but
put something before or behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import Environment, TemplateError, nodes

Messages = Sequence[dict[str, str]]
_Skeleton = tuple[str, list[int]]
"""Texts of the template with `%s` for what is said, and the places of the messages that it is said in."""
_WORD = "the text of message"
_MARK = re.compile(f'\0"{_WORD} ([0-9]+)"\0')
"""In the place of a text. A template that writes it as JSON writes it otherwise, and is found out by the words."""
_SHAPES = 1024
"""So many shapes are remembered."""
_FINE = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.For,
    nodes.If,
    nodes.Assign,
    nodes.NSRef,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.Add,
    nodes.Sub,
    nodes.Neg,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.CondExpr,
    nodes.List,
    nodes.Keyword,
    nodes.Continue,
    nodes.Break,
)
_TESTS = frozenset({"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "true", "false"})
_FILTERS = frozenset({"trim", "length"})
_FUNCTIONS = frozenset({"raise_exception", "namespace"})


class Skeletons:
    """Renders conversations of messages that hold a `role` and a `content`.

    Args:
        template: its source; None where it is not known.
        render: gives a conversation's text, as the tokenizer does; used where a shape cannot be remembered.
    """

    def __init__(self, template: str | None, render: Callable[[Messages], str]) -> None:
        self._render, self._fine = render, template is not None and _only_puts_together(template)
        self._shapes: dict[tuple[str, ...], _Skeleton | None] = {}

    def text(self, messages: Messages) -> str:
        """The text of a conversation.

        Raises:
            TemplateError, TypeError, ValueError: as the template does.
        """
        if not self._fine:
            return self._render(messages)
        shape = tuple([said["role"] for said in messages])
        if shape not in self._shapes:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes[shape] = self._skeleton(shape)
        skeleton = self._shapes[shape]
        if skeleton is None:
            return self._render(messages)
        pattern, places = skeleton
        return pattern % tuple([messages[place]["content"] for place in places])

    def _skeleton(self, shape: tuple[str, ...]) -> _Skeleton | None:
        if _WORD in "".join(shape):
            return None
        tried = [{"role": role, "content": _Text(f'\0"{_WORD} {place}"\0')} for place, role in enumerate(shape)]
        try:
            made = self._render(tried)
        except (TemplateError, TypeError, ValueError):
            return None
        parts = _MARK.split(made)
        if any(_WORD in text for text in parts[::2]):
            return None
        return "%s".join(text.replace("%", "%%") for text in parts[::2]), [int(place) for place in parts[1::2]]


class _LookedAtError(ValueError):
    """A template did something to a text that may turn out otherwise for another text."""


def _looked(*_: Any, **__: Any) -> Any:
    raise _LookedAtError


class _Text(str):
    """A text that may be put out, and joined with others; whatever else is done to it raises."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return str.__getattribute__(self, name) if name[:2] == "__" else _looked()

    def __add__(self, other: str) -> _Text:
        return _Text(str.__add__(self, other))

    def __radd__(self, other: str) -> _Text:
        return _Text(str.__add__(other, self))

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __hash__ = _looked
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _looked
    __format__ = __repr__ = _looked


def _only_puts_together(template: str) -> bool:
    """Whether a template's source holds nothing that could hide from `_Text` what is done to it."""
    try:
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(template)  # noqa: S701 - not rendered
    except TemplateError:
        return False
    return _fine(parsed, printed=False)


def _fine(node: nodes.Node, *, printed: bool) -> bool:
    """Whether a part of a template is known. `printed`: what it gives goes into the text as it is, and nowhere else."""
    if isinstance(node, nodes.Concat):  # makes a text of whatever it is given
        return printed and all(_fine(part, printed=True) for part in node.iter_child_nodes())
    if isinstance(node, nodes.Filter):
        known = node.name in _FILTERS or (printed and node.name == "tojson")
    elif isinstance(node, nodes.Test):
        known = node.name in _TESTS
    elif isinstance(node, nodes.Call):
        known = _fine_call(node)
    else:
        known = type(node) in _FINE
    printed = isinstance(node, nodes.Output) or (printed and isinstance(node, nodes.Add))
    return known and all(_fine(part, printed=printed) for part in node.iter_child_nodes())


def _fine_call(node: nodes.Call) -> bool:
    """Functions of templates that make no text, and methods, which a text does not have here, of constants alone."""
    if isinstance(node.node, nodes.Name):
        return node.node.name in _FUNCTIONS
    constant = all(isinstance(given, nodes.Const) for given in node.args)
    return isinstance(node.node, nodes.Getattr) and constant and not node.kwargs
