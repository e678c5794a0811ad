"""Memory that one step of reading may take, whatever a file says of the sizes of what it holds."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLOOR = 2 << 30
"""Bytes for any file; a cell of more is read from no table.

Twice what Arrow's allocator reserves at its first use, which counts here though little of it is ever touched: with no
more than that a new process could not start a thread, and would refuse the first table that it is given.
"""
_STATM = Path("/proc/self/statm")


def allowance(size: int) -> int:
    """Bytes of memory for one batch of rows of a file of so many bytes."""
    return FLOOR + 4 * size


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Within it, this process gets at most so many bytes beyond what it has: then allocations fail, as MemoryError.

    Where the system does not tell what a process has (it is not Linux), nothing is bounded.
    """
    if not _STATM.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    now = int(_STATM.read_text().split()[5]) * resource.getpagesize()
    wanted = now + more
    lower = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *lower]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
