"""What every HTTP request passes before a route: request id, last resort for faults, key, size of
the body.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.errors import FairleadError, Unauthenticated
from chassis.problem import status_of
from signalling.api_keys import ApiKeys, KeyEnded
from signalling.caller import reset_caller, set_caller
from signalling.event_stream import NDJSON, SSE, stream_end
from signalling.open_calls import OpenCalls
from signalling.problems import (
    BodyTooLarge,
    internal_response,
    problem_members,
    problem_response,
)
from signalling.request_header import header_of

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
    """Takes `Authorization: Bearer <key>` for all below /v1 and names the caller."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, calls: OpenCalls) -> None:
        self._app = app
        self._keys = keys
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._keys.caller_of(_authorization(scope))
        except Unauthenticated as error:
            await problem_response(error)(scope, receive, send)
            return
        token = set_caller(caller)
        answer = _Begun(send)
        try:
            with self._calls.held(caller.key_id):
                await self._app(scope, receive, answer.send)
        except KeyEnded as error:
            await answer.end(error, scope, receive)
        finally:
            reset_caller(token)


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
    """Reads the body of a request, at most `limit` bytes of it, before anything else sees it.

    A larger one is refused as soon as that is known, from Content-Length or by counting. Requests
    that `exempt` matches (`METHOD /path`) stream their body and bound it themselves.
    """

    def __init__(self, app: ASGIApp, *, limit: int, exempt: re.Pattern[str]) -> None:
        self._app = app
        self._limit = limit
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._exempt.fullmatch(f"{scope['method']} {scope['path']}"):
            await self._app(scope, receive, send)
            return
        length = header_of(scope, b"content-length") or "0"
        if length.isdecimal() and len(length) < 20 and int(length) <= self._limit:
            body = await self._read(receive)
        else:
            body = None
        if body is None:
            await self._refuse(receive, send)
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return body

        await self._app(scope, replay, send)

    async def _refuse(self, receive: Receive, send: Send) -> None:
        """Answer, then let the client finish reading: a connection that is closed while bytes
        arrive is reset, and a reset destroys the answer.
        """
        refusal = problem_response(BodyTooLarge(self._limit), {"Connection": "close"})
        start = {
            "type": "http.response.start",
            "status": refusal.status_code,
            "headers": refusal.raw_headers,
        }
        await send(start)
        await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
        await drop_rest(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self, receive: Receive) -> Message | None:
        """Return the whole body as one message, None when it is too large."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}
