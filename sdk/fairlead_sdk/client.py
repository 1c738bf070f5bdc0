"""The front door over HTTP: requests that are safe to repeat, streams of JSON lines, uploads.

Every mutation carries an Idempotency-Key, so a request whose answer was lost is sent again.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import (
    FairleadError,
    Unavailable,
    error_from_problem,
)
from fairlead_sdk.http_errors import no_address
from fairlead_sdk.http_wire import Content, PlainWire, Wire
from fairlead_sdk.json_form import JsonObject
from fairlead_sdk.tracing import heard, trace_headers

if TYPE_CHECKING:
    import httpx2

    from fairlead_sdk.websocket import WebSocket

NDJSON = "application/x-ndjson"
PACK = "application/x-fairlead-pack"
_PAUSES = (0.1, 0.3)
_ANSWER_SECONDS = 60.0
# A stream that is silent for so long is taken up again by its cursor: a dead connection (sleep,
# NAT) looks just like a quiet command.
_SILENCE_SECONDS = 60.0
_PROXIES = frozenset({"http_proxy", "all_proxy"})
_LONGEST_LINE_BYTES = 4 * 1024 * 1024

Sleep = Callable[[float], Awaitable[None]]


def make_idempotency_key() -> str:
    """Make a key for one mutation; use it for every attempt."""
    return secrets.token_urlsafe(18)


class FrontDoor:
    """A connection pool to one front door. Use as an async context manager.

    A connection that is not used is kept for `kept_seconds`.
    """

    def __init__(
        self,
        *,
        url: str,
        api_key: str,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Sleep = asyncio.sleep,
        kept_seconds: float = 5.0,
    ) -> None:
        self.url = url
        self.sleep = sleep
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "fairlead-sdk"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._socket_headers = {
            name: value for name, value in headers.items() if not name.startswith("Accept")
        }
        self._wire = _wire(url, headers, kept_seconds, transport)

    async def __aenter__(self) -> FrontDoor:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._wire.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> JsonObject:
        """Read a resource."""
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: JsonObject | None = None, *, key: str = "") -> JsonObject:
        """Change something; `key` is the idempotency key, made up when empty."""
        return await self._request("POST", path, body=body, key=key or make_idempotency_key())

    async def put(self, path: str, body: JsonObject) -> JsonObject:
        """Replace a resource."""
        return await self._request("PUT", path, body=body, key=make_idempotency_key())

    async def delete(self, path: str, params: Mapping[str, str] | None = None) -> JsonObject:
        """Remove a resource."""
        return await self._request("DELETE", path, params=params, key=make_idempotency_key())

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        params: Mapping[str, str] | None = None,
        key: str = "",
    ) -> JsonObject:
        headers = {"Idempotency-Key": key} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        for pause in (*_PAUSES, None):
            try:
                return await self._exchanged(
                    method,
                    _target(path, params),
                    headers=headers,
                    content=_encoded(body),
                    seconds=_ANSWER_SECONDS,
                )
            except Unavailable:
                if pause is None:
                    raise
                await self.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _exchanged(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> JsonObject:
        async with self._wire.exchange(
            method,
            target,
            headers={**headers, **trace_headers()},
            content=content,
            seconds=seconds,
        ) as answer:
            heard(answer.traceresponse)
            found = b"".join([chunk async for chunk in answer.chunks()])
            _raise_for_problem(answer.status, found)
            return _read(found)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        params: Mapping[str, str] | None = None,
        key: str = "",
    ) -> AsyncIterator[AsyncIterator[JsonObject]]:
        """Open a stream of JSON lines, without any retry: `resumed` is the place for that."""
        headers = {"Accept": NDJSON, **trace_headers()}
        if key:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        async with self._wire.exchange(
            method,
            _target(path, params),
            headers=headers,
            content=_encoded(body),
            seconds=_SILENCE_SECONDS,
        ) as answer:
            heard(answer.traceresponse)
            if answer.status >= 400:
                found = b"".join([chunk async for chunk in answer.chunks()])
                _raise_for_problem(answer.status, found)
            yield _lines(answer.chunks())

    async def upload(self, token: str, content: AsyncIterator[bytes], *, key: str) -> JsonObject:
        """Send a pack for the miss that gave `token`, once."""
        return await self._exchanged(
            "POST",
            _target("/v1/snapshots", {"upload": token}),
            headers={"Content-Type": PACK, "Idempotency-Key": key},
            content=content,
            seconds=None,
        )

    async def send(
        self,
        path: str,
        content: Content,
        *,
        params: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> JsonObject:
        """PUT bytes, once: a stream cannot be sent again."""
        return await self._exchanged(
            "PUT",
            _target(path, params),
            headers={**headers, "Idempotency-Key": make_idempotency_key()},
            content=content,
            seconds=None,
        )

    @asynccontextmanager
    async def receive(
        self, path: str, *, headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET bytes as they come, without any retry."""
        async with self._wire.exchange(
            "GET", path, headers=headers, content=None, seconds=_SILENCE_SECONDS
        ) as answer:
            if answer.status >= 400:
                found = b"".join([chunk async for chunk in answer.chunks()])
                _raise_for_problem(answer.status, found)
            yield answer.chunks()

    def socket(self, path: str) -> AbstractAsyncContextManager[WebSocket]:
        """Open a WebSocket, without any retry; it knows no proxies."""
        from fairlead_sdk.websocket import open_websocket

        return open_websocket(self.url, path, self._socket_headers)

    def connect_ahead(self) -> None:
        """Begin to connect before the first request is ready."""
        self._wire.connect_ahead()


def _wire(
    url: str,
    headers: Mapping[str, str],
    kept_seconds: float,
    transport: httpx2.AsyncBaseTransport | None,
) -> Wire:
    """Take the plain wire where it suffices: without TLS, proxies and a given transport."""
    try:
        parts = urlsplit(url)
        is_local = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    except ValueError:
        raise no_address(url) from None
    has_proxy = not is_local and any(name.lower() in _PROXIES for name in os.environ)
    if transport is None and parts.scheme == "http" and not has_proxy:
        return PlainWire(url=url, headers=headers, kept_seconds=kept_seconds)
    from fairlead_sdk.http_library import LibraryWire

    return LibraryWire(
        url=url,
        headers=headers,
        kept_seconds=kept_seconds,
        transport=transport,
        is_local=is_local,
    )


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def problem_of(document: JsonObject) -> FairleadError | None:
    """Give the error that a line of a stream carries instead of an event; `None` for an event."""
    if form.text(document, "type") != "problem":
        return None
    problem = form.child(document, "problem") or {}
    return error_from_problem(form.number(problem, "status") or 500, problem)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[JsonObject]:
    kept = bytearray()
    async for chunk in chunks:
        kept += chunk
        if b"\n" not in chunk:
            if len(kept) > _LONGEST_LINE_BYTES:
                raise _malformed()
            continue
        *whole, rest = bytes(kept).split(b"\n")
        kept = bytearray(rest)
        for line in whole:
            if line.strip():
                yield _read(line)


def _raise_for_problem(status: int, content: bytes) -> None:
    if status < 400:
        return
    try:
        problem = form.parse_object(content)
    except ValueError:
        problem = {}
    error = error_from_problem(status, problem)
    if status == 401 and not error.remedy:
        error.remedy = "Set FAIRLEAD_API_KEY to a key of this mesh."
    raise error


def _read(content: bytes) -> JsonObject:
    if not content.strip():
        return {}
    try:
        return form.parse_object(content)
    except ValueError:
        raise _malformed() from None


def _malformed() -> FairleadError:
    return error_from_problem(
        500,
        {
            "reason": "answer_malformed",
            "detail": "The answer is not what a Fairlead front door sends.",
            "remedy": "Check that FAIRLEAD_URL names a Fairlead front door of this version.",
        },
    )


def _encoded(body: JsonObject | None) -> bytes | None:
    return None if body is None else json.dumps(body, separators=(",", ":")).encode()
