"""The vLLM that is running: started when it is needed, for what it is needed for, and anew after its death."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from schemas.errors import StageError
from stages.engines.vllm_process import EngineDied, VllmProcess

log = logging.getLogger(__name__)

DEATHS = 3
"""Deaths in a row, with no request completed between them, that end the stage."""


class Keeper:
    """Holds one engine at a time. Without adapters it needs less, and how high their ranks are is known when they come.

    Args:
        arguments: of vLLM's engine, adapters apart.
        device: "cpu" or "cuda".
        threads: of a CPU; None for all cores.
    """

    def __init__(self, arguments: Mapping[str, Any], device: str, threads: int | None) -> None:
        self._arguments, self._device, self._threads = arguments, device, threads
        self.process: VllmProcess | None = None
        self._deaths = 0

    def fitting(self, rank: int, adapters: int, *, busy: bool) -> VllmProcess | None:
        """The engine, started for so many adapters up to a rank (0: none); None while a busy one is too small."""
        old, slots = self.process, max(adapters, 1)
        if old is not None:
            if rank <= old.rank and (not rank or slots <= old.slots):
                return old
            if busy:
                return None
            log.info("vLLM starts again, for adapters of rank %d, %d at once", rank, slots)
            rank = max(rank, old.rank)
            self.close()
        self.process = VllmProcess(self._arguments, rank=rank, slots=slots, device=self._device, threads=self._threads)
        return self.process

    def completed(self) -> None:
        """A request was completed: earlier deaths do not count."""
        self._deaths = 0

    def bury(self, error: EngineDied) -> None:
        """The engine died: the next request starts another.

        Raises:
            StageError: when it died too often.
        """
        self.close()
        self._deaths += 1
        log.warning("vLLM's engine died: %s", error)
        if self._deaths >= DEATHS:
            self._deaths = 0
            raise StageError(
                f"vLLM's engine died {DEATHS} times with no request completed in between ({error}). What it says of "
                "the cause stands above; run again with other settings (--exec vllm.…) or --exec engine=transformers"
            ) from error

    def close(self) -> None:
        """End the engine's processes, with the memory that they hold."""
        if self.process is not None:
            self.process.close()
            self.process = None
