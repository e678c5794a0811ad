"""The folder of a cluster of our own: its sockets and logs. It goes with the command, or with the next one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from pipeline.locks import hold
from schemas.errors import LockedError

LOCK = "lock"


@contextmanager
def folder_of_session() -> Iterator[Path]:
    """A folder that nobody else has. What killed commands left is taken away.

    Sockets lie below it, whose paths may have 107 characters only: so not where TMPDIR says.
    """
    below = Path("/tmp") if Path("/tmp").is_dir() else Path(gettempdir())  # noqa: S108 - see above
    name = f"mmgrpo-ray-{os.getuid()}-"
    for left in below.glob(f"{name}*"):
        with suppress(LockedError, OSError), hold(left / LOCK, "the session"):  # of a command that still runs
            shutil.rmtree(left)
    made = Path(mkdtemp(prefix=f"making-{name}", dir=below))
    with hold(made / LOCK, "the session"):
        own = made.rename(made.with_name(made.name.removeprefix("making-")))  # nobody sees it without its lock held
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
