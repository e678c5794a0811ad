"""A client of the `openai` package whose chat completions are captured, streamed ones included.

All resources of a client send through its `post`: that is where calls are seen, whichever way they are made. Other ways
to ask a model (the Responses API, text completions) are noted as calls of which nothing is known: ingest leaves them
out and says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pipeline.capture.place import HERE
from pipeline.capture.streams import Gathered
from schemas.errors import RecipeError

if TYPE_CHECKING:
    from pipeline.capture.recorder import Capture
    from pipeline.capture.runs import Row, Run

Client = TypeVar("Client")
CHAT = "/chat/completions"
OTHER = ("/responses", "/completions")
LEFT = "the stream was left before its end"


def captured(capture: Capture, client: Client, *, tokens: bool) -> Client:
    """See `Capture.openai`."""
    from openai import AsyncOpenAI, OpenAI

    if not isinstance(client, (OpenAI, AsyncOpenAI)):
        raise RecipeError(
            f"capture.openai takes a client of the openai package, OpenAI or AsyncOpenAI, not {type(client).__name__}: "
            "write calls of others down with run.call(module, messages, response=…)"
        )
    return cast("Client", _attached(capture, client.copy(), tokens=tokens))


def _attached(capture: Capture, client: Any, *, tokens: bool) -> Any:
    """The client, which is ours alone, with its `post` seen, and its copies' too."""
    post, kind = client.post, type(client)
    seen = _Seen(capture, tokens, (client.api_key,) if isinstance(client.api_key, str) else ())

    def again(**changes: Any) -> Any:
        return _attached(capture, kind.copy(client, **changes), tokens=tokens)

    client.post = seen.async_post(post) if hasattr(client, "__aenter__") else seen.post(post)
    client.copy = client.with_options = again
    return client


class _Seen:
    """What is done around a client's `post`."""

    def __init__(self, capture: Capture, tokens: bool, secrets: tuple[str, ...]) -> None:
        self._capture, self._tokens, self._secrets = capture, tokens, secrets

    def post(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A sync client's."""

        def post(path: str, **options: Any) -> Any:
            call = self._begun(path, options)
            with self._ending_if_it_fails(call):
                response = original(path, **self._wanted(path, options))
            return self._answered(call, response)

        return post

    def async_post(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """An async client's."""

        async def post(path: str, **options: Any) -> Any:
            call = self._begun(path, options)
            with self._ending_if_it_fails(call):
                response = await original(path, **self._wanted(path, options))
            return self._answered(call, response)

        return post

    @contextmanager
    def _ending_if_it_fails(self, call: tuple[Run, Row] | None) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._ended(call, None, error)
            raise

    def _wanted(self, path: str, options: dict[str, Any]) -> dict[str, Any]:
        body = options.get("body")
        if not self._tokens or path != CHAT or not isinstance(body, Mapping):
            return options
        return {**options, "body": {**body, "logprobs": True, "return_token_ids": True}}

    def _begun(self, path: str, options: Mapping[str, Any]) -> tuple[Run, Row] | None:
        call = None
        if path == CHAT or path in OTHER:
            with self._capture.guarded("beginning a call"):
                call = self._noted(path, options)
        return call

    def _noted(self, path: str, options: Mapping[str, Any]) -> tuple[Run, Row] | None:
        here = HERE.get()
        if here is None:
            self._capture.tally.trouble("outside_runs", "an LM call outside of capture.run is not kept")
            return None
        body = dict(options.get("body") or {}) | dict((options.get("options") or {}).get("extra_json") or {})
        if path != CHAT:
            self._capture.tally.trouble("not_captured", f"calls of {path} are noted without what they say")
        return here.run, here.run.begin_call(here, body.get("messages") if path == CHAT else None, body)

    def _ended(self, call: tuple[Run, Row] | None, response: Any, error: BaseException | str | None) -> None:
        if call is not None:
            with self._capture.guarded("ending a call"):
                run, row = call
                run.end_call(row, response, error, secrets=self._secrets)

    def _answered(self, call: tuple[Run, Row] | None, response: Any) -> Any:
        """The response as the program gets it; a stream is kept as it is read."""
        if call is None:
            return response
        with self._capture.guarded("reading an answer"):
            held = _parsed(response)
            if hasattr(held, "choices") or not call[1]["messages"]:
                self._ended(call, held, None)
            elif hasattr(held, "_iterator"):
                read = self._areading if hasattr(held, "__anext__") else self._reading
                held._iterator = read(call, held._iterator)
            else:
                self._capture.tally.trouble("not_captured", f"an answer of the type {type(held).__name__} is not read")
                self._ended(call, None, None)
        return response

    def _reading(self, call: tuple[Run, Row], chunks: Iterator[Any]) -> Iterator[Any]:
        with self._gathering(call) as take:
            for chunk in chunks:
                take(chunk)
                yield chunk

    async def _areading(self, call: tuple[Run, Row], chunks: AsyncIterator[Any]) -> AsyncIterator[Any]:
        with self._gathering(call) as take:
            async for chunk in chunks:
                take(chunk)
                yield chunk

    @contextmanager
    def _gathering(self, call: tuple[Run, Row]) -> Iterator[Callable[[Any], None]]:
        """Keeps what it is given of a stream as the answer, however the reading ends."""
        gathered, error = Gathered(), cast("BaseException | str | None", LEFT)

        def take(chunk: Any) -> None:
            with self._capture.guarded("reading a stream"):
                gathered.add(chunk)

        try:
            yield take
            error = None
        except Exception as raised:
            error = raised
            raise
        finally:
            self._ended(call, gathered.response(), error)


def _parsed(response: Any) -> Any:
    """What `with_raw_response` wraps; a body that is not read yet stays so."""
    from openai._legacy_response import LegacyAPIResponse

    return response.parse() if isinstance(response, LegacyAPIResponse) else response
