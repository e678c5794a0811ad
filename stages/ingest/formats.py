"""Which formats there are, and which of them a file is in, by what it holds.

A format is a module with

- `NAME`, as `--format` takes it and as a row's `source` says (`ingest:NAME`);
- `recognises(value, shape)`: whether the first value of a file looks like it;
- `read(value, where)`: the spans, scores and refusals of one value;
- optionally `SPLIT`, keys of lists by which a large object is read item after item, and `WHOLE = True` where an array
  is one value rather than many;
- optionally `values_of(address)`: the values of a file that this format knows by its bytes and reads in its own way;
  None for any other file.

Other packages add formats by an entry point of the group `mmgrpo.trace_formats` that names such a module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Any, Protocol, cast

from schemas.errors import DataError, RecipeError
from stages.ingest.csv_rows import csv_values
from stages.ingest.files import size_of
from stages.ingest.guard import BROKEN, refusal
from stages.ingest.normal import Item, Refused
from stages.ingest.pieces import Piece, lines_of, pieces_of
from stages.ingest.read import is_binary, read_values
from stages.ingest.shape import Shape, Value

GROUP = "mmgrpo.trace_formats"
BUILT_IN = (
    "mmgrpo_tables",
    "mmgrpo_capture",
    "otlp_json",
    "jaeger",
    "mlflow",
    "langfuse",
    "langsmith",
    "otel_spans",
    "atif",
    "nemo_gym",
    "inspect_ai",
    "tau_bench",
    "swe_agent",
    "dspy_history",
    "openai_batch",
    "openai_evals",
    "openai_chat",
    "scores",
)
"""In the order in which they are tried: what is told apart by one odd key comes before what is told by common ones."""
AUTO = "auto"
_LOOKED_AT = 64
"""Values of no known format, at most, that are looked past: a log may begin with a broken one."""


class Format(Protocol):
    """See the module's text."""

    NAME: str

    def recognises(self, value: Any, shape: Shape) -> bool:
        """Whether a file that begins with this value is in this format."""

    def read(self, value: Any, where: str) -> Iterator[Item]:
        """What one value of a file holds."""


@cache
def formats() -> dict[str, Format]:
    """All formats by name: those of other packages first, then the built-in ones.

    Raises:
        RecipeError: when another package's format cannot be imported or is none.
    """
    found: dict[str, Format] = {}
    for entry in metadata.entry_points(group=GROUP):
        try:
            found[entry.name] = _checked(entry.load(), entry.name)
        except Exception as error:
            raise RecipeError(f"the trace format '{entry.name}' of {entry.value} cannot be used: {error}") from error
    for name in BUILT_IN:
        found.setdefault(name, cast("Format", importlib.import_module(f"stages.ingest.{name}")))
    return found


def _checked(module: Any, name: str) -> Format:
    lacking = [part for part in ("NAME", "recognises", "read") if not hasattr(module, part)]
    if lacking or name != module.NAME:
        raise TypeError(f"it lacks {', '.join(lacking)}" if lacking else f"its NAME is '{module.NAME}', not '{name}'")
    return cast("Format", module)


def format_named(name: str) -> Format:
    """The format of a name.

    Raises:
        RecipeError: when there is none; lists those there are.
    """
    known = formats()
    if name not in known:
        raise RecipeError(f"there is no trace format '{name}'; there are {', '.join(sorted(known))}, and '{AUTO}'")
    return known[name]


def recognise(address: str) -> Format | Refused:
    """The format of a file, by its bytes or by the first of its first values that one is known by."""
    try:
        whose = next((known for known in formats().values() if _by_bytes(known, address) is not None), None)
        values = csv_values(address) or read_values(address, _all_splits())
    except OSError as error:
        return Refused("not_readable", str(error), address)
    if whose is not None:
        return whose
    refused: Refused | None = None
    unknown, passed = "", 0
    for value in values:
        if isinstance(value, Refused):
            refused = refused or value
            continue
        if (known := _format_of(value)) is not None:
            return known
        unknown, passed = unknown or _shown(value.value), passed + 1
        if passed == _LOOKED_AT:
            break
    if (unknown or (refused and refused.reason == "not_json")) and is_binary(address):
        return Refused("binary", "it is no text: of OTLP, JSON is read and protobuf is not", address)
    if unknown:
        return Refused("unknown_format", unknown, address)
    return refused or Refused("empty", "the file holds no value", address)


def _all_splits() -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for known in formats().values() for key in getattr(known, "SPLIT", ())))


def _format_of(value: Value) -> Format | None:
    held = value.value
    found = next((known for known in formats().values() if known.recognises(held, value.shape)), None)
    if found is None and value.shape == "lines" and isinstance(held, list) and held:
        return _format_of(Value(held[0], "array", value.where))
    return found


def _shown(value: Any) -> str:
    what = (
        f"an object with the keys {', '.join(map(str, list(value)[:8]))}"
        if isinstance(value, dict)
        else str(type(value).__name__)
    )
    return f"its first value is {what}, which no format is known by; name it with --format"


def read_items(address: str, known: Format) -> Iterator[Item]:
    """The items of a file in a format. A value that the format's reader stumbles over is refused, and the rest read."""
    try:
        values = opened(known, address) or read_values(address, getattr(known, "SPLIT", ()))
    except OSError as error:
        yield Refused("not_readable", str(error), address)
    else:
        yield from _items(values, address, known)


def pieces(address: str, known: Format) -> Iterator[Piece | Refused]:
    """A file in pieces, in order, whose items by `piece_items` are those of the file."""
    try:
        whole = opened(known, address) is not None
    except OSError as error:
        yield Refused("not_readable", str(error), address)
    else:
        yield from [Piece(address, None, 0, size_of(address))] if whole else pieces_of(address)


def piece_items(piece: Piece, known: Format) -> Iterator[Item]:
    """The items of a piece of a file, as `read_items`."""
    if piece.lines is None:
        return read_items(piece.address, known)
    return _items(lines_of(piece), piece.address, known)


def _items(values: Iterator[Value | Refused], address: str, known: Format) -> Iterator[Item]:
    for value in _gathered(values, address) if getattr(known, "WHOLE", False) else values:
        if isinstance(value, Refused):
            yield value
            continue
        for one in _each(value, known):
            try:
                yield from known.read(one, value.where)
            except (DataError, *BROKEN) as error:
                yield refusal(error, value.where)


def opened(known: Format, address: str) -> Iterator[Value | Refused] | None:
    """The values of a file that is no JSON and not to be cut into lines; None for any other.

    Raises:
        OSError: when it cannot be opened.
    """
    return _by_bytes(known, address) or csv_values(address)


def _by_bytes(known: Format, address: str) -> Iterator[Value | Refused] | None:
    opens: Callable[[str], Iterator[Value | Refused] | None] | None = getattr(known, "values_of", None)
    return None if opens is None else opens(address)


def _each(value: Value, known: Format) -> list[Any]:
    """The value; of a line that is a list of values, as logs of batches are, each of them."""
    held = value.value
    listed = value.shape == "lines" and isinstance(held, list) and not getattr(known, "WHOLE", False)
    return held if listed and not known.recognises(held, value.shape) else [held]


def _gathered(values: Iterator[Value | Refused], address: str) -> Iterator[Value | Refused]:
    """All items of an array as one value; what stands alone, or on lines, as it is."""
    items: list[Any] = []
    for value in values:
        if isinstance(value, Value) and value.shape == "array":
            items.append(value.value)
        else:
            yield value
    if items:
        yield Value(items, "array", address)
