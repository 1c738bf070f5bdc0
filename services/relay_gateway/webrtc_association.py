"""One peer connection and its channels; what can end it, ends it once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from chassis.errors import FairleadError
from fairlead_tunnel.byte_channel import PROTOCOL, port_of
from fairlead_tunnel.data_channel_port import DataChannelPort
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.relay import Relay
from fairlead_tunnel.whole_connection import NotClosed, WholeConnection
from relay_gateway.ports import ChannelOpening
from relay_gateway.session import (
    ChannelLimit,
    ChannelUnknown,
    CloseReason,
    GatewayDraining,
    WantedSession,
)

if TYPE_CHECKING:
    from aiortc import RTCDataChannel, RTCDtlsTransport, RTCPeerConnection

log = logging.getLogger(__name__)


class WebrtcAssociation:
    """A peer connection that is being answered, or was."""

    def __init__(
        self,
        *,
        connection: RTCPeerConnection,
        session: WantedSession,
        opener: ChannelOpening,
        channel_limit: int,
        is_draining: Callable[[], bool],
    ) -> None:
        self._connection = connection
        self._whole = WholeConnection(connection=connection)
        self._session = session
        self._opener = opener
        self._channel_limit = channel_limit
        self._is_draining = is_draining
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason = CloseReason.CONNECTION_FAILED
        self._closing: asyncio.Task[None] | None = None
        self.answer = ""
        connection.on("datachannel", self._take_channel)
        connection.on("connectionstatechange", self._take_state)

    @property
    def channels(self) -> int:
        """How many channels are open."""
        return len(self._tasks)

    async def negotiate(self, answering: Coroutine[object, object, str]) -> None:
        """Wait for the answer; from then on the connection can end. When cancelled, close()."""
        self.answer = await self._whole.step(answering)
        if self._connection.sctp is not None:
            dtls = self._connection.sctp.transport
            dtls.on("statechange", lambda: self._take_dtls_state(dtls))

    async def connected(self) -> None:
        """Wait until the peer is connected."""
        await self._connected.wait()

    async def ended(self) -> CloseReason:
        """Wait until the connection is over: the peer closed it, or it failed."""
        await self._ended.wait()
        return self._reason

    async def close(self) -> None:
        """Free every channel and the connection, in a bounded time; again changes nothing."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._end(self._reason)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._whole.close()
        except NotClosed:
            log.error("connection not closed", extra={"session_id": self._session.session_id})
        except Exception as error:
            log.warning("connection closed badly", extra={"cause": type(error).__name__})

    def _end(self, reason: CloseReason) -> None:
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()

    def _take_state(self) -> None:
        match self._connection.connectionState:
            case "connected":
                self._connected.set()
            case "failed":
                self._end(CloseReason.CONNECTION_FAILED)
            case "closed":
                self._end(CloseReason.CONNECTION_FAILED)

    def _take_dtls_state(self, dtls: RTCDtlsTransport) -> None:
        """Tell a peer that said goodbye from one that is silent (RFC 7675, consent).

        aiortc ends both by closing DTLS, but aioice has forgotten its candidates only in the
        second case.
        """
        if dtls.state == "closed":
            is_silent = not dtls.transport.iceGatherer.getLocalCandidates()
            self._end(CloseReason.CONNECTION_FAILED if is_silent else CloseReason.PEER_CLOSED)

    def _take_channel(self, channel: RTCDataChannel) -> None:
        """Take a channel that the peer opened; its messages are taken from this moment on."""
        relay = Relay(near=DataChannelPort(channel=channel, listen=channel.on))
        try:
            port = self._checked_port(channel)
        except FairleadError as error:
            relay.refuse(error.reason, error.message)
            return
        task = asyncio.create_task(self._carry(relay, port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _checked_port(self, channel: RTCDataChannel) -> int:
        port = port_of(channel.label)
        is_reliable = channel.maxRetransmits is None and channel.maxPacketLifeTime is None
        if port is None or channel.protocol != PROTOCOL or not (channel.ordered and is_reliable):
            raise ChannelUnknown
        if self._is_draining():
            raise GatewayDraining
        if len(self._tasks) >= self._channel_limit:
            raise ChannelLimit(self._channel_limit)
        if self._ended.is_set():
            raise GatewayDraining
        return port

    async def _carry(self, relay: Relay, port: int) -> None:
        """Open the sandbox's end, unless the peer gives up before, and carry the bytes."""
        opening = asyncio.ensure_future(self._opener.open(self._session, port))
        given_up = asyncio.ensure_future(relay.wait_ended())
        try:
            await asyncio.wait((opening, given_up), return_when=asyncio.FIRST_COMPLETED)
            if given_up.done() and not opening.done():
                return
            reader, writer = await opening
            await relay.carry(FramedPort(reader=reader, writer=writer))
        except FairleadError as error:
            relay.refuse(error.reason, error.message)
        except asyncio.CancelledError:
            relay.refuse("session_closed", "The session was closed.")
            raise
        except Exception:
            log.exception("channel failed", extra={"session_id": self._session.session_id})
            relay.refuse("gateway_failed", "The gateway failed.")
        finally:
            await _discard(opening, given_up)


async def _discard(
    opening: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    given_up: asyncio.Future[None],
) -> None:
    """End both; a connection that was made and then not wanted is dropped."""
    given_up.cancel()
    opening.cancel()
    await asyncio.wait((opening, given_up))
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()
