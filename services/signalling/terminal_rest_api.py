"""Terminals over WebSocket (RFC 6455) and the route that resizes them.

Text messages are JSON objects with a `type`; binary messages are a position (64 bits, big-endian)
and the bytes: of input its offset, of output the record's sequence. See docs/protocol.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import Field

from signalling.caller import current_tenant
from signalling.execution import Execution, OutputRecord, TerminalSize
from signalling.executions_rest_api import output_line
from signalling.launch_json import execution_json
from signalling.problems import problem_documents
from signalling.rest_bodies import ExecutionAnswer, TerminalBody
from signalling.rest_parameters import IdempotencyKey
from signalling.rest_types import Body
from signalling.socket_talks import checked, control, conversed, opening, received, say, welcome
from signalling.terminal import (
    TerminalAccepted,
    TerminalFrame,
    TerminalFrameInvalid,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)

TERMINAL_PROTOCOL = "fairlead.terminal.v1"

_POSITION = struct.Struct(">Q")


class Terminals(Protocol):
    """Terminals from the caller's side."""

    async def resize(self, tenant: str, execution_id: str, size: TerminalSize) -> Execution:
        """Change the size of a terminal."""
        ...

    def attach(
        self,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AsyncGenerator[TerminalFrame, None]:
        """Type into a terminal and return what it shows."""
        ...


class OpenBody(Body):
    """The first message of an attachment."""

    after_sequence: int = 0
    take_over: bool = False
    owner: str = Field(default="", max_length=128)
    size: TerminalBody | None = None


def terminal_router(terminals: Terminals) -> APIRouter:
    """Return the WebSocket of terminals; its key is checked before it, as every other one."""
    router = APIRouter(prefix="/v1", tags=["executions"])

    @router.websocket("/executions/{execution_id}/terminal")
    async def attach_terminal(execution_id: str, socket: WebSocket) -> None:
        """Type into the terminal of an execution and see what it shows."""
        await welcome(socket, TERMINAL_PROTOCOL)
        await conversed(socket, _converse(socket, terminals, execution_id))

    return router


def resize_router(terminals: Terminals) -> APIRouter:
    """Return the route that resizes a terminal."""
    router = APIRouter(prefix="/v1", tags=["executions"])

    @router.post(
        "/executions/{execution_id}/resize",
        response_model=ExecutionAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def resize_execution(
        execution_id: str, body: TerminalBody, key: IdempotencyKey = None
    ) -> Execution:
        """Change the size of an execution's terminal."""
        return await terminals.resize(current_tenant(), execution_id, body.value())

    return router


async def _converse(socket: WebSocket, terminals: Terminals, execution_id: str) -> None:
    opened = await opening(socket, OpenBody, TerminalFrameInvalid)
    frames = terminals.attach(current_tenant(), execution_id, _opening_of(opened), _typed(socket))
    async with aclosing(frames) as attached:
        async for frame in attached:
            await _send(socket, frame)


async def _send(socket: WebSocket, frame: TerminalFrame) -> None:
    match frame:
        case OutputRecord():
            await socket.send_bytes(_POSITION.pack(frame.sequence) + frame.content)
        case TerminalSnapshot(execution, input_offset, resumed):
            await say(
                socket,
                "snapshot",
                snapshot=execution_json(execution),
                input_offset=input_offset,
                resumed=resumed,
            )
        case TerminalAccepted(offset):
            await say(socket, "accepted", offset=offset)
        case TerminalTakenOver():
            await say(socket, "taken_over")
        case shown:
            await socket.send_text(json.dumps(output_line(shown).members))


def _opening_of(body: OpenBody) -> TerminalOpening:
    return TerminalOpening(
        after=body.after_sequence,
        take_over=body.take_over,
        owner=body.owner,
        size=None if body.size is None else body.size.value(),
    )


async def _typed(socket: WebSocket) -> AsyncIterator[Typed]:
    """Read what is typed until the client detaches or leaves."""
    while True:
        try:
            message = await received(socket)
        except WebSocketDisconnect:
            return
        content = message.get("bytes")
        if content is not None:
            if len(content) < _POSITION.size:
                raise TerminalFrameInvalid("A binary message begins with its offset, 8 bytes.")
            yield TerminalInput(_POSITION.unpack_from(content)[0], content[_POSITION.size :])
            continue
        kind, members = control(message, TerminalFrameInvalid)
        match kind:
            case "resize":
                yield checked(TerminalBody, members, TerminalFrameInvalid).value()
            case "detach":
                return
            case "open":
                raise TerminalFrameInvalid("Only the first message may be `open`.")
            case _:
                raise TerminalFrameInvalid("The message is none that is known.")
