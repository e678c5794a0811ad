"""The one place where commands print: no text of a log, a model or a server steers the terminal, no key is shown."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from schemas.discretion import discreet
from schemas.visible import plain


def say(text: object, *, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print a text; `file` is standard output unless given."""
    show(discreet(str(text)), file=file, end=end, flush=flush)


def show(text: str, *, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print a text that is meant to hold a secret, as an address for the reader alone does."""
    print(plain(text), file=file or sys.stdout, end=end, flush=flush)


class Discreet(logging.Formatter):
    """Lines of a log as `say` prints them."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        return plain(discreet(super().format(record)))


def guard_logs() -> None:
    """Let what libraries log, where nobody has set up anything else, be printed as `say` does."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Discreet())
