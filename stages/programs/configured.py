"""The adapter that a program sets with `dspy.configure`: its own, whatever else this process loads.

DSPy keeps it for the process. A process loads several programs (a teacher's beside the student's, the tasks of a study
one after another), and none may run in the adapter of another, by the order in which they came.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.programs.sources import code_digests

_IMPORTED: dict[tuple[str, str], Any] = {}
"""What importing a module set, by its name and the digest of its source: a module is imported once."""


@dataclass
class Configured:
    """What is set while a program is loaded."""

    outside: Any
    """What was set before: by the process itself, for programs that are its objects."""
    _loaded: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    _imported: Any = None
    _before_made: Any = None

    def imported(self, modules: list[str]) -> None:
        """The program's modules were imported, now or before."""
        code, now = code_digests(modules), adapter_now()
        if now is not self.outside:
            new = [name for name in code if name not in self._loaded]
            by = [name for name in new if _may_configure(name)] or [name for name in modules if name in code]
            _IMPORTED.update({(name, code[name]): now for name in by})
            self._imported = now
        else:
            self._imported = next((_IMPORTED[key] for key in code.items() if key in _IMPORTED), now)
        self._before_made = now

    @property
    def adapter(self) -> Any:
        """The program's, once it is made; None for DSPy's own choice."""
        now = adapter_now()
        return self._imported if now is self._before_made else now


@contextmanager
def loading() -> Iterator[Configured]:
    """To load a program in; afterwards the process has the adapter that it had."""
    found = Configured(adapter_now())
    try:
        yield found
    finally:
        if adapter_now() is not found.outside:
            import dspy

            dspy.configure(adapter=found.outside)


def _may_configure(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and b"configure" in Path(file).read_bytes()


def adapter_now() -> Any:
    """What is set in this process; None before DSPy is imported."""
    dspy = sys.modules.get("dspy")
    return None if dspy is None else dspy.settings.adapter
