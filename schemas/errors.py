"""The error family. Every class names the exit code that the command line returns for it."""

from __future__ import annotations

from dataclasses import dataclass


class MmgrpoError(Exception):
    """Base of all errors meant for a user: what is wrong, where, and what to do next."""

    exit_code = 4


class RecipeError(MmgrpoError, ValueError):
    """The recipe, the command line, or a thing that the recipe names is wrong."""

    exit_code = 2


class DataError(MmgrpoError, ValueError):
    """Data breaks a contract: a table, an artifact or a manifest is not what it must be."""

    exit_code = 3


class StageError(MmgrpoError, RuntimeError):
    """A stage could not finish for a reason that is neither the recipe nor the data."""

    exit_code = 4


class LockedError(MmgrpoError):
    """Another process holds the run or the artifact (75 is EX_TEMPFAIL of sysexits.h)."""

    exit_code = 75


@dataclass(frozen=True)
class Violation:
    """One broken rule of a table: how many rows break it, and up to three of their keys."""

    rule: str
    count: int
    samples: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = f", for example {', '.join(self.samples)}" if self.samples else ""
        return f"{self.rule}: {self.count} row{'' if self.count == 1 else 's'}{shown}"


class ContractError(DataError):
    """A table breaks its schema. Lists every failing rule, its count and three sample keys."""

    def __init__(self, table: str, where: str, violations: list[Violation], hint: str = "") -> None:
        self.table, self.where, self.violations = table, where, tuple(violations)
        lines = [f"table '{table}' in {where} breaks its contract:"]
        lines += [f"  - {violation}" for violation in violations]
        super().__init__("\n".join([*lines, hint] if hint else lines))


class ParseError(Exception):
    """Raised by a program's `parse` when a completion does not have the expected form.

    `parsed` are the field names that could be read, `expected` all that should have been there; their
    share decides the format reward (see the group stage).
    """

    def __init__(self, parsed: list[str] | tuple[str, ...], expected: list[str] | tuple[str, ...]) -> None:
        self.parsed, self.expected = tuple(parsed), tuple(expected)
        missing = [name for name in self.expected if name not in self.parsed]
        super().__init__(f"completion lacks {', '.join(missing) or 'the expected form'}")

    @property
    def share(self) -> float:
        """Share of the expected fields that were parsed, in [0, 1]; 0 when nothing was expected."""
        if not self.expected:
            return 0.0
        return len(set(self.parsed) & set(self.expected)) / len(set(self.expected))
