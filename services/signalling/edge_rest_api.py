"""What every HTTP request passes before a route: request id, last resort for faults, key, size of
the body.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.errors import FairleadError, Unauthenticated
from chassis.http_server import note_known
from chassis.problem import status_of
from signalling.api_keys import ApiKeys, KeyEnded
from signalling.caller import current_key_id, reset_caller, set_caller
from signalling.event_stream import NDJSON, SSE, stream_end
from signalling.open_calls import OpenCalls
from signalling.problems import (
    BodyTooComplex,
    BodyTooLarge,
    internal_response,
    problem_members,
    problem_response,
)
from signalling.rate_limits import RateLimited, RateLimits
from signalling.request_header import header_of

MOST_PARTS = 10_000
"""Most commas and colons of a body in JSON, those in its texts aside: a launch with 4096 arguments
and a thousand variables has some 6000.
"""
_PARTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)|[,:]', re.DOTALL)
_READ_BYTES = 64 * 1024
_FREE_BYTES = 512
"""A refused body costs as much as a request for each of these."""
_BEGINNINGS = frozenset(
    {"http.response.start", "websocket.accept", "websocket.http.response.start"}
)
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 128 * 1024 * 1024
_KEY_PROTOCOL = "fairlead.key."
"""A browser, which cannot send headers with a WebSocket, offers beside the route's subprotocol one
that begins so and goes on with its key; it is never answered.
"""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Echoes X-Request-ID, or makes one up where there is none or it could not be logged safely."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header_of(scope, b"x-request-id")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                echo = (b"x-request-id", request_id.encode("ascii"))
                message = {**message, "headers": [*message["headers"], echo]}
            await send(message)

        await self._app(scope, receive, send_with_id)


class FaultBarrier:
    """Answers 500 for what nobody expected, and logs it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] in _BEGINNINGS
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            response = internal_response(error)
            if not started:
                await response(scope, receive, send)


class KeyGate:
    """Takes `Authorization: Bearer <key>` for all below /v1, as often as the key may, and names the
    caller.
    """

    def __init__(
        self, app: ASGIApp, *, keys: ApiKeys, calls: OpenCalls, limits: RateLimits
    ) -> None:
        self._app = app
        self._keys = keys
        self._calls = calls
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._keys.caller_of(_authorization(scope))
        except Unauthenticated as error:
            await problem_response(error)(scope, receive, send)
            return
        note_known(scope)
        try:
            self._limits.take(caller.key_id)
        except RateLimited as error:
            # What is still sent of a large body costs more to read than the request did.
            headers = {"Connection": "close"} if _has_large_body(scope) else None
            refusal = problem_response(error, headers)
            await refusal(scope, receive, self._counted(caller.key_id, send))
            return
        token = set_caller(caller)
        is_http = scope["type"] == "http"
        answer = _Begun(self._counted(caller.key_id, send) if is_http else send)
        try:
            with self._calls.held(caller.key_id):
                await self._app(scope, receive, answer.send)
        except KeyEnded as error:
            await answer.end(error, scope, receive)
        finally:
            reset_caller(token)

    def _counted(self, key_id: str, send: Send) -> Send:
        """Say with each answer what is left."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *self._limits.headers(key_id)]
                message = {**message, "headers": headers}
            await send(message)

        return counted


class _Begun:
    """An answer, as far as it has been sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._message: Message | None = None
        self._is_over = False

    async def send(self, message: Message) -> None:
        """Send a message."""
        if message["type"] in _BEGINNINGS:
            self._message = message
        elif message["type"] == "websocket.close":
            self._is_over = True
        elif message["type"] == "http.response.body":
            self._is_over = not message.get("more_body", False)
        await self._send(message)

    async def end(self, error: FairleadError, scope: Scope, receive: Receive) -> None:
        """Refuse what has not begun; tell a stream and a WebSocket why they end; cut off the rest,
        so that nobody takes it for whole.
        """
        if self._is_over:
            return
        if self._message is None:
            await problem_response(error, {"Connection": "close"})(scope, receive, self._send)
        elif self._message["type"] == "websocket.accept":
            text = json.dumps({"type": "problem", "problem": problem_members(error)})
            await self._send({"type": "websocket.send", "text": text})
            code = 4000 + status_of(error)
            await self._send({"type": "websocket.close", "code": code})
        else:
            kind = header_of(self._message, b"content-type")
            if kind.startswith((NDJSON, SSE)):
                body = stream_end(error, is_sse=kind.startswith(SSE))
                await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _has_large_body(scope: Scope) -> bool:
    length = header_of(scope, b"content-length")
    if length.isdecimal() and len(length) < 20:
        return int(length) > _READ_BYTES
    return bool(length or header_of(scope, b"transfer-encoding"))


def _authorization(scope: Scope) -> str:
    given = header_of(scope, b"authorization")
    if not given:
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(_KEY_PROTOCOL):
                return f"Bearer {protocol.removeprefix(_KEY_PROTOCOL)}"
    return given


async def drop_rest(receive: Receive) -> None:
    """Read on for a while what is still sent of a body that is refused."""
    discarded = 0
    with suppress(TimeoutError):  # it had its chance
        async with asyncio.timeout(_LINGER_SECONDS):
            while discarded < _LINGER_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                discarded += len(message.get("body", b""))


class BodyLimit:
    """Reads the body of a request, as much of it as its route may have, before anything else sees
    it; what is too large is refused as soon as that is known, from Content-Length or by counting.

    `limits` are tried in their order on `METHOD /path`, with None for routes that stream their body
    and bound it themselves; else `default` applies. JSON with more than `MOST_PARTS` members and
    items is refused before it is parsed: what it costs grows with those, and not with its bytes.
    A body that is refused is charged to its key by its size.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        default: int,
        limits: Sequence[tuple[re.Pattern[str], int | None]],
        charges: RateLimits,
    ) -> None:
        self._app = app
        self._default = default
        self._limits = limits
        self._charges = charges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._limit(scope) if scope["type"] == "http" else None
        if limit is None:
            await self._app(scope, receive, send)
            return
        length = header_of(scope, b"content-length") or "0"
        if length.isdecimal() and len(length) < 20 and int(length) <= limit:
            message = await self._read(receive, limit)
        else:
            message = None
        if message is None:
            self._charge(limit)
            await self._refuse(BodyTooLarge(limit), receive, send)
            return
        body = message.get("body", b"")
        if _is_complex(body):
            self._charge(len(body))
            await problem_response(BodyTooComplex(MOST_PARTS))(scope, receive, send)
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return message

        async def charged(answer: Message) -> None:
            if answer["type"] == "http.response.start" and answer["status"] == 400:
                self._charge(len(body))
            await send(answer)

        await self._app(scope, replay, charged if len(body) > _FREE_BYTES else send)

    def _limit(self, scope: Scope) -> int | None:
        route = f"{scope['method']} {scope['path']}"
        for pattern, limit in self._limits:
            if pattern.fullmatch(route):
                return limit
        return self._default

    def _charge(self, size: int) -> None:
        """Charge for bytes that came to nothing."""
        self._charges.charge(current_key_id(), size / _FREE_BYTES)

    async def _refuse(self, error: FairleadError, receive: Receive, send: Send) -> None:
        """Answer, then let the client finish reading: a connection that is closed while bytes
        arrive is reset, and a reset destroys the answer.
        """
        refusal = problem_response(error, {"Connection": "close"})
        start = {
            "type": "http.response.start",
            "status": refusal.status_code,
            "headers": refusal.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
        await drop_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self, receive: Receive, limit: int) -> Message | None:
        """Return the whole body as one message, None when it is too large."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                return None
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _is_complex(body: bytes) -> bool:
    """Say whether JSON has more parts than it may: counted as bytes first, which is quick and finds
    too many only where texts hold commas and colons, then without the texts.
    """
    if body.count(b",") + body.count(b":") <= MOST_PARTS:
        return False
    # JSON has no more texts than commas and colons, and one: who finds more has found too many.
    found = [each[0] for each in islice(_PARTS.finditer(body), 2 * MOST_PARTS + 1)]
    return len(found) > 2 * MOST_PARTS or found.count(b",") + found.count(b":") > MOST_PARTS
