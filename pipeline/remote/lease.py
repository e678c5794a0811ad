"""Leases: who may write a folder of an object store now. A lease runs out unless its holder renews it.

Lease N is the object `N.json`, which only one process can create. The highest number counts, so that a process which
slept through the end of its lease finds a higher one, and stops. Only creating need be atomic.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from typing import Any

from pipeline.remote.storage import Storage
from schemas.errors import LockedError, StageError

VARIABLE = "MMGRPO_LEASE_S"
LEASE_S = 60.0
"""How long a lease runs when it is not renewed, in seconds; the environment variable says otherwise."""


class Lease:
    """The right to write a folder, renewed in a thread from `take` until `release`."""

    def __init__(self, storage: Storage, folder: str, what: str) -> None:
        self._storage, self._folder, self._what = storage, folder, what
        self._seconds = float(os.environ.get(VARIABLE) or LEASE_S)
        self._holder = {"holder": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._token, self._until = 0, 0.0
        self._lost: str | None = None
        self._ended, self._renewing = threading.Event(), threading.Lock()

    def take(self) -> None:
        """Become the holder.

        Raises:
            LockedError: at once, when another process is.
        """
        found = self._tokens()
        if found:
            self._refuse_living(found[-1])
        self._token, began = (found[-1] if found else 0) + 1, _clock()
        key, body = self._key(self._token), self._body()
        if self._storage.create(key, body) is None:
            self._refuse_living(self._token)
            raise LockedError(f"{self._what}: another process took it at the same moment. Run again.")
        self._until = began + self._seconds
        self._storage.delete(map(self._key, found))
        threading.Thread(target=self._renew_on, name="lease", daemon=True).start()

    def enforced(self) -> bool:
        """Whether the store refuses to create what is there: some that speak S3's language do not."""
        probe = self._body() + b"\n"
        return self._storage.create(self._key(self._token), probe) is None

    def guard(self) -> None:
        """Go on only as the holder.

        Raises:
            LockedError: when another process has taken over.
        """
        if self._lost is None and _clock() >= self._until:
            self._renew()
        if self._lost is not None:
            raise LockedError(
                f"{self._what}: the lease was lost, {self._lost} took it over. This process stops before it commits "
                "anything more; what was committed is kept. Run again when the other one has ended."
            )

    def release(self) -> None:
        """Let others in at once. The object stays, so that numbers never begin anew."""
        self._ended.set()
        with self._renewing:
            if self._lost is None:
                self._storage.put(self._key(self._token), self._body(released=True))

    def _renew_on(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            try:
                self._renew()
            except StageError:
                continue  # tried again, here or by `guard`, which tells it

    def _renew(self) -> None:
        with self._renewing:
            if self._ended.is_set() or self._lost is not None:
                return
            began, tokens = _clock(), self._tokens()
            if not tokens or tokens[-1] != self._token:
                self._lost = _who(self._state(tokens[-1])) if tokens else "somebody who deleted it"
                return
            self._storage.put(self._key(self._token), self._body())
            self._until = began + self._seconds

    def _refuse_living(self, token: int) -> None:
        state = self._state(token)
        left = state.get("expires", 0.0) - time.time()
        if not state.get("released", False) and left > 0:
            raise LockedError(
                f"{self._what} is in use by another process ({_who(state)}). Wait for it to end, then run again; if "
                f"it was killed, its lease runs out in {left:.0f} s."
            )

    def _tokens(self) -> list[int]:
        names = (key.rsplit("/", 1)[-1].removesuffix(".json") for key in self._storage.list(self._folder))
        return sorted(int(name) for name in names if name.isdecimal())

    def _state(self, token: int) -> dict[str, Any]:
        found = self._storage.read(self._key(token))
        try:
            state = json.loads(found[0]) if found else {}
        except ValueError:
            return {}
        return state if isinstance(state, dict) else {}

    def _key(self, token: int) -> str:
        return f"{self._folder}/{token}.json"

    def _body(self, *, released: bool = False) -> bytes:
        state = {**self._holder, "token": self._token, "expires": time.time() + self._seconds, "released": released}
        return json.dumps(state, sort_keys=True).encode()


def _who(state: dict[str, Any]) -> str:
    return f"pid {state.get('pid', 'unknown')} on {state.get('host', 'an unknown machine')}"


def _clock() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
