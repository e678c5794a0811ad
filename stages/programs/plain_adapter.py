"""A DSPy adapter that writes fields plainly, for small models that follow no markers.

The system turn is the signature's instructions, demonstrations are earlier turns of the chat. A side of a signature
with one field is that field's value alone; with several, each begins a line with its name, `Field name: value`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dspy
from dspy.adapters.utils import apply_output_field_defaults, format_field_value, parse_value
from dspy.utils.exceptions import AdapterParseError


class PlainAdapter(dspy.Adapter):
    """Set it as the attribute `adapter` of a program, or with `dspy.configure(adapter=PlainAdapter())`."""

    def format_system_message(self, signature: Any) -> str:
        """The instructions; where several output fields are asked for, also how to write them."""
        text = str(signature.instructions)
        if len(signature.output_fields) == 1:
            return text
        lines = "\n".join(f"{_label(name)}: …" for name in signature.output_fields)
        return f"{text}\nAnswer in exactly these lines:\n{lines}"

    def format_user_message_content(
        self,
        signature: Any,
        inputs: Mapping[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,  # noqa: ARG002 - DSPy's signature
    ) -> str:
        """The input fields that are there. DSPy's note on incomplete demonstrations is left out."""
        del prefix
        return "\n".join(part for part in (_written(signature.input_fields, inputs), suffix) if part)

    def format_assistant_message_content(
        self, signature: Any, outputs: Mapping[str, Any], missing_field_message: str | None = None
    ) -> str:
        """The output fields; those not supplied are left out."""
        del missing_field_message
        return _written(signature.output_fields, outputs)

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The output fields of a completion.

        Raises:
            AdapterParseError: with the fields that could be read, when one is missing or has the wrong type.
        """
        fields: dict[str, Any] = {}
        problem: str | None = None
        for name, text in _split(list(signature.output_fields), completion).items():
            try:
                fields[name] = parse_value(text, signature.output_fields[name].annotation)
            except ValueError as error:
                problem = f"field {name}: {error}"
        complete: dict[str, Any] = apply_output_field_defaults(signature, fields)
        if problem is None and complete.keys() == signature.output_fields.keys():
            return complete
        raise AdapterParseError("PlainAdapter", signature, completion, message=problem, parsed_result=fields)


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _written(fields: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    texts = {name: _text(field, values[name]) for name, field in fields.items() if values.get(name) is not None}
    if len(fields) == 1:
        return "".join(texts.values())
    return "\n".join(f"{_label(name)}: {text}" for name, text in texts.items())


def _text(field: Any, value: Any) -> str:
    """As DSPy writes it. A text is its own, without the type adapter that DSPy would make for each."""
    return value if type(value) is str else str(format_field_value(field, value))


def _split(names: list[str], completion: str) -> dict[str, str]:
    if len(names) == 1:
        return {names[0]: completion.strip()} if completion.strip() else {}
    labels = {_label(name).lower(): name for name in names}
    pattern = re.compile(rf"^\s*({'|'.join(map(re.escape, labels))})\s*:", re.IGNORECASE | re.MULTILINE)
    marks = list(pattern.finditer(completion))
    ends = [*(mark.start() for mark in marks), len(completion)][1:]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        found.setdefault(labels[mark.group(1).lower()], completion[mark.end() : end].strip())
    return found
