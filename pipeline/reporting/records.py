"""What verify finds wrong with the records of a run, for the report: whoever reads it must not rely on them."""

from __future__ import annotations

from pathlib import Path

from pipeline.release.checks import record_problems
from pipeline.reporting.data import Note
from pipeline.reporting.text import plural


def about_records(folder: Path) -> tuple[Note, ...]:
    """One warning of the looks, decisions and openings of a run that were changed or lost; nothing where none were.

    Args:
        folder: of the run, at which nothing is at work: a look stands there a moment before its decision.
    """
    problems = record_problems(folder)
    if not problems:
        return ()
    first = problems[0].replace(f"{folder}/", "")
    more = f" That is the first of {plural(len(problems), 'problem')}." if len(problems) > 1 else ""
    return (Note("warning", f"The records of this run do not verify (`mmgrpo verify`): {first.rstrip('.')}.{more}"),)
