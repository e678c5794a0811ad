"""One running vLLM engine: its processes, the requests it is sent, and whether it still lives.

Of vLLM's insides this reads the queue that its outputs come by and the flag of its death: its own `step` would wait
for ever for an engine that was killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from schemas.errors import DataError, RecipeError, StageError
from stages.engines.guard import Guard
from stages.engines.vllm_environment import process_environment

if TYPE_CHECKING:
    from stages.engines.interface import Adapter

_LOOK_S = 0.1
"""How often a silent engine is looked at."""
_END_S = 30.0
"""How long a process that was ended is waited for."""


class EngineDied(RuntimeError):  # noqa: N818 - the name of an event, as its message
    """vLLM's engine process ended, with all that it was working on."""


class VllmProcess:
    """A started engine.

    Args:
        arguments: of vLLM's engine.
        rank: the highest rank of adapters that it can hold, one of vLLM's steps; 0 for no adapters.
        slots: adapters that it can hold at once.
        device: "cpu" or "cuda".
        threads: of a CPU; None for all cores.

    Raises:
        RecipeError: when vLLM refuses the settings or the model.
        StageError: when it does not start.
    """

    def __init__(
        self, arguments: Mapping[str, Any], *, rank: int, slots: int, device: str, threads: int | None
    ) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self.rank, self.slots = rank, slots
        # vLLM's CPU kernels give a request without an adapter the last slot's where others of its batch have one.
        spare = 1 if device == "cpu" else 0
        lora = {"enable_lora": True, "max_lora_rank": rank, "max_loras": slots + spare} if rank else {}
        try:
            config = EngineArgs(**{**lora, **arguments}).create_engine_config()
        except (ValueError, TypeError, AssertionError, NotImplementedError, OSError) as error:
            raise RecipeError(f"vLLM refuses the model or its settings (vllm.… of the execution): {error}") from error
        processes, eager = config.parallel_config.world_size, bool(arguments.get("enforce_eager"))
        with process_environment(device, threads, processes, eager=eager):
            try:
                self._engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            except (RuntimeError, ValueError, OSError) as error:
                raise StageError(
                    f"vLLM did not start: {error}. What it says of the cause stands above; with less memory to claim "
                    "(--exec batch_tokens=… on a CPU, --exec vllm.gpu_memory_utilization=… on a GPU) run again, or "
                    "with --exec engine=transformers"
                ) from error
        self._core = self._engine.engine_core
        self._children = list(self._core.resources.engine_manager.processes)
        self._guard = Guard(self.processes)
        self._answer(self._engine.get_supported_tasks)  # kept; else the first request would ask
        self._loras: dict[str, Any] = {}
        """By digest, the one loaded first at the beginning."""
        self._loaded = 0

    @property
    def processes(self) -> list[int]:
        """Process ids of the engine."""
        return [child.pid for child in self._children]

    def send(
        self, name: str, prompt: tuple[int, ...], parameters: Any, adapter: Adapter | None, used: Collection[str]
    ) -> None:
        """Hand a request over.

        Args:
            name: not in use.
            prompt: token ids.
            parameters: vLLM's `SamplingParams`.
            adapter: None for the base.
            used: digests of the adapters of all requests that are in work, this one's among them.

        Raises:
            ValueError: for a request that vLLM cannot serve.
            DataError: for an adapter that it cannot.
            EngineDied: when the engine is no more.
        """
        from vllm import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            lora = None if adapter is None else self._lora(adapter, used)
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=list(prompt)), parameters, lora_request=lora)
        except EngineDeadError as error:
            raise EngineDied(str(error)) from error

    def _lora(self, adapter: Adapter, used: Collection[str]) -> Any:
        """The adapter as vLLM names it, loaded at its first use so that a refusal is not the engine's death."""
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        if adapter.digest in self._loras:
            return self._loras[adapter.digest]
        if len(self._loras) == self.slots:
            unused = next(digest for digest in self._loras if digest not in used)
            old = self._loras.pop(unused).lora_int_id
            self._answer(lambda: self._engine.remove_lora(old))
        self._loaded += 1
        lora = LoRARequest(adapter.digest, self._loaded, str(adapter.path))
        try:
            self._answer(lambda: self._engine.add_lora(lora))
        except (EngineDeadError, EngineDied):
            raise
        except Exception as error:  # vLLM hands on whatever its worker raised
            raise DataError(f"vLLM cannot serve the adapter {adapter.path}: {error}") from error
        self._loras[adapter.digest] = lora
        return lora

    def _answer(self, ask: Callable[[], Any]) -> Any:
        """What vLLM says to a question. It would wait without end itself, were the engine killed over it."""
        answer: Future[Any] = Future()

        def work() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                answer.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while not wait([answer], timeout=_LOOK_S).done:
            if self._core.resources.engine_dead:
                raise EngineDied("the process ended")
        return answer.result()

    def abort(self, name: str) -> None:
        """Forget a request."""
        self._engine.abort_request([name])

    def finished(self, wait_s: float) -> list[Any]:
        """Outputs of the requests that ended, after a step of the engine's or so many seconds.

        Raises:
            EngineDied: when the engine is no more.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        self._wait(wait_s)
        ended: list[Any] = []
        try:
            while not self._core.outputs_queue.empty():
                ended += [output for output in self._engine.step() if output.finished]
        except EngineDeadError as error:
            raise EngineDied(str(error)) from error
        if not ended and self._core.resources.engine_dead:
            raise EngineDied("the process ended")
        return ended

    def _wait(self, wait_s: float) -> None:
        waiting, until = self._core.outputs_queue, time.monotonic() + wait_s
        with waiting.not_empty:
            while not waiting.queue and not self._core.resources.engine_dead:
                left = until - time.monotonic()
                if left <= 0:
                    return
                waiting.not_empty.wait(min(left, _LOOK_S))

    def close(self) -> None:
        """End the engine's processes."""
        self._core.shutdown()
        for child in self._children:
            child.join(_END_S)
        self._guard.dismiss()
