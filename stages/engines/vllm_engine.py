"""vLLM in this process: requests at any time, batched by vLLM itself, in processes of its own."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from schemas.errors import MmgrpoError
from stages.engines.adapters import check_adapter
from stages.engines.feed import serve_all
from stages.engines.interface import Adapter, EngineUsage, Request, Result
from stages.engines.limits import context_of
from stages.engines.models import BaseModel, eos_ids, load_tokenizer
from stages.engines.texts import encode_chat
from stages.engines.vllm_environment import prepare_environment
from stages.engines.vllm_keeper import Keeper
from stages.engines.vllm_process import EngineDied
from stages.engines.vllm_requests import completion_of, parameters_of, rank_of
from stages.engines.vllm_settings import (
    arguments,
    check_heads,
    checked_options,
    engine_name,
    kernel_sizes,
    known_options,
)

if TYPE_CHECKING:
    from schemas.execution import Execution


class VllmEngine:
    """See `interface.Engine` and `interface.ContinuousEngine`. vLLM starts with the first request.

    Args:
        base: the base model.
        dtype: "float32" or "bfloat16".
        context: longest prompt plus completion, in tokens; or what the model was made for, if that is less.
        device: "cpu" or "cuda".
        execution: settings to pass through, threads, and the budget of key-value tokens on a CPU.

    Raises:
        RecipeError: when vLLM is not installed or a setting is wrong.
    """

    logprob_kind: Literal["processed", "raw"] = "processed"

    def __init__(self, base: BaseModel, dtype: str, context: int, device: str, execution: Execution) -> None:
        from transformers import AutoConfig

        self.name = engine_name(dtype, device, execution.vllm)
        self.usage = EngineUsage()
        prepare_environment()
        options = checked_options(execution.vllm, known_options(), device)
        config = AutoConfig.from_pretrained(base.path, local_files_only=True, trust_remote_code=False)
        if device == "cpu":
            check_heads(base.name, config, kernel_sizes())
        self._base, self._tokenizer, self._eos = base, load_tokenizer(base), eos_ids(base)
        self._context = context_of(config, context)
        budget = execution.batch_tokens
        ours = arguments(str(base.path), dtype, self._context, device=device, config=config, batch_tokens=budget)
        self._keeper = Keeper(ours | options, device, execution.threads)
        self._expected = 0
        self._ranks: dict[Adapter, int] = {}
        self._waiting: dict[int, Request] = {}
        self._flying: dict[str, tuple[int, Request]] = {}
        """By the name that vLLM knows a request by: tickets come again."""
        self._done: list[tuple[int, Result | Exception]] = []
        self._sent = 0

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """See `interface.Engine`."""
        return encode_chat(self._tokenizer, messages)

    def expect(self, digests: Collection[str]) -> None:
        """So many adapters are asked for from now on. One that is not in use makes room for the next."""
        self._expected = len(digests)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `interface.Engine`."""
        return serve_all(self, requests)

    def add(self, ticket: int, request: Request) -> None:
        """See `interface.ContinuousEngine`."""
        if request.adapter is not None and request.adapter not in self._ranks:
            check_adapter(request.adapter.path, self._base)
            self._ranks[request.adapter] = rank_of(request.adapter)
        if self._room(request) < 1:
            self._done.append((ticket, Result((), (), "context_overflow", "")))
        else:
            self._waiting[ticket] = request

    def poll(self, wait_s: float) -> list[tuple[int, Result | Exception]]:
        """See `interface.ContinuousEngine`."""
        started = time.perf_counter()
        try:
            self._send_waiting()
            if self._keeper.process is not None and self._flying:
                self._take(self._keeper.process.finished(0.0 if self._done else wait_s))
        except EngineDied as error:  # what waits goes to the next one
            self._done += [(ticket, error) for ticket, _ in self._flying.values()]
            self._flying.clear()
            self._keeper.bury(error)
        done, self._done = self._done, []
        self.usage.seconds += time.perf_counter() - started
        return done

    def cancel(self, ticket: int) -> None:
        """See `interface.ContinuousEngine`."""
        self._waiting.pop(ticket, None)
        self._done = [item for item in self._done if item[0] != ticket]
        for name in [name for name, (owner, _) in self._flying.items() if owner == ticket]:
            del self._flying[name]
            if self._keeper.process is not None:
                self._keeper.process.abort(name)

    def close(self) -> None:
        """End vLLM's processes, with the memory that they hold. The next request starts them anew."""
        self._keeper.close()

    def _room(self, request: Request) -> int:
        return min(request.sampling.max_new_tokens, self._context - len(request.prompt_ids))

    def _send_waiting(self) -> None:
        """Hand over what waits: all of it, or nothing while the engine is too small for it and still busy."""
        if not self._waiting:
            return
        requests = [*self._waiting.values(), *(request for _, request in self._flying.values())]
        adapters = {request.adapter for request in requests if request.adapter}
        used = {adapter.digest for adapter in adapters}
        rank = max((self._ranks[adapter] for adapter in adapters), default=0)
        process = self._keeper.fitting(rank, max(self._expected, len(used)), busy=bool(self._flying))
        while process is not None and self._waiting:
            ticket = next(iter(self._waiting))
            request = self._waiting.pop(ticket)
            self._sent += 1
            name = str(self._sent)
            self._flying[name] = ticket, request
            try:
                parameters = parameters_of(request, self._room(request), self._eos)
                process.send(name, request.prompt_ids, parameters, request.adapter, used)
            except ValueError as error:
                del self._flying[name]
                if isinstance(error, MmgrpoError):
                    raise
                self._done.append((ticket, error))  # the fault of this request alone

    def _take(self, outputs: Sequence[Any]) -> None:
        self.usage.batches += 1
        for output in outputs:
            if output.request_id in self._flying:
                ticket, request = self._flying.pop(output.request_id)
                self._done.append((ticket, self._outcome(output, request)))

    def _outcome(self, output: Any, request: Request) -> Result | Exception:
        try:
            ids, logprobs, reason = completion_of(output, self._eos)
        except RuntimeError as error:
            return error
        self._keeper.completed()
        self.usage.prompt_tokens += len(request.prompt_ids)
        self.usage.prefilled_tokens += len(request.prompt_ids) - (output.num_cached_tokens or 0)
        self.usage.completion_tokens += len(ids)
        return Result(ids, logprobs, reason, self._tokenizer.decode(ids, skip_special_tokens=True))
