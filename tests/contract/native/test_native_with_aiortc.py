"""The native core with aiortc as its peer, either of them offering."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.sdp import candidate_from_sdp

import tests.contract.native.presence  # noqa: F401
from fairlead_native import Connection, Engine, Message, Reason, State
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone
from tests.contract.native.peers import Inbox, first_channel, taken_sum


@pytest_asyncio.fixture
async def native() -> AsyncIterator[Connection]:
    engine = Engine()
    yield engine.connect()
    engine.close()


@pytest_asyncio.fixture
async def other() -> AsyncIterator[RTCPeerConnection]:
    offer_loopback_when_alone(importlib.import_module("aioice.ice"))
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    yield connection
    await connection.close()


class OtherInbox:
    """What came on a channel of aiortc."""

    def __init__(self, channel: RTCDataChannel) -> None:
        self.channel = channel
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.closed = asyncio.Event()
        channel.on("message", self.messages.put_nowait)
        channel.on("close", self.closed.set)


def first_other_channel(connection: RTCPeerConnection) -> asyncio.Future[OtherInbox]:
    found: asyncio.Future[OtherInbox] = asyncio.get_running_loop().create_future()
    connection.on("datachannel", lambda channel: found.set_result(OtherInbox(channel)))
    return found


async def answered(connection: RTCPeerConnection, offer: str) -> str:
    await connection.setRemoteDescription(RTCSessionDescription(sdp=offer, type="offer"))
    await connection.setLocalDescription(await connection.createAnswer())
    return str(connection.localDescription.sdp)


async def check_both_ways(own: Inbox, others: OtherInbox) -> None:
    own.channel.send("from native")
    assert await others.messages.get() == "from native"
    others.channel.send("from aiortc")
    assert await own.messages.get() == "from aiortc"
    block = os.urandom(1024 * 1024)
    sent, taken = await asyncio.gather(
        own.send_all(block, 2), taken_sum(others.messages, len(block) * 2)
    )
    assert sent == taken
    for start in range(0, len(block), 16384):
        others.channel.send(block[start : start + 16384])
    assert await own.take_all(len(block)) == hashlib.sha256(block).digest()


@pytest.mark.asyncio
async def test_native_offers_complete(native: Connection, other: RTCPeerConnection) -> None:
    found = first_other_channel(other)
    own = Inbox(native.open_channel("tcp:80", protocol="p"))
    native.offer()
    await native.wait_gathered()
    native.accept_answer(await answered(other, native.description()))
    others = await found
    assert (others.channel.label, others.channel.protocol) == ("tcp:80", "p")
    await own.opened()
    await check_both_ways(own, others)
    own.channel.close()
    await asyncio.gather(own.closed.wait(), others.closed.wait())
    await other.close()
    assert await native.wait_state(State.CLOSED)
    assert native.reason is Reason.PEER


@pytest.mark.asyncio
async def test_native_offers_and_trickles(native: Connection, other: RTCPeerConnection) -> None:
    found = first_other_channel(other)
    own = Inbox(native.open_channel("tcp:80"))
    lines: list[str] = []
    native.on_candidate = lines.append
    offer = native.offer()
    native.accept_answer(await answered(other, offer))
    for line in lines:
        candidate = candidate_from_sdp(line.removeprefix("candidate:"))
        candidate.sdpMLineIndex = 0
        await other.addIceCandidate(candidate)
    await check_both_ways(own, await found)


@pytest.mark.asyncio
async def test_aiortc_offers_and_hears_the_goodbye(
    native: Connection, other: RTCPeerConnection
) -> None:
    found = first_channel(native)
    others = OtherInbox(other.createDataChannel("tcp:80", protocol="p"))
    await other.setLocalDescription(await other.createOffer())
    native.answer(other.localDescription.sdp)
    await native.wait_gathered()
    await other.setRemoteDescription(RTCSessionDescription(sdp=native.description(), type="answer"))
    own = Inbox(await found)
    assert (own.channel.label, own.channel.protocol) == ("tcp:80", "p")
    await check_both_ways(own, others)
    native.close()
    await others.closed.wait()
