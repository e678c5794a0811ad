"""How much a file may unpack to, so that a small one cannot fill memory or disk."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

_FREE = 64 << 20


@dataclass(frozen=True)
class Limits:
    """Of one file."""

    unpacked: int = 64 << 30
    """Most bytes that it unpacks to."""
    ratio: int = 1000
    """Most bytes unpacked for one packed, beyond the first 64 MiB."""

    def allowed(self, packed: int) -> int:
        """Most bytes that so many packed ones may give."""
        return min(self.unpacked, max(_FREE, self.ratio * packed))

    def refusal(self, allowed: int) -> str:
        """What to say of a file that gives more."""
        return (
            f"it unpacks to more than {allowed:,} bytes, as a file made to fill a disk does. If it is what it should "
            "be, raise the execution settings unpacked_gib and unpacked_ratio (--exec unpacked_ratio=10000)"
        )


DEFAULT = Limits()
_NOW: ContextVar[Limits] = ContextVar("limits")


def limits() -> Limits:
    """Those of this process."""
    return _NOW.get(DEFAULT)


def use_limits(found: Limits) -> None:
    """Set those of this process."""
    _NOW.set(found)
