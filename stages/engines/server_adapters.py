"""Adapters at a server: loaded by name before they are first asked for, unloaded when nobody asks for them any more."""

from __future__ import annotations

import logging
from collections.abc import Collection

from schemas.errors import RecipeError
from stages.engines.adapters import check_adapter
from stages.engines.interface import Adapter
from stages.engines.models import BaseModel
from stages.engines.replicas import Replica
from stages.engines.server_http import Refused, Unanswered

log = logging.getLogger(__name__)

HOW_TO_START = (
    "`mmgrpo serve RECIPE` starts vLLM so that it takes adapters at any time; by hand that is "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and --enable-lora --max-lora-rank R"
)


def served_name(digest: str) -> str:
    """What an adapter is called at a server: a name that no other weights can ever have."""
    return f"mmgrpo-{digest[:16]}"


class ServerAdapters:
    """The adapters that replicas have for this engine.

    Args:
        base: the base model, which adapters must have been made for.
        seen_at: `HERE=THERE`, a folder here and as servers see it, where that is another path.
    """

    def __init__(self, base: BaseModel, seen_at: str | None = None) -> None:
        self._base = base
        self._here, _, self._seen_at = (seen_at or "").partition("=")
        self._checked: set[str] = set()
        self._wanted: frozenset[str] | None = None
        """Names that are asked for from now on; None: nobody has said so yet."""
        self._ours: dict[Replica, set[str]] = {}
        """What this engine loaded itself: what others loaded is theirs."""

    def expect(self, digests: Collection[str]) -> None:
        """Only these are asked for from now on."""
        self._wanted = frozenset(served_name(digest) for digest in digests)

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that was made for another base.

        Raises:
            DataError: as that says.
        """
        if adapter.digest not in self._checked:
            check_adapter(adapter.path, self._base)
            self._checked.add(adapter.digest)

    async def bring(self, replica: Replica, adapter: Adapter) -> str:
        """See that a replica has an adapter; returns its name there.

        Raises:
            RecipeError: when the server does not take it, with how to start one that does.
            Unanswered: when it does not answer now.
        """
        name = served_name(adapter.digest)
        if name in replica.loaded:
            return name
        async with replica.lock:
            known = replica.facts.adapters if replica.facts else frozenset()
            if name not in replica.loaded and name not in known:
                await self._make_room(replica)
                await self._load(replica, name, self._there(adapter))
            replica.loaded.add(name)
        return name

    async def _load(self, replica: Replica, name: str, path: str) -> None:
        try:
            await replica.http.post("/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except Refused as error:
            if "already been loaded" not in error.said:
                raise _not_taken(replica, path, error) from None
        except Unanswered as error:
            # vLLM answers 500 to what the adapter or its own flags rule out: no other try would fare better.
            if "add_lora" in str(error) and "Worker failed with error" in str(error):
                raise RecipeError(
                    f"{replica.url} cannot load the adapter {path}: {error}. {HOW_TO_START}, R being at least the "
                    "adapter's rank"
                ) from None
            raise
        self._ours.setdefault(replica, set()).add(name)
        log.info("%s has loaded %s", replica.url, name)

    async def _make_room(self, replica: Replica) -> None:
        """Unload what this engine loaded there and nobody asks for any more."""
        ours = self._ours.get(replica, set())
        for name in sorted(ours - (ours if self._wanted is None else self._wanted)):
            try:
                await replica.http.post("/unload_lora_adapter", {"lora_name": name})
            except Refused as error:  # after a restart it is not there: nothing was to be done
                log.info("%s did not unload %s: %s", replica.url, name, error)
            ours.discard(name)
            replica.loaded.discard(name)

    def _there(self, adapter: Adapter) -> str:
        """The adapter's folder as servers see it."""
        path = adapter.path.absolute()
        if self._here and path.is_relative_to(self._here):
            return f"{self._seen_at}/{path.relative_to(self._here).as_posix()}"
        return str(path)


def _not_taken(replica: Replica, path: str, error: Refused) -> RecipeError:
    if error.status == 404 and "No adapter found" in error.said:
        return RecipeError(
            f"{replica.url} does not see the adapter folder {path}: it loads adapters from its own disk. Set "
            "server.adapters to HERE=THERE, the run folder here and as the server sees it"
        )
    if error.status == 404:
        return RecipeError(f"{replica.url} loads no adapters at run time ({error}). {HOW_TO_START}")
    return RecipeError(f"{replica.url} does not take the adapter {path}: {error}. {HOW_TO_START}")
