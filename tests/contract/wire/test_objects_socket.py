"""Objects over WebSocket: the messages, who may open one, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from pathlib import Path

import pytest
import pytest_asyncio
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    TextMessage,
)

from chassis.http_server import serve_http
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.objects import SandboxObjects
from membrane import ChildLost, ProtocolError, UnsupportedUse
from tests.contract.wire.front_door import make_door
from tests.contract.wire.test_terminal_socket import Served, Socket, connected
from tests.eventually import SECONDS
from tests.fakes.front_door import SANDBOX
from tests.fakes.locks import SeenLock

pytestmark = pytest.mark.asyncio
PATH = f"/v1/sandboxes/{SANDBOX}/objects"


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    door = make_door(tmp_path)
    async with serve_http(door.app, bind="127.0.0.1:0") as http:
        yield Served(door, http.port, "")


async def content(socket: Socket) -> bytes:
    found = b""
    while True:
        event = await socket.next()
        assert isinstance(event, BytesMessage), event
        found += event.data
        if event.message_finished:
            return found


async def test_a_conversation(served: Served) -> None:
    async with connected(
        served, path=PATH, key=served.door.key, protocols=["fairlead.objects.v1"]
    ) as (socket, answer):
        assert isinstance(answer, AcceptConnection)
        assert answer.subprotocol == "fairlead.objects.v1"
        socket.say(type="open", python="python3.11")
        assert await socket.document() == {"type": "opened"}
        for each in (b"a batch\x00\xff", bytes(300_000)):
            socket.send(BytesMessage(data=each))
            assert await content(socket) == each
        socket.send(BytesMessage(data=b"exit"))
        assert await socket.document() == {
            "type": "ended",
            "ended": {"reason": "exited", "code": 3, "signal": None, "errors": "last words"},
        }
        assert await socket.closed() == 1000
    assert served.door.objects.opened == [("default", SANDBOX, "python3.11")]
    names = [span.name for span in served.door.spans.get_finished_spans()]
    assert names == ["rest.GET /v1/sandboxes/{sandbox_id}/objects"]


async def test_who_leaves_ends_it(served: Served) -> None:
    async with connected(served, path=PATH, key=served.door.key) as (socket, _):
        socket.say(type="open")
        assert await socket.document() == {"type": "opened"}
        assert not served.door.objects.ended.is_set()
    async with asyncio.timeout(SECONDS):
        await served.door.objects.ended.wait()


async def test_without_a_key_it_is_refused_before_it_opens(served: Served) -> None:
    async with connected(served, path=PATH) as (_, answer):
        assert isinstance(answer, RejectConnection)
        assert answer.status_code == 401


async def test_another_tenant_does_not_find_it(served: Served) -> None:
    async with connected(served, path=PATH, key=served.door.other_key) as (socket, _):
        socket.say(type="open")
        assert (await socket.document())["problem"]["reason"] == "sandbox_not_found"  # type: ignore[index]
        assert await socket.closed() == 4404
    assert served.door.objects.opened == []


@pytest.mark.parametrize(
    ("first", "following"),
    [
        (TextMessage(data="no json"), None),
        (TextMessage(data='{"type": "close"}'), None),
        (TextMessage(data='{"type": "open", "python": 5}'), None),
        (TextMessage(data='{"type": "open", "more": 5}'), None),
        (BytesMessage(data=b"bytes"), None),
        (TextMessage(data='{"type": "open"}'), TextMessage(data='{"type": "open"}')),
    ],
)
async def test_a_message_that_is_wrong(
    served: Served, first: Event, following: Event | None
) -> None:
    async with connected(served, path=PATH, key=served.door.key) as (socket, _):
        socket.send(first)
        if following is not None:
            assert await socket.document() == {"type": "opened"}
            socket.send(following)
        problem = (await socket.document())["problem"]
        assert isinstance(problem, dict)
        assert problem["reason"] == "objects_frame_invalid"
        assert problem["remedy"]
        assert await socket.closed() == 4400


async def test_a_message_that_is_too_large_closes_it(served: Served) -> None:
    async with connected(served, path=PATH, key=served.door.key) as (socket, _):
        socket.say(type="open")
        assert await socket.document() == {"type": "opened"}
        socket.send(BytesMessage(data=bytes(1024 * 1024 + 1)))
        event = await socket.next()
        assert isinstance(event, CloseConnection)
        assert event.code == 1009


@pytest.mark.parametrize(
    ("python", "error", "said"),
    [
        ("none", UnsupportedUse, r"no such program.*python="),
        ("echo", ProtocolError, "cannot be configured"),
    ],
)
async def test_the_sdk_tells_what_was_refused(
    served: Served, python: str, error: type[Exception], said: str
) -> None:
    url = f"http://127.0.0.1:{served.port}"
    async with FrontDoor(url=url, api_key=served.door.key) as door:
        objects = SandboxObjects(door=door, sandbox_id=SANDBOX, isolation="walled")
        with pytest.raises(error, match=said):
            await asyncio.to_thread(objects.isolate, "aviary:Parrot", {"python": python})
        await asyncio.to_thread(objects.close)
        with pytest.raises(ChildLost, match="closed"):
            await asyncio.to_thread(objects.isolate, "aviary:Parrot", {})


async def test_the_sdk_tells_that_nobody_answers() -> None:
    async with FrontDoor(url="http://127.0.0.1:9", api_key="flk_none") as door:
        objects = SandboxObjects(door=door, sandbox_id=SANDBOX, isolation="walled")
        with pytest.raises(ChildLost) as caught:
            await asyncio.to_thread(objects.isolate, "aviary:Parrot", {})
        assert caught.value.__cause__ is not None
        await asyncio.to_thread(objects.close)


@pytest.mark.parametrize("window", ["before", "after"])
async def test_objects_that_are_closed_while_a_child_is_being_born(
    served: Served, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    begin = LoopThread.begin
    closing: list[threading.Thread] = []
    lock = SeenLock()
    async with FrontDoor(url=f"http://127.0.0.1:{served.port}", api_key=served.door.key) as door:
        objects = SandboxObjects(door=door, sandbox_id=SANDBOX, isolation="walled")

        def begin_and_close(
            loop: LoopThread, work: Coroutine[object, object, object]
        ) -> Future[object]:
            begun = begin(loop, work) if window == "after" else None
            closing.append(lock.beside(objects.close))
            return begun or begin(loop, work)

        monkeypatch.setattr(objects, "_lock", lock)
        monkeypatch.setattr(LoopThread, "begin", begin_and_close)
        with pytest.raises(ChildLost, match="closed"):
            await asyncio.to_thread(objects.isolate, "aviary:Parrot", {"python": "mute"})
        await asyncio.to_thread(closing[0].join)
    # Sockets that nobody has closed warn when they are collected, and warnings are errors.
    gc.collect()
