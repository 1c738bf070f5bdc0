"""One peer connection and its channels; what can end it, ends it once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from chassis.errors import FairleadError
from fairlead_tunnel.byte_channel import PROTOCOL, Side
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.channel_pipe import TUNNEL_LABEL, TUNNEL_PROTOCOL
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    ChannelOpened,
    CoreError,
    CoreLacks,
    DescriptionInvalid,
    GatheringDone,
    IceServer,
    PeerConnection,
    PeerEvent,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.pump import Ending, MessagePort, Pump
from fairlead_tunnel.relay import Relay
from fairlead_tunnel.targets import Target, target_of
from relay_gateway.happening import AllFound, Ended, Found, Happening, PathDown, PathUp
from relay_gateway.offers import is_sealed, usable_candidate, usable_offer
from relay_gateway.ports import ChannelOpening, Dialling, Stream
from relay_gateway.session import (
    ChannelLimit,
    ChannelUnknown,
    CloseReason,
    GatewayDraining,
    RestartUnsupported,
    SdpInvalid,
    SealRefused,
    WantedSession,
)
from relay_gateway.tunnel_channel import ChannelCarrier

MOST_CARRIERS = 2
"""Of one session: a client has one at a time, and maybe another one that it is about to leave."""
MOST_WAITING = 256
"""So many channels of one session wait for others to end; more are refused."""
_CAUSE = "it is not a description that WebRTC knows"

log = logging.getLogger(__name__)


def servers_of(wanted: WantedSession) -> tuple[IceServer, ...]:
    """Return the servers that came with a round, as cores take them."""
    return tuple(
        IceServer(server.urls, server.username, server.credential) for server in wanted.ice_servers
    )


class WebrtcAssociation:
    """A peer connection that is being answered, or was."""

    def __init__(
        self,
        *,
        connection: PeerConnection,
        can_restart: bool,
        session: WantedSession,
        opener: ChannelOpening,
        dialler: Dialling,
        desk: Callable[[], TunnelDesk],
        channel_limit: int,
        is_draining: Callable[[], bool],
        take: Callable[[Happening], None],
    ) -> None:
        self.can_restart = can_restart
        self.answer = ""
        self._connection = connection
        self._session = session
        self._opener = opener
        self._dialler = dialler
        self._desk = desk
        self._channel_limit = channel_limit
        self._turns = asyncio.Semaphore(channel_limit)
        self._is_draining = is_draining
        self._take = take
        self._tasks: set[asyncio.Task[None]] = set()
        self._carriers: set[ChannelCarrier] = set()
        self._has_ended = False
        self._closing: asyncio.Task[None] | None = None
        connection.listen(self._tell)

    @property
    def channels(self) -> int:
        """How many channels are open, without those that carry tunnels."""
        return len(self._tasks)

    async def negotiate(self, offer: str) -> None:
        """Answer the first offer; raises SdpInvalid, SealRefused. When it fails or is cancelled,
        close().
        """
        self.answer = await self._answer(offer)

    async def restart(self, wanted: WantedSession) -> str:
        """Answer the offer of another round; raises SdpInvalid, RestartUnsupported, SealRefused."""
        offer = wanted.offer if is_sealed(wanted.offer) else usable_offer(wanted.offer)
        self._connection.use_servers(servers_of(wanted))
        return await self._answer(offer)

    async def _answer(self, offer: str) -> str:
        try:
            return await self._connection.answer(offer)
        except DescriptionInvalid as error:
            raise SdpInvalid(_CAUSE) from error
        except CoreLacks as error:
            raise RestartUnsupported from error
        except CoreError as error:
            raise SealRefused(error.message) from error

    async def add_candidate(self, candidate: str) -> None:
        """Take a candidate of the client, unless only multicast DNS can resolve it."""
        if usable_candidate(candidate):
            with contextlib.suppress(CoreError):
                await self._connection.add_candidate(candidate)

    async def end_candidates(self) -> None:
        """Note that the client has no more candidates in this round."""
        with contextlib.suppress(CoreError):
            await self._connection.end_candidates()

    async def close(self) -> None:
        """Free every channel and the connection, in a bounded time; again changes nothing."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._has_ended = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for carrier in [*self._carriers]:
            carrier.pipe.abort()
        await self._connection.close()

    def _tell(self, event: PeerEvent) -> None:
        match event:
            case ChannelOpened():
                self._take_channel(event)
            case CandidateFound(candidate):
                self._take(Found(candidate))
            case GatheringDone():
                self._take(AllFound())
            case StateChanged(PeerState.CONNECTED):
                self._take(PathUp())
            case StateChanged(PeerState.DISCONNECTED):
                self._take(PathDown())
            case StateChanged(state):
                self._has_ended = True
                is_goodbye = state is PeerState.CLOSED
                reason = CloseReason.PEER_CLOSED if is_goodbye else CloseReason.CONNECTION_FAILED
                self._take(Ended(reason))

    def _take_channel(self, channel: ChannelOpened) -> None:
        """Take a channel that the peer opened; its messages are taken from this moment on."""
        try:
            if channel.protocol == TUNNEL_PROTOCOL:
                self._take_carrier(channel)
                return
            target = self._checked_target(channel)
        except FairleadError as error:
            Relay(near=channel.port).refuse(error.reason, error.message)
            return
        carrying = self._to_host if target.host else self._to_sandbox
        task = asyncio.create_task(carrying(channel.port, target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_carrier(self, channel: ChannelOpened) -> None:
        """Take a channel that carries a tunnel, also while draining, as the other carriers."""
        if channel.label != TUNNEL_LABEL or not channel.is_reliable:
            raise ChannelUnknown
        if len(self._carriers) >= MOST_CARRIERS:
            raise ChannelLimit(MOST_CARRIERS)
        if self._has_ended:
            raise GatewayDraining
        carrier = ChannelCarrier(self._desk(), channel.port)
        self._carriers.add(carrier)
        carrier.pipe.ended.add_done_callback(lambda _: self._carriers.discard(carrier))

    def _checked_target(self, channel: ChannelOpened) -> Target:
        target = target_of(channel.label)
        if target is None or channel.protocol != PROTOCOL or not channel.is_reliable:
            raise ChannelUnknown
        if self._is_draining():
            raise GatewayDraining
        if len(self._tasks) >= self._channel_limit + MOST_WAITING:
            raise ChannelLimit(self._channel_limit + MOST_WAITING)
        if self._has_ended:
            raise GatewayDraining
        return target

    def _to_sandbox(self, port: MessagePort, target: Target) -> Coroutine[None, None, None]:
        """Pass messages on to the worker, which is the other end of the channel."""
        relay = Relay(near=port)

        async def carry(stream: Stream) -> None:
            await relay.carry(FramedPort(reader=stream[0], writer=stream[1]))

        opened = partial(self._opener.open, self._session, target.port, target.execution_id)
        return self._carry(relay, opened, carry)

    def _to_host(self, port: MessagePort, target: Target) -> Coroutine[None, None, None]:
        """Be the other end of the channel, between it and a connection to a host."""
        pump = Pump(port=port, side=Side.ACCEPTOR)

        async def carry(stream: Stream) -> None:
            await pump.carry(*stream)

        dial = partial(self._dialler.dial, self._session, target.host, target.port)
        return self._carry(pump, dial, carry)

    async def _carry(
        self,
        end: Relay | Pump,
        open_far: Callable[[], Awaitable[Stream]],
        carry: Callable[[Stream], Awaitable[None]],
    ) -> None:
        """Open the far end in its turn, unless the peer gives up before, and carry the bytes."""
        turn: list[bool] = []

        async def open_in_turn() -> Stream:
            has_waited = self._turns.locked()
            turn.append(await self._turns.acquire())
            if has_waited and self._is_draining():
                raise GatewayDraining
            return await open_far()

        opening = asyncio.ensure_future(open_in_turn())
        given_up = asyncio.ensure_future(end.wait_ended())
        try:
            await asyncio.wait((opening, given_up), return_when=asyncio.FIRST_COMPLETED)
            if given_up.done() and not opening.done():
                return
            await carry(await opening)
        except FairleadError as error:
            end.refuse(error.reason, error.message)
        except asyncio.CancelledError:
            end.refuse("session_closed", "The session was closed.")
            raise
        except Exception:
            log.exception("channel failed", extra={"session_id": self._session.session_id})
            end.refuse("gateway_failed", "The gateway failed.")
        finally:
            await _discard(opening, given_up)
            if turn:
                self._turns.release()


async def _discard(
    opening: asyncio.Future[Stream], given_up: asyncio.Future[Ending | None]
) -> None:
    """End both; a connection that was made and then not wanted is dropped."""
    given_up.cancel()
    opening.cancel()
    await asyncio.wait((opening, given_up))
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()
