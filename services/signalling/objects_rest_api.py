"""Objects in sandboxes over WebSocket (RFC 6455): what a Python and its client exchange goes in
binary messages, what is said about it in text messages. See docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import Field

from signalling.caller import current_tenant
from signalling.object import ObjectsEnded, ObjectsFrame, ObjectsFrameInvalid, ObjectsOpened
from signalling.rest_types import Body
from signalling.socket_talks import conversed, opening, received, say, welcome

OBJECTS_PROTOCOL = "fairlead.objects.v1"


class Objects(Protocol):
    """Objects in sandboxes from the caller's side."""

    def attach(
        self, tenant: str, sandbox_id: str, python: str, incoming: AsyncIterator[bytes]
    ) -> AsyncGenerator[ObjectsFrame, None]:
        """Start a Python that holds objects, and carry."""
        ...


class OpenBody(Body):
    """The first message."""

    python: str = Field(default="", max_length=4096)


def objects_router(objects: Objects) -> APIRouter:
    """Return the WebSocket of objects; its key is checked before it, as every other one."""
    router = APIRouter(prefix="/v1", tags=["sandboxes"])

    @router.websocket("/sandboxes/{sandbox_id}/objects")
    async def attach_objects(sandbox_id: str, socket: WebSocket) -> None:
        """Have a Python in a sandbox hold objects, and exchange bytes with it."""
        await welcome(socket, OBJECTS_PROTOCOL)
        await conversed(socket, _converse(socket, objects, sandbox_id))

    return router


async def _converse(socket: WebSocket, objects: Objects, sandbox_id: str) -> None:
    opened = await opening(socket, OpenBody, ObjectsFrameInvalid)
    frames = objects.attach(current_tenant(), sandbox_id, opened.python, _contents(socket))
    async with aclosing(frames) as attached:
        async for frame in attached:
            await _send(socket, frame)


async def _send(socket: WebSocket, frame: ObjectsFrame) -> None:
    match frame:
        case bytes():
            await socket.send_bytes(frame)
        case ObjectsOpened():
            await say(socket, "opened")
        case ObjectsEnded(reason, code, signal, errors):
            await say(
                socket,
                "ended",
                ended={"reason": reason.value, "code": code, "signal": signal, "errors": errors},
            )


async def _contents(socket: WebSocket) -> AsyncIterator[bytes]:
    """Read what is sent until the client leaves."""
    while True:
        try:
            message = await received(socket)
        except WebSocketDisconnect:
            return
        content = message.get("bytes")
        if content is None:
            raise ObjectsFrameInvalid("Only the first message is text; others are binary.")
        yield content
