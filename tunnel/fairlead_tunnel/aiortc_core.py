"""The reference core: aiortc (seen with 1.16), complete descriptions only.

A connection that offers has a channel that is agreed on by number, `KEEPER_ID`, and carries
nothing: it puts the section for channels into the offer, and opens and closes with the association.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fairlead_tunnel.data_channel_port import DataChannelPort
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone
from fairlead_tunnel.peer_connection import (
    ChannelOpened,
    CoreLacks,
    DescriptionInvalid,
    IceServer,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.whole_connection import NotClosed, WholeConnection

if TYPE_CHECKING:
    from aiortc import RTCDataChannel, RTCDtlsTransport

KEEPER_ID = 65534
_NAME = "aiortc"
_ENDS = (PeerState.FAILED, PeerState.CLOSED)

log = logging.getLogger(__name__)


class AiortcCore:
    """Makes connections of aiortc, which takes about a second to import, most of it codecs."""

    name = _NAME
    can_trickle = False

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loaded = False

    async def load(self) -> None:
        """Import aiortc, once, in a thread; raises ImportError."""
        async with self._lock:
            if not self._loaded:
                await asyncio.to_thread(_import)
                self._loaded = True

    def connect(self, plan: PeerPlan) -> AiortcConnection:
        """Make a connection; raises CoreLacks for one that trickles."""
        if plan.trickles:
            raise CoreLacks(_NAME, "send candidates one by one")
        return AiortcConnection(plan=plan)


def _import() -> None:
    importlib.import_module("aiortc")
    # At level info aioice logs the addresses of both peers for each check; at debug both log
    # packets and descriptions.
    for name in ("aioice", "aiortc"):
        logging.getLogger(name).setLevel(logging.WARNING)
    offer_loopback_when_alone(importlib.import_module("aioice.ice"))


class AiortcConnection:
    """One `RTCPeerConnection`."""

    def __init__(self, *, plan: PeerPlan) -> None:
        from aiortc import RTCConfiguration, RTCIceServer, RTCIceTransportPolicy, RTCPeerConnection

        servers = [
            RTCIceServer(
                urls=list(server.urls),
                username=server.username or None,
                credential=server.credential or None,
            )
            for server in plan.usable_servers
        ]
        policy = (
            RTCIceTransportPolicy.RELAY if plan.policy == "relay" else RTCIceTransportPolicy.ALL
        )
        self._connection = RTCPeerConnection(
            RTCConfiguration(iceServers=servers, iceTransportPolicy=policy)
        )
        self._whole = WholeConnection(connection=self._connection)
        self._take: Callable[[PeerEvent], None] | None = None
        self._state: PeerState | None = None
        self._is_offerer = False
        self._negotiated = False
        self._numbers: Iterator[int] = iter(())
        self._in_use: set[int] = set()
        self._connection.on("datachannel", self._take_channel)
        self._connection.on("connectionstatechange", self._take_state)

    def listen(self, take: Callable[[PeerEvent], None]) -> None:
        """Tell events from now on."""
        self._take = take

    def use_servers(self, servers: tuple[IceServer, ...]) -> None:
        """Change nothing: there is no round after the first."""

    async def offer(self) -> str:
        """Return the SDP offer, with all candidates."""
        self._is_offerer = True
        keeper = self._connection.createDataChannel("keeper", negotiated=True, id=KEEPER_ID)
        keeper.on("open", lambda: self._tell_state(PeerState.CONNECTED))
        keeper.on("close", lambda: self._tell_state(PeerState.CLOSED))
        return await self._whole.step(self._gather())

    async def restart(self) -> str:
        """Raise CoreLacks."""
        raise CoreLacks(_NAME, "restart a connection")

    async def answer(self, offer: str) -> str:
        """Return the SDP answer, with all candidates; raises DescriptionInvalid."""
        if self._negotiated:
            raise CoreLacks(_NAME, "restart a connection")
        try:
            answer = await self._whole.step(self._answer(offer))
        except Exception as error:
            # aiortc's parser raises whatever its lines run into: ValueError, KeyError, IndexError,
            # AttributeError, AssertionError and its own.
            log.info("offer not understood", extra={"cause": type(error).__name__})
            raise DescriptionInvalid from error
        self._watch_dtls()
        return answer

    async def accept(self, answer: str) -> None:
        """Take the answer to the offer; raises DescriptionInvalid."""
        from aiortc import RTCSessionDescription

        if not self._is_offerer or self._negotiated:
            raise DescriptionInvalid
        try:
            await self._whole.step(
                self._connection.setRemoteDescription(
                    RTCSessionDescription(sdp=answer, type="answer")
                )
            )
        except Exception as error:
            log.info("answer not understood", extra={"cause": type(error).__name__})
            raise DescriptionInvalid from error
        self._watch_dtls()

    async def add_candidate(self, candidate: str) -> None:
        """Raise CoreLacks."""
        raise CoreLacks(_NAME, "take candidates one by one")

    async def end_candidates(self) -> None:
        """Raise CoreLacks."""
        raise CoreLacks(_NAME, "take candidates one by one")

    def open_channel(self, label: str, protocol: str) -> DataChannelPort:
        """Open a channel, with a number that was not used lately.

        aiortc 1.16 ends the whole association when a number is used again before the peer has seen
        the end of its last use.
        """
        number = next(number for number in self._numbers if number not in self._in_use)
        self._in_use.add(number)
        channel = self._connection.createDataChannel(label, protocol=protocol, id=number)
        channel.on("close", lambda: self._in_use.discard(number))
        return DataChannelPort(channel=channel, listen=channel.on)

    async def close(self) -> None:
        """Free everything, in a bounded time; again changes nothing."""
        self._take = None
        try:
            await self._whole.close()
        except NotClosed:
            log.error("connection not closed")
        except Exception as error:
            log.warning("connection closed badly", extra={"cause": type(error).__name__})

    async def _gather(self) -> str:
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    async def _answer(self, offer: str) -> str:
        from aiortc import RTCSessionDescription

        connection = self._connection
        await connection.setRemoteDescription(RTCSessionDescription(sdp=offer, type="offer"))
        if connection.sctp is None:
            raise ValueError("no section for channels")
        await connection.setLocalDescription(await connection.createAnswer())
        return connection.localDescription.sdp

    def _watch_dtls(self) -> None:
        self._negotiated = True
        if self._connection.sctp is not None:
            # RFC 8832, section 6: the DTLS client takes even numbers, the server odd ones.
            self._numbers = itertools.cycle(
                range(1 if self._connection.sctp.is_server else 0, KEEPER_ID, 2)
            )
            dtls = self._connection.sctp.transport
            dtls.on("statechange", lambda: self._take_dtls_state(dtls))

    def _take_dtls_state(self, dtls: RTCDtlsTransport) -> None:
        """Tell a peer that said goodbye from one that is silent (RFC 7675, consent).

        aiortc ends both by closing DTLS, but aioice has forgotten its candidates only in the
        second case.
        """
        if dtls.state == "closed":
            is_silent = not dtls.transport.iceGatherer.getLocalCandidates()
            self._tell_state(PeerState.FAILED if is_silent else PeerState.CLOSED)

    def _take_state(self) -> None:
        match self._connection.connectionState:
            case "connected" if not self._is_offerer:
                self._tell_state(PeerState.CONNECTED)
            case "failed" | "closed":
                self._tell_state(PeerState.FAILED)

    def _tell_state(self, state: PeerState) -> None:
        """Tell a state once; after an end there is no other."""
        if self._take is not None and state is not self._state and self._state not in _ENDS:
            self._state = state
            self._take(StateChanged(state))

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if self._take is None:
            with contextlib.suppress(Exception):
                channel.close()
            return
        reliable = channel.maxRetransmits is None and channel.maxPacketLifeTime is None
        self._take(
            ChannelOpened(
                channel.label,
                channel.protocol,
                channel.ordered and reliable,
                DataChannelPort(channel=channel, listen=channel.on),
            )
        )
