"""Every WebSocket of the front door takes a browser: its key comes as a subprotocol, and the one of
the route is answered.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from starlette.routing import WebSocketRoute
from starlette.types import Message

from signalling.rest_api import rest_routes
from tests.contract.wire.front_door import Door, make_door

PROTOCOLS = {
    "/v1/executions/{execution_id}/terminal": "fairlead.terminal.v1",
    "/v1/sandboxes/{sandbox_id}/objects": "fairlead.objects.v1",
    "/v1/sessions/{session_id:session}/watch": "fairlead.session.v1",
}


async def answer(door: Door, path: str, protocols: list[str]) -> Message:
    """Ask for a WebSocket, leave at once, and return the first message of the answer."""
    heard: list[Message] = [
        {"type": "websocket.disconnect", "code": 1001},
        {"type": "websocket.connect"},
    ]
    answers: list[Message] = []

    async def receive() -> Message:
        return heard.pop()

    async def send(message: Message) -> None:
        answers.append(message)

    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0"},
        "scheme": "ws",
        "path": path,
        "query_string": b"",
        "headers": [],
        "subprotocols": protocols,
        "extensions": {"websocket.http.response": {}},
    }
    async with asyncio.timeout(30):
        await door.app(scope, receive, send)
    return answers[0]


def test_the_table_has_every_socket(tmp_path: Path) -> None:
    door = make_door(tmp_path)
    routes = rest_routes(door.parts, door.streams).routes
    paths = {route.path for route in routes if isinstance(route, WebSocketRoute)}
    assert paths == set(PROTOCOLS)


@pytest.mark.asyncio
@pytest.mark.parametrize(("template", "protocol"), PROTOCOLS.items())
async def test_a_browser_is_answered_with_the_protocol(
    tmp_path: Path, template: str, protocol: str
) -> None:
    door, path = make_door(tmp_path), re.sub(r"\{.*?\}", "exe_x", template)
    accepted = await answer(door, path, [protocol, f"fairlead.key.{door.key}"])
    assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", protocol)
    keyless = await answer(door, path, [protocol])
    assert (keyless["type"], keyless["status"]) == ("websocket.http.response.start", 401)
    only_key = await answer(door, path, [f"fairlead.key.{door.key}"])
    assert (only_key["type"], only_key["subprotocol"]) == ("websocket.accept", None)
