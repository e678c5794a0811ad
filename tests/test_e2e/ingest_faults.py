"""Run ingests one after another and kill some of them with SIGKILL at the n-th event, to see what the next one does.

`python -m tests.test_e2e.ingest_faults STEPS`, in a process of its own: what is forked here has no threads to lose. A
step is an ingest (`arguments` of the command line, and `kill`: an event's number, or null), or a file to `write` (its
`text`, or null to remove it). The last line is one JSON list, of each ingest's exit `code`, how many `events` it saw,
what it `told` on the error output, the names of the files that it `read`, one for each piece, and how many parts of
the traces it `made`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.test_e2e.faults import in_child, preload

POINTS = (
    ("stages.ingest.chunks", "Chunks", "done"),
    ("stages.ingest.chunks", "Chunks", "append"),
    ("pipeline.partial", "PartialArtifact", "commit_shard"),
    ("stages.ingest.taken_up", None, "_cut"),
    ("stages.ingest.taken_up", None, "_take_out"),
    ("pathlib", "Path", "rename"),
    ("pathlib", "Path", "replace"),
    ("stages.ingest.kept_scores", "KeptScores", "keep"),
)
"""Before and after each, a process may be killed."""


class Counter:
    """Counts events, and kills this process at one of them; notes what was read in a file that outlives it."""

    def __init__(self, notes: Path, kill_at: int | None) -> None:
        self.notes, self.kill_at, self.seen = notes, kill_at, 0

    def event(self) -> None:
        self.seen += 1
        if self.seen == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.event()
            result = original(*arguments, **options)
            self.event()
            return result

        return wrapped

    def install(self) -> None:
        """Count in this process, for good."""
        from pipeline import ingest_steps
        from stages.ingest import formats
        from stages.ingest.ranges import Ranges

        for module, owner, name in POINTS:
            __import__(module)
            target = getattr(sys.modules[module], owner) if owner else sys.modules[module]
            setattr(target, name, self.around(getattr(target, name)))
        items = formats.piece_items

        def noted(piece: Any, known: Any) -> Any:
            with self.notes.open("a") as file:
                file.write(Path(piece.address).name + "\n")
            return items(piece, known)

        vars(ingest_steps)["piece_items"] = noted
        done = Ranges.done

        def made(ranges: Any, task: str, told: Any) -> None:
            with self.notes.with_suffix(".made").open("a") as file:
                file.write("1")
            done(ranges, task, told)

        Ranges.done = made


def ingested(arguments: list[str], kill_at: int | None, notes: Path) -> dict[str, Any]:
    """Run one ingest in a child."""
    events, made, told = (notes.with_suffix(suffix) for suffix in (".events", ".made", ".told"))
    for file in (notes, made):
        file.unlink(missing_ok=True)

    def work() -> int:
        from pipeline.cli import main
        from stages.ingest import pieces

        pieces.BLOCK = 2000
        counter = Counter(notes, kill_at)
        counter.install()
        with told.open("w") as stream, contextlib.redirect_stderr(stream):
            code = main(["ingest", *arguments])
        events.write_text(str(counter.seen))
        return code

    code = in_child(work)
    seen = int(events.read_text()) if code == 0 else 0
    return {
        "code": code,
        "events": seen,
        "told": told.read_text(),
        "read": notes.read_text().split() if notes.exists() else [],
        "made": len(made.read_text()) if made.exists() else 0,
    }


def _imported(arguments: list[str]) -> None:
    """Import here what an ingest imports."""

    def work() -> int:
        from pipeline.cli import main

        with tempfile.TemporaryDirectory() as folder:
            return main(["ingest", *arguments[:2], "--snapshots", folder, "--exec", "progress=off", *arguments[4:]])

    assert preload(work) == 0


def main(steps: list[dict[str, Any]]) -> None:
    """Do all steps."""
    found = []
    _imported(next(step["arguments"] for step in steps if "arguments" in step))
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            if "arguments" in step:
                found.append(ingested(step["arguments"], step["kill"], Path(folder) / "notes"))
            elif step["text"] is None:
                Path(step["write"]).unlink()
            else:
                Path(step["write"]).write_text(step["text"])
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
