"""One exchange with a server: JSON out, JSON in, and every way to fail told apart."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
LONGEST_WAIT_S = 3600.0
"""However long a server asks to be left alone."""
LARGEST = 64 << 20
"""Most bytes of an answer, unpacked: one of 100,000 tokens with all that is asked for has a tenth."""
_AGAIN = frozenset({408, 409, 425, 429})
"""What a later try may mend, beside errors of the server's own (5xx)."""


class Unanswered(Exception):  # noqa: N818 - what it says of a request, as LMFailure of a call
    """No usable answer: another try may fare better.

    `limited` says that the server is only over its rate limit, `wait_s` how long it asks to be left alone.
    """

    def __init__(self, why: str, *, limited: bool = False, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.limited, self.wait_s = limited, wait_s


class NotJson(Unanswered):
    """A body that is no JSON: cut off, or of something that is no such server."""


class Refused(Exception):  # noqa: N818
    """The server understood the request and will not serve it, however often it is asked."""

    def __init__(self, status: int, said: str, code: str = "") -> None:
        super().__init__(f"HTTP {status}: {said}")
        self.status, self.said, self.code = status, said, code


class Http:
    """A client of one server. Used in one event loop. The key stands in no message."""

    def __init__(self, url: str, key: str, timeout_s: float, connections: int) -> None:
        self._url, self._root, self._key = url, url.removesuffix("/v1"), key
        self._timeout_s, self._connections = timeout_s, connections + 4  # a few for questions about itself
        self._client: httpx.AsyncClient | None = None

    async def get(self, path: str, *, root: bool = False) -> Any:
        """What the server answers to GET; `root` says that the path lies beside the API, not in it."""
        return await self._ask("GET", path, None, root)

    async def post(self, path: str, body: dict[str, Any], *, root: bool = False) -> Any:
        """What the server answers to a body.

        Raises:
            Unanswered: for a dropped connection, a timeout, an error of the server's, a body that is no JSON.
            Refused: for what no other try would mend.
        """
        return await self._ask("POST", path, body, root)

    async def close(self) -> None:
        """Close all connections; the next exchange opens others."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                limits=httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections),
                timeout=httpx.Timeout(None, connect=CONNECT_S),
            )
        return self._client

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, root: bool) -> Any:
        import httpx

        address = (self._root if root else self._url) + path
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._open().stream(method, address, json=body) as answer:
                    content = await _whole(answer)
        except TimeoutError:
            raise Unanswered(f"no answer to {path} within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise Unanswered(self._hidden(f"{type(error).__name__}: {error}")) from None
        return self._read(path, answer, content)

    def _read(self, path: str, answer: httpx.Response, content: bytes) -> Any:
        if answer.status_code < 300:
            try:
                return json.loads(content) if content else None
            except (ValueError, RecursionError):
                return self._text(path, answer, content)
        said, code = _said(answer, content)
        said = self._hidden(said)
        if answer.status_code in _AGAIN or (answer.status_code >= 500 and answer.status_code != 501):
            limited = answer.status_code == 429
            raise Unanswered(f"HTTP {answer.status_code}: {said}", limited=limited, wait_s=_wait_s(answer))
        raise Refused(answer.status_code, said, code)

    def _text(self, path: str, answer: httpx.Response, content: bytes) -> str:
        """Loading an adapter is answered with a plain sentence; elsewhere what is no JSON is a broken answer."""
        if answer.headers.get("content-type", "").startswith("application/json") or "lora" not in path:
            raise NotJson(self._hidden(f"the answer to {path} is no JSON: {content[:80]!r}"))
        return content.decode(errors="replace")

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


async def _whole(answer: httpx.Response) -> bytes:
    """The body, unpacked, in bounded memory."""
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > LARGEST:
            raise Unanswered(f"its answer has more than {LARGEST:,} bytes")
    return bytes(content)


def _said(answer: httpx.Response, content: bytes) -> tuple[str, str]:
    """The server's message and error code, in the forms that servers use."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return content[:300].decode(errors="replace").strip() or answer.reason_phrase, ""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return str(error)[:300], ""
    said = next((error[name] for name in ("message", "detail") if error.get(name)), error)
    return str(said)[:500], str(error.get("code") or "")


def _wait_s(answer: httpx.Response) -> float | None:
    """Seconds of a Retry-After header, which may be a number or a date."""
    value = answer.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return min(max(0.0, float(value)), LONGEST_WAIT_S)
    except ValueError:
        pass
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
        return min(max(0.0, moment - time.time()), LONGEST_WAIT_S)
    except (ValueError, OverflowError):
        return None
