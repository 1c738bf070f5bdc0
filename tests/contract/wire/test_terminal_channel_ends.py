"""The client's end of a channel to a terminal: what each end of the other side means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.errors import FairleadError, NotFound, Unavailable
from fairlead_sdk.terminal_channels import TerminalChannel, terminal_channel
from fairlead_tunnel.byte_channel import Side
from fairlead_tunnel.conversation import Conversation, own_connection
from fairlead_tunnel.pump import Pump
from fairlead_tunnel.targets import Target
from tests.fakes.peer_core import ChannelFake

pytestmark = pytest.mark.asyncio


class Session:
    """A session whose channels end in a worker that a test plays."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.ports: list[ChannelFake] = []
        self.worker: Pump | None = None

    def open_channel(self, target: Target) -> Pump:
        self.targets.append(target)
        near, far = ChannelFake(), ChannelFake()
        near.peer, far.peer = far, near
        self.ports += [near, far]
        self.worker = Pump(port=far, side=Side.ACCEPTOR)
        return Pump(port=near, side=Side.OPENER)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Session, TerminalChannel, Conversation]]:
    """A channel, and the worker's end of it."""
    session = Session()
    async with asyncio.timeout(20), terminal_channel(session, "exe_a") as channel:
        assert session.worker is not None
        streams, worker = await own_connection()
        carrying = asyncio.create_task(session.worker.carry(*streams))
        try:
            yield session, channel, worker
        finally:
            worker.close()
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)


async def test_messages_go_both_ways_and_an_end_is_an_end() -> None:
    async with opened() as (session, channel, worker):
        assert session.targets == [Target(execution_id="exe_a")]
        await channel.send(json.dumps({"type": "open"}))
        await channel.send(b"\0" * 8 + b"x" * 300_000)
        assert await worker.receive() == '{"type": "open"}'
        assert await worker.receive() == b"\0" * 8 + b"x" * 300_000
        await worker.send("shown")
        worker.finish()
        assert await channel.receive() == "shown"
        assert await channel.receive() is None
        assert await worker.receive() is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("execution_not_found", NotFound),
        ("host_lost", Unavailable),
        ("gateway_draining", Unavailable),
        ("session_closed", Unavailable),
    ],
)
async def test_a_reset_is_the_error_that_it_names(reason: str, kind: type[FairleadError]) -> None:
    async with opened() as (session, channel, _):
        assert session.worker is not None
        session.worker.refuse(reason, "A sentence.")
        with pytest.raises(kind) as caught:
            await channel.receive()
        assert caught.value.reason == reason
        assert caught.value.message == "A sentence."


async def test_who_leaves_ends_the_other_side() -> None:
    async with asyncio.timeout(20):
        session = Session()
        async with terminal_channel(session, "exe_a") as channel:
            assert session.worker is not None
            streams, worker = await own_connection()
            carrying = asyncio.create_task(session.worker.carry(*streams))
            await channel.send("last words")
            assert await worker.receive() == "last words"
            leaving = asyncio.create_task(worker.receive())
        assert await leaving is None
        worker.close()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def test_a_session_that_is_lost_is_an_error_that_may_pass() -> None:
    async with opened() as (session, channel, _):
        session.ports[0].lose()
        with pytest.raises(Unavailable) as caught:
            await channel.receive()
        assert caught.value.reason == "channel_lost"
