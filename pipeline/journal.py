"""The journal of an artifact in the making: which shards were committed, each with the digest of its bytes.

It is written before a shard is there, durably: what no line speaks of was committed by no stage. A shard may have
several lines, when a process died between one and the shard itself; any of them may be the one that holds.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from schemas.canonical import digest_file
from schemas.errors import DataError

_LINE = re.compile(r"([0-9a-f]{64}) (.+)")


class Journal:
    """A file with a line for each shard."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enter(self, shards: Mapping[str, Path]) -> None:
        """Put shards by name, and the digest of what each of these files holds, into the journal, durably."""
        lines = "".join(f"{digest_file(path)} {name}\n" for name, path in shards.items())
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
            torn = file.read(1) not in {b"", b"\n"}  # a disk that was full may have cut the last line off
            file.write(("\n" * torn + lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def digests(self) -> dict[str, set[str]]:
        """Of each shard, by name, the digests that it may have; none where the line of an older release has none."""
        found: dict[str, set[str]] = defaultdict(set)
        for line in self.path.read_text(encoding="utf-8").splitlines():
            match = _LINE.fullmatch(line)
            if match is None:
                found[line].update()
            else:
                found[match[2]].add(match[1])
        return dict(found)

    def check(self, shards: Mapping[str, Path]) -> None:
        """Compare shards with their digests, before a stage goes on from them.

        Raises:
            DataError: naming the first that changed since it was committed.
        """
        digests = self.digests()
        for name, path in shards.items():
            if (known := digests.get(name)) and digest_file(path) not in known:
                raise DataError(
                    f"{path}: its bytes changed since the stage committed it. Delete it, or the whole .partial folder "
                    "that it is in, and run again: what is missing is made anew."
                )
