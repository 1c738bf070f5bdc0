"""Meets the WebRTC side of a gateway of which a test has the tunnels, without signalling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.channel_way import ChannelWays
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.message_carrier import MessageCarrier
from fairlead_tunnel.peer_connection import (
    PeerChannel,
    PeerConnection,
    PeerCore,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)
from relay_gateway.ports import Stream
from relay_gateway.session import PortTimeout, WantedSession
from relay_gateway.target_rules import TargetDenied
from relay_gateway.webrtc_association import WebrtcAssociation
from relay_gateway.webrtc_carrier import WebrtcCarrier
from tests.contract.tunnel.tunnel_world import World


class _NoOpener:
    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        raise PortTimeout


class _NoDialler:
    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        raise TargetDenied(host, port)


class _Channel:
    """A channel that may fall silent: nothing arrives any more, and nobody is told."""

    def __init__(self, channel: PeerChannel) -> None:
        self.is_silent = False
        self._channel = channel

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        def take(message: Message) -> None:
            if not self.is_silent:
                on_message(message)

        self._channel.attach(on_message=take, on_closed=on_closed)

    def send(self, message: Message) -> None:
        if not self.is_silent:
            self._channel.send(message)

    @property
    def queued(self) -> int:
        return self._channel.queued

    @property
    def has_room(self) -> bool:
        return self._channel.has_room

    async def drain(self) -> None:
        await self._channel.drain()

    def close(self) -> None:
        self._channel.close()


class Met:
    """A session that is being connected, or was."""

    def __init__(self, connection: PeerConnection) -> None:
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self._channels: list[_Channel] = []
        self._connection = connection
        connection.listen(self._take)

    def open_port(self, label: str, protocol: str) -> PeerChannel:
        """Open a channel."""
        channel = _Channel(self._connection.open_channel(label, protocol))
        self._channels.append(channel)
        return channel

    def fall_silent(self) -> None:
        """Let nothing arrive any more in the channels that there are."""
        for each in self._channels:
            each.is_silent = True

    async def wait_down(self) -> None:
        """Wait until the path is down."""
        await self.down.wait()

    def _take(self, event: PeerEvent) -> None:
        if isinstance(event, StateChanged):
            (self.up if event.state is PeerState.CONNECTED else self.down).set()


@dataclass
class Meeting:
    """Where clients meet a gateway; `sessions` are there now, `met` counts all of them."""

    core: PeerCore
    desk: Callable[[], TunnelDesk]
    sessions: list[tuple[Met, WebrtcAssociation]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    may_meet: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str = ""
    refusal: str = ""

    def __post_init__(self) -> None:
        self.may_meet.set()

    @property
    def met(self) -> int:
        """How many sessions were wanted so far."""
        return len(self.asked)

    async def open(self) -> int:
        """Return how many sessions there are."""
        return len(self.sessions)

    async def lose(self) -> None:
        """End all sessions at the gateway."""
        for _, association in [*self.sessions]:
            await association.close()

    @asynccontextmanager
    async def meet(self, session_id: str) -> AsyncIterator[Met]:
        """Hold a session with the gateway."""
        self.asked.append(session_id)
        await self.may_meet.wait()
        if self.refusal:
            raise AttachRefused(self.refusal, "The session is closed.")
        if self.fault:
            raise ConnectionError(self.fault)
        carrier = WebrtcCarrier(
            core=self.core,
            opener=_NoOpener(),
            dialler=_NoDialler(),
            channels_per_session=4,
            desk=self.desk,
        )
        await carrier.load()
        connection = self.core.connect(PeerPlan())
        met = Met(connection)
        try:
            wanted = WantedSession("ses_b", await connection.offer(), datetime.now(UTC))
            association = await carrier.answer(wanted, lambda happening: None)
            try:
                await connection.accept(association.answer)
                await met.up.wait()
                self.sessions.append((met, association))
                try:
                    yield met
                finally:
                    self.sessions.remove((met, association))
            finally:
                await association.close()
        finally:
            await connection.close()


async def attach_channel(it: World, ways: ChannelWays) -> MessageCarrier:
    """Attach one more carrier over a session of its own and wait for its answer."""
    reached = await ways.to("ses_a").reach()
    return await reached.attach(ticket=it.ticket, driver=it.client.driver)
