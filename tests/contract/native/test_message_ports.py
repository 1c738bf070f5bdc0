"""What `Pump` and `Relay` ask of a message port, over the native core and over aiortc."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import pytest
import pytest_asyncio
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection

import tests.contract.native.presence  # noqa: F401
from fairlead_native import Channel, Connection, Engine
from fairlead_tunnel.byte_channel import PROTOCOL, Side
from fairlead_tunnel.data_channel_port import DataChannelPort
from fairlead_tunnel.framed_port import FramedPort, accept
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone
from fairlead_tunnel.native_port import NativePort
from fairlead_tunnel.pump import MessagePort, Pump
from fairlead_tunnel.relay import Relay
from tests.contract.native.peers import trickle
from tests.eventually import SECONDS


class Association(Protocol):
    """Opens channels from one side, and gives both ends of each as ports."""

    async def ports(self) -> tuple[MessagePort, MessagePort]: ...


class NativeAssociation:
    """Two connections of the native core."""

    def __init__(self, near: Connection, far: Connection) -> None:
        self._near = near
        self._arrived: asyncio.Queue[MessagePort] = asyncio.Queue()
        far.on_channel = self._take
        trickle(near, far)
        near.accept_answer(far.answer(near.offer()))

    def _take(self, channel: Channel) -> None:
        self._arrived.put_nowait(NativePort(channel=channel))

    async def ports(self) -> tuple[MessagePort, MessagePort]:
        channel = self._near.open_channel("tcp:80", protocol=PROTOCOL)
        return NativePort(channel=channel), await self._arrived.get()


class AiortcAssociation:
    """Two connections of aiortc."""

    def __init__(self, near: RTCPeerConnection, far: RTCPeerConnection) -> None:
        self._near = near
        self._far = far
        self._arrived: asyncio.Queue[MessagePort] = asyncio.Queue()
        far.on("datachannel", self._take)
        self._keeper = near.createDataChannel("keeper", negotiated=True, id=65534)

    async def connect(self) -> None:
        await self._near.setLocalDescription(await self._near.createOffer())
        await self._far.setRemoteDescription(self._near.localDescription)
        await self._far.setLocalDescription(await self._far.createAnswer())
        await self._near.setRemoteDescription(self._far.localDescription)

    def _take(self, channel: RTCDataChannel) -> None:
        self._arrived.put_nowait(DataChannelPort(channel=channel, listen=channel.on))

    async def ports(self) -> tuple[MessagePort, MessagePort]:
        channel = self._near.createDataChannel("tcp:80", protocol=PROTOCOL)
        return DataChannelPort(channel=channel, listen=channel.on), await self._arrived.get()


@pytest_asyncio.fixture(params=["native", "aiortc"])
async def association(request: pytest.FixtureRequest) -> AsyncIterator[Association]:
    if request.param == "native":
        engine = Engine()
        yield NativeAssociation(engine.connect(), engine.connect())
        engine.close()
        return
    offer_loopback_when_alone(importlib.import_module("aioice.ice"))
    near, far = (RTCPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))
    made = AiortcAssociation(near, far)
    await made.connect()
    yield made
    await asyncio.gather(near.close(), far.close())


@dataclass
class Streams:
    """One end of a TCP-like connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send_all(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()
        self.writer.write_eof()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def connection() -> tuple[Streams, Streams]:
    """Return both ends of a connection."""
    ends = [Streams(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
    return ends[0], ends[1]


@pytest.mark.asyncio
async def test_a_stream_goes_both_ways_and_each_ends_by_itself(association: Association) -> None:
    near, far = await association.ports()
    opener, acceptor = Pump(port=near, side=Side.OPENER), Pump(port=far, side=Side.ACCEPTOR)
    (client, client_end), (server, server_end) = await connection(), await connection()
    up, down = os.urandom(3_000_000), os.urandom(2_000_000)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        carrying = [
            group.create_task(opener.carry(client_end.reader, client_end.writer)),
            group.create_task(acceptor.carry(server_end.reader, server_end.writer)),
        ]
        group.create_task(client.send_all(up))
        received = await server.reader.read(-1)
        group.create_task(server.send_all(down))
        answered = await client.reader.read(-1)
    assert hashlib.sha256(received).digest() == hashlib.sha256(up).digest()
    assert hashlib.sha256(answered).digest() == hashlib.sha256(down).digest()
    ending = carrying[0].result()
    assert (ending.reason, ending.sent, ending.received) == ("", len(up), len(down))
    await asyncio.gather(client.close(), server.close())


@pytest.mark.asyncio
async def test_a_refusal_reaches_the_opener(association: Association) -> None:
    near, far = await association.ports()
    opener, acceptor = Pump(port=near, side=Side.OPENER), Pump(port=far, side=Side.ACCEPTOR)
    acceptor.refuse("port_closed", "Nothing listens there.")
    async with asyncio.timeout(SECONDS):
        ending = await opener.wait_ended()
    assert (ending.reason, ending.message) == ("port_closed", "Nothing listens there.")


@pytest.mark.asyncio
async def test_a_slow_reader_stalls_itself_only(association: Association) -> None:
    stalled, fast = await association.ports(), await association.ports()
    (client, client_end), (server, server_end) = await connection(), await connection()
    content = os.urandom(8_000_000)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        slow = [
            group.create_task(
                Pump(port=stalled[0], side=Side.OPENER).carry(client_end.reader, client_end.writer)
            ),
            group.create_task(
                Pump(port=stalled[1], side=Side.ACCEPTOR).carry(
                    server_end.reader, server_end.writer
                )
            ),
        ]
        sending = group.create_task(client.send_all(content))
        await server.reader.readexactly(1)
        opener = Pump(port=fast[0], side=Side.OPENER)
        acceptor = Pump(port=fast[1], side=Side.ACCEPTOR)
        (other, other_end), (echo, echo_end) = await connection(), await connection()
        quick = [
            group.create_task(opener.carry(other_end.reader, other_end.writer)),
            group.create_task(acceptor.carry(echo_end.reader, echo_end.writer)),
        ]
        for _ in range(20):
            other.writer.write(b"ping")
            echo.writer.write(await echo.reader.readexactly(4))
            assert await other.reader.readexactly(4) == b"ping"
        assert not sending.done()
        rest = await server.reader.read(-1)
        assert hashlib.sha256(content[1:]).digest() == hashlib.sha256(rest).digest()
        for end in (server, other, echo):
            end.writer.write_eof()
    assert all(task.result().reason == "" for task in (*slow, *quick))
    await asyncio.gather(*(end.close() for end in (client, server, other, echo)))


@pytest.mark.asyncio
async def test_a_channel_that_closes_early_is_a_lost_stream(association: Association) -> None:
    near, far = await association.ports()
    opener = Pump(port=near, side=Side.OPENER)
    far.attach(on_message=lambda _: None, on_closed=lambda: None)
    await far.drain()
    far.close()
    async with asyncio.timeout(SECONDS):
        assert (await opener.wait_ended()).reason == "channel_lost"
        await near.drain()
    near.send("dropped")


@pytest.mark.asyncio
async def test_a_relay_passes_on_what_a_host_says(association: Association) -> None:
    near, far = await association.ports()
    opener, relay = Pump(port=near, side=Side.OPENER), Relay(near=far)
    (client, client_end), (gateway, worker), (server, server_end) = [
        await connection() for _ in range(3)
    ]
    content = os.urandom(2_000_000)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        group.create_task(opener.carry(client_end.reader, client_end.writer))
        group.create_task(relay.carry(FramedPort(reader=gateway.reader, writer=gateway.writer)))
        group.create_task(
            accept(
                FramedPort(reader=worker.reader, writer=worker.writer),
                server_end.reader,
                server_end.writer,
                if_cancelled=("host_stopping", "The host stops."),
            )
        )
        group.create_task(client.send_all(content))
        received = await server.reader.read(-1)
        group.create_task(server.send_all(received))
        assert await client.reader.read(-1) == content
    await asyncio.gather(client.close(), server.close())
