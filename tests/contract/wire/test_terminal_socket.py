"""Terminals over WebSocket: the messages, who may open one, and a client that comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from chassis.http_server import serve_http
from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import (
    FairleadError,
    SandboxNotFound,
    StreamLost,
    TerminalOwned,
    Unauthenticated,
)
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.records import Exit
from fairlead_sdk.terminals import (
    AsyncTerminal,
    TerminalGap,
    TerminalLost,
    TerminalOutput,
    TerminalResumed,
    attached,
)
from signalling.execution import Command, TerminalSize
from tests.contract.wire.front_door import Door, make_door
from tests.fakes.front_door import SANDBOX

pytestmark = pytest.mark.asyncio


@dataclass(frozen=True, slots=True)
class Served:
    """A front door that listens, and an execution with a terminal."""

    door: Door
    port: int
    execution_id: str

    @property
    def path(self) -> str:
        return f"/v1/executions/{self.execution_id}/terminal"


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    door = make_door(tmp_path)
    execution = await door.executions.start("default", SANDBOX, Command(("sh",)), "key")
    async with serve_http(door.app, bind="127.0.0.1:0") as http:
        yield Served(door, http.port, execution.execution_id)


class Socket:
    """A WebSocket as bytes on a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    def send(self, event: Event) -> None:
        self._writer.write(self._protocol.send(event))

    def say(self, **members: object) -> None:
        self.send(TextMessage(data=json.dumps(members)))

    def type(self, offset: int, content: bytes) -> None:
        self.send(BytesMessage(data=offset.to_bytes(8, "big") + content))

    async def next(self) -> Event:
        while not self._events:
            self._protocol.receive_data(await self._reader.read(65536) or None)
            self._events = list(self._protocol.events())
        return self._events.pop(0)

    async def document(self) -> dict[str, object]:
        event = await self.next()
        assert isinstance(event, TextMessage), event
        found = json.loads(event.data)
        assert isinstance(found, dict)
        return found

    async def shown(self) -> tuple[int, bytes]:
        event = await self.next()
        assert isinstance(event, BytesMessage), event
        return int.from_bytes(event.data[:8], "big"), bytes(event.data[8:])

    async def closed(self) -> int:
        event = await self.next()
        assert isinstance(event, CloseConnection), event
        return event.code


@asynccontextmanager
async def connected(
    served: Served, *, path: str = "", key: str = "", protocols: list[str] | None = None
) -> AsyncIterator[tuple[Socket, Event]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    socket = Socket(reader, writer)
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    socket.send(
        Request(
            host="fairlead",
            target=path or served.path,
            extra_headers=headers,
            subprotocols=protocols or [],
        )
    )
    try:
        yield socket, await socket.next()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_conversation(served: Served) -> None:
    async with connected(served, key=served.door.key) as (socket, answer):
        assert isinstance(answer, AcceptConnection)
        assert answer.subprotocol is None
        socket.say(type="open", owner="a", size={"rows": 30, "columns": 90})
        snapshot = await socket.document()
        assert (snapshot["type"], snapshot["input_offset"], snapshot["resumed"]) == (
            "snapshot",
            0,
            False,
        )
        socket.type(0, b"hello\x00\xff")
        assert await socket.shown() == (1, b"hello\x00\xff")
        assert await socket.document() == {"type": "accepted", "offset": 7}
        socket.say(type="resize", rows=31, columns=91)
        socket.type(5, b"\x00\xffexit\n")
        assert await socket.shown() == (2, b"exit\n")
        assert await socket.document() == {"type": "accepted", "offset": 12}
        exit_ = await socket.document()
        assert exit_["type"] == "exit"
        assert await socket.closed() == 1000
    assert served.door.terminals.sizes == [TerminalSize(30, 90), TerminalSize(31, 91)]
    names = [span.name for span in served.door.spans.get_finished_spans()]
    assert names == ["rest.GET /v1/executions/{execution_id}/terminal"]


async def test_a_browser_sends_its_key_as_a_subprotocol(served: Served) -> None:
    offered = ["fairlead.terminal.v1", f"fairlead.key.{served.door.key}"]
    async with connected(served, protocols=offered) as (socket, answer):
        assert isinstance(answer, AcceptConnection)
        assert answer.subprotocol == "fairlead.terminal.v1"
        socket.say(type="open")
        assert (await socket.document())["type"] == "snapshot"
        socket.say(type="detach")
        assert await socket.closed() == 1000


@pytest.mark.parametrize("key", ["", "flk_" + "x" * 43])
async def test_without_a_key_it_is_refused_before_it_opens(served: Served, key: str) -> None:
    async with connected(served, key=key) as (socket, answer):
        assert isinstance(answer, RejectConnection)
        assert answer.status_code == 401
        content = b""
        while True:
            event = await socket.next()
            assert isinstance(event, RejectData)
            content += event.data
            if event.body_finished:
                break
        assert json.loads(content)["reason"] == ("key_invalid" if key else "key_missing")


async def test_another_tenant_does_not_find_it(served: Served) -> None:
    async with connected(served, key=served.door.other_key) as (socket, _):
        socket.say(type="open")
        assert (await socket.document())["problem"]["reason"] == "execution_not_found"  # type: ignore[index]
        assert await socket.closed() == 4404


@pytest.mark.parametrize(
    "first",
    [
        TextMessage(data="no json"),
        TextMessage(data='{"type": "detach"}'),
        TextMessage(data='{"type": "open", "owner": 5}'),
        TextMessage(data='{"type": "open", "more": 5}'),
        BytesMessage(data=b"12345678x"),
    ],
)
async def test_a_first_message_that_is_wrong(served: Served, first: Event) -> None:
    async with connected(served, key=served.door.key) as (socket, _):
        socket.send(first)
        assert (await socket.document())["problem"]["reason"] == "terminal_frame_invalid"  # type: ignore[index]
        assert await socket.closed() == 4400


@pytest.mark.parametrize(
    "later",
    [
        TextMessage(data='{"type": "open"}'),
        TextMessage(data='{"type": "resize", "rows": "1", "columns": 1}'),
        TextMessage(data='{"type": "unknown"}'),
        BytesMessage(data=b"short"),
    ],
)
async def test_a_later_message_that_is_wrong(served: Served, later: Event) -> None:
    async with connected(served, key=served.door.key) as (socket, _):
        socket.say(type="open")
        assert (await socket.document())["type"] == "snapshot"
        socket.send(later)
        assert (await socket.document())["problem"]["reason"] == "terminal_frame_invalid"  # type: ignore[index]
        assert await socket.closed() == 4400
    async with connected(served, key=served.door.key) as (socket, _):
        socket.say(type="open")
        assert (await socket.document())["type"] == "snapshot"  # it was let go of


async def test_it_is_taken_over_and_says_so(served: Served) -> None:
    async with connected(served, key=served.door.key) as (first, _):
        first.say(type="open", owner="a")
        await first.document()
        async with connected(served, key=served.door.key) as (second, _):
            second.say(type="open", owner="b")
            assert (await second.document())["problem"]["reason"] == "terminal_owned"  # type: ignore[index]
            assert await second.closed() == 4409
        async with connected(served, key=served.door.key) as (third, _):
            third.say(type="open", owner="b", take_over=True)
            assert (await third.document())["type"] == "snapshot"
            assert await first.document() == {"type": "taken_over"}
            assert await first.closed() == 1000


async def test_it_is_resized_by_a_call(served: Served) -> None:
    async with served.door.client() as client:
        path = f"/v1/executions/{served.execution_id}/resize"
        answer = await client.post(path, json={"rows": 5, "columns": 6})
        assert answer.status_code == 200
        assert answer.json()["execution_id"] == served.execution_id
        assert served.door.terminals.sizes == [TerminalSize(5, 6)]
        assert (await client.post(path, json={"rows": 5})).json()["reason"] == "invalid_body"


@asynccontextmanager
async def front_door(served: Served, key: str | None = None) -> AsyncIterator[FrontDoor]:
    async def at_once(seconds: float) -> None:
        await asyncio.sleep(0)

    url = f"http://127.0.0.1:{served.port}"
    async with FrontDoor(url=url, api_key=key or served.door.key, sleep=at_once) as door:
        yield door


async def collected(terminal: AsyncTerminal, wanted: bytes) -> bytes:
    seen = b""
    async for event in terminal.events():
        if isinstance(event, TerminalOutput):
            seen += event.content
            if seen.endswith(wanted):
                return seen
    raise AssertionError(seen)


async def test_the_sdk_shows_types_and_waits(served: Served) -> None:
    async with front_door(served) as door:
        terminal = await attached(door, served.execution_id, size=(10, 20))
        await terminal.resize(11, 21)
        await terminal.send(b"a" * 200_000 + b"exit\n")
        assert b"".join([piece async for piece in terminal.output()]) == b"a" * 200_000 + b"exit\n"
        assert isinstance(await terminal.wait(), Exit)
        await terminal.send(b"into nothing")
        await terminal.detach()
        await terminal.detach()
    assert served.door.terminals.sizes == [TerminalSize(10, 20), TerminalSize(11, 21)]


async def test_a_cut_connection_is_taken_up_without_loss_or_doubling(served: Served) -> None:
    terminals = served.door.terminals
    seen, kinds = b"", set()
    async with (
        front_door(served) as door,
        await attached(door, served.execution_id) as terminal,
    ):
        for number in range(6):
            if number % 2:
                terminals.taking.clear()  # it is typed, and not taken before the cut
            await terminal.send(b"%d " % number)
            for _ in range(10 * number):
                await asyncio.sleep(0)  # the cut comes at another moment each time
            terminals.show(served.execution_id, b"<%d>" % number)
            terminals.cut()
            terminals.taking.set()
        await terminal.send(b"exit\n")
        async for event in terminal.events():
            kinds.add(type(event))
            if isinstance(event, TerminalOutput):
                seen += event.content
    assert terminals.typed == b"0 1 2 3 4 5 exit\n"
    for number in range(6):
        assert seen.count(b"<%d>" % number) == 1
        assert seen.count(b"%d " % number) == 1
    assert TerminalLost in kinds
    assert TerminalResumed in kinds
    assert len({opening.owner for opening in terminals.openings}) == 1


async def test_an_exit_that_did_not_come_before_the_cut_is_read_where_it_is_recorded(
    served: Served,
) -> None:
    terminals = served.door.terminals
    async with (
        front_door(served) as door,
        await attached(door, served.execution_id) as terminal,
    ):
        terminals.released = True
        terminals.cut()
        recorded = await AsyncExecutions(door=door).get(served.execution_id)
        assert await terminal.wait() == recorded.exit
        with pytest.raises(SandboxNotFound):
            await attached(door, served.execution_id)


async def test_output_that_was_dropped_while_the_connection_was_lost(served: Served) -> None:
    terminals = served.door.terminals
    async with (
        front_door(served) as door,
        await attached(door, served.execution_id) as terminal,
    ):
        terminals.show(served.execution_id, b"seen")
        assert await collected(terminal, b"seen") == b"seen"
        for content in (b"dropped", b"kept"):
            terminals.show(served.execution_id, content)
        terminals.dropped = 2
        terminals.cut()
        await terminal.send(b"exit\n")
        events = [event async for event in terminal.events()]
    assert TerminalGap(7) in events
    shown = b"".join(event.content for event in events if isinstance(event, TerminalOutput))
    assert shown.removeprefix(b"dropped") in (b"keptexit\n", b"exit\nkept")


async def test_the_sdk_hears_of_a_takeover_and_of_refusals(served: Served) -> None:
    async with front_door(served) as door, front_door(served, served.door.other_key) as other:
        with pytest.raises(FairleadError) as caught:
            await attached(other, served.execution_id)
        assert caught.value.reason == "execution_not_found"
        first = await attached(door, served.execution_id)
        with pytest.raises(TerminalOwned):
            await attached(door, served.execution_id)
        second = await attached(door, served.execution_id, take_over=True)
        with pytest.raises(TerminalOwned):
            await first.wait()
        with pytest.raises(TerminalOwned):
            await first.send(b"x")
        await first.detach()
        await second.send(b"exit\n")
        assert (await second.wait()).code == 0
        await second.detach()
    async with front_door(served, "flk_" + "x" * 43) as stranger:
        with pytest.raises(Unauthenticated):
            await attached(stranger, served.execution_id)


async def test_a_mesh_that_stays_away_is_told(tmp_path: Path) -> None:
    door = make_door(tmp_path)
    execution = await door.executions.start("default", SANDBOX, Command(("sh",)), "key")
    async with serve_http(door.app, bind="127.0.0.1:0") as http:
        served = Served(door, http.port, execution.execution_id)
        async with front_door(served) as client:
            terminal = await attached(client, served.execution_id)
            door.terminals.show(served.execution_id, b"before")
            assert await collected(terminal, b"before") == b"before"
            http.drain()
            with pytest.raises(StreamLost):
                await terminal.wait()
            await terminal.detach()
