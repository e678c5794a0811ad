"""Files replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.remote.attached import written


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        written(path)
    finally:
        temporary.unlink(missing_ok=True)
