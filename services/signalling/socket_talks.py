"""What every conversation over a WebSocket (RFC 6455) has: text messages are JSON objects with a
`type`, the first one opens it, and an error is told as a `problem` before the socket is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine
from typing import TypeVar

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import TypeAdapter, ValidationError
from starlette.types import Message

from chassis.errors import FairleadError
from chassis.problem import status_of
from signalling.problems import internal_error, problem_members
from signalling.rest_types import Body

_OPEN_SECONDS = 10.0
_OBJECT = TypeAdapter(dict[str, object])

Model = TypeVar("Model", bound=Body)
Fault = Callable[[str], FairleadError]
"""Makes the error of a message that is wrong, of a sentence that says how."""


async def welcome(socket: WebSocket, protocol: str) -> None:
    """Accept a socket of `protocol`, and name that where the client offers it: a browser, whose key
    travels as one more subprotocol, takes no WebSocket that answers none of those it offered.
    """
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(protocol if protocol in offered else None)


async def conversed(socket: WebSocket, conversation: Coroutine[None, None, None]) -> None:
    """Hold a conversation over an accepted socket, and close that."""
    with contextlib.suppress(WebSocketDisconnect):
        try:
            await conversation
        except WebSocketDisconnect:
            raise
        except FairleadError as error:
            await _refuse(socket, error)
        except Exception as error:
            await _refuse(socket, internal_error(error))
        else:
            await socket.close()


async def say(socket: WebSocket, kind: str, **members: object) -> None:
    """Send a text message."""
    await socket.send_text(json.dumps({"type": kind, **members}))


async def received(socket: WebSocket) -> Message:
    """Wait for a message; raises WebSocketDisconnect."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code") or 1006)
    return message


async def opening(socket: WebSocket, model: type[Model], fault: Fault) -> Model:
    """Wait for the first message; raises what `fault` makes when it is none."""
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            message = await received(socket)
    except TimeoutError:
        raise fault("The first message did not come in time.") from None
    kind, members = control(message, fault)
    if kind != "open":
        raise fault("The first message must be `open`.")
    return checked(model, members, fault)


def control(message: Message, fault: Fault) -> tuple[str, dict[str, object]]:
    """Read a text message: its type, and its other members."""
    try:
        members = _OBJECT.validate_json(message.get("text") or "")
    except ValidationError:
        raise fault("The message is no JSON object.") from None
    return str(members.pop("type", "")), members


def checked(model: type[Model], members: dict[str, object], fault: Fault) -> Model:
    """Read the members of a message."""
    try:
        return model.model_validate(members)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise fault(f"The message is wrong: {where}: {first['msg']}.") from None


async def _refuse(socket: WebSocket, error: FairleadError) -> None:
    await say(socket, "problem", problem=problem_members(error))
    await socket.close(4000 + status_of(error))
