"""What gateway and admin endpoints share: bodies, keys, disconnects, server-sent events.

Invariant: a client that leaves, before or while it is answered, cancels the work it asked for at once.
"""

import asyncio
import gc
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.router.errors import BodyTooLarge, Unauthorized, error_object
from splash_core.errors import InvalidRequest, InvariantBroken, SplashError

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

_LOG = logging.getLogger("splash.router")
_DRAINED_BODIES = 8
"""A body that is too large is read on, up to this many limits, so that its sender sees the answer."""


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """A request's body; raises `BodyTooLarge` where it has more than `max_bytes`."""
    body = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            body += chunk
        elif size > _DRAINED_BODIES * max_bytes:
            break
    if size > max_bytes:
        raise BodyTooLarge(f"the request body exceeds {max_bytes} bytes; send less")
    return bytes(body)


def check_query(request: Request, names: Sequence[str]) -> None:
    """Refuse parameters of a query that nobody looks at: one that is misspelt would be missing."""
    for name in request.query_params:
        if name not in names:
            known = f"it takes {', '.join(names)}" if names else "it takes none"
            raise InvalidRequest(
                f"{request.url.path} knows no parameter {name!r}; {known}",
                param=name,
                code="unknown_parameter",
            )


async def read_json(
    request: Request, *, max_bytes: int, parse: Callable[[bytes], Any] | None = None
) -> dict[str, Any]:
    """The JSON object of a request's body; `parse` reads it, without one as fast as possible."""
    body = await read_body(request, max_bytes=max_bytes)
    try:
        value = (parse or _parse)(body)
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the request body escapes half of a surrogate pair (\\ud800 to \\udfff alone), which is no text",
            code="invalid_json",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object", code="invalid_json")
    return value


def _parse(body: bytes) -> Any:
    """JSON, as fast as possible: nothing else runs meanwhile."""
    collecting = gc.isenabled()
    # Millions of small objects would set off collections that take ten times as long as the parsing.
    gc.disable()
    try:
        value = json.loads(body)
        if b"\\u" in body:
            # JSON can escape half of a surrogate pair; this raises on it.
            json.dumps(value, ensure_ascii=False).encode()
    finally:
        if collecting:
            gc.enable()
    return value


def check_key(request: Request, key: str | None) -> None:
    """Raise `Unauthorized` unless the request carries the key; without a key nothing is asked."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), key.encode()):
        raise Unauthorized("the key is missing or wrong; send it as 'Authorization: Bearer KEY'")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; a client that leaves first cancels it. The body must have been read."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return await task
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """An answer as server-sent events: JSON chunks, then `[DONE]`, or an error object and the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[dict[str, Any], None],
        *,
        first: dict[str, Any],
        within: AbstractAsyncContextManager[None],
        on_error: Callable[[], None],
        request_id: str,
    ) -> None:
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", "x-request-id": request_id}
        )
        # A stream has no length.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._chunks = chunks
        self._first = first
        self._within = within
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the answer ends or the client leaves; either way the chunks are closed."""
        del scope
        body = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait({body, gone}, return_when=asyncio.FIRST_COMPLETED)
            if body.done():
                await body
        finally:
            for task in (body, gone):
                task.cancel()
            await asyncio.gather(body, gone, return_exceptions=True)
            await self._chunks.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = b"data: [DONE]\n\n"
        try:
            async with self._within, aclosing(self._chunks):
                await _send_part(send, _event(self._first))
                async for chunk in self._chunks:
                    await _send_part(send, _event(chunk))
        except SplashError as error:
            last = self._failed(error)
        except OSError:
            # The connection is gone; nothing can be told any more.
            return
        except Exception:
            # An answer that has begun can only end with an error object.
            _LOG.exception("an answer failed while it was streamed")
            last = self._failed(InvariantBroken("internal error; see the router's log"))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _failed(self, error: SplashError) -> bytes:
        self._on_error()
        return _event(error_object(error))


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
