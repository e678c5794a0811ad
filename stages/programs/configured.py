"""The adapter that a program sets with `dspy.configure`: its own, whatever else this process loads.

DSPy keeps it for the process. A process loads several programs (a teacher's beside the student's, the tasks of a study
one after another), and none may run in the adapter of another, by the order in which they came.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_IMPORTED: dict[str, Any] = {}
"""What importing a program's modules set, by their files and the recipe's folder: a module is imported once."""


@dataclass
class Configured:
    """What is set while a program is loaded."""

    outside: Any
    """What was set before: by the process itself, for programs that are its objects."""
    _imported: Any = None
    _before_made: Any = None

    def imported(self, root: Path, modules: list[str]) -> None:
        """The program's modules were imported, now or before."""
        places = [str(root.resolve()), *(str(getattr(sys.modules.get(name), "__file__", name)) for name in modules)]
        now = adapter_now()
        if now is not self.outside:
            _IMPORTED.update(dict.fromkeys(places, now))
        self._imported = next((_IMPORTED[place] for place in places if place in _IMPORTED), now)
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


def adapter_now() -> Any:
    """What is set in this process; None before DSPy is imported."""
    dspy = sys.modules.get("dspy")
    return None if dspy is None else dspy.settings.adapter
