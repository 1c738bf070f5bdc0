"""The client's end of a WebRTC association: one data channel for each TCP connection."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import logging
from collections.abc import Iterator

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from fairlead_tunnel.byte_channel import PROTOCOL, Side, label_of
from fairlead_tunnel.data_channel_port import DataChannelPort
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone
from fairlead_tunnel.pump import Pump
from fairlead_tunnel.whole_connection import NotClosed, WholeConnection

KEEPER_ID = 65534

log = logging.getLogger(__name__)


class WebrtcTunnel:
    """One association, from the offer to its end.

    A data channel that is agreed on by number, `KEEPER_ID`, and carries nothing puts the data
    section into the offer; it opens and closes with the association.
    """

    def __init__(self) -> None:
        offer_loopback_when_alone(importlib.import_module("aioice.ice"))
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._whole = WholeConnection(connection=self._connection)
        self._settled = asyncio.Event()
        self._lost = asyncio.Event()
        self._numbers: Iterator[int] = iter(())
        self._in_use: set[int] = set()
        keeper = self._connection.createDataChannel("keeper", negotiated=True, id=KEEPER_ID)
        keeper.on("open", self._settled.set)
        keeper.on("close", self._take_loss)
        self._connection.on("connectionstatechange", self._take_state)

    @property
    def is_lost(self) -> bool:
        """Say whether the association has failed or ended."""
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        """Wait until the association has failed or ended."""
        await self._lost.wait()

    async def offer(self) -> str:
        """Return the SDP offer, with all candidates."""
        return await self._whole.step(self._gather())

    async def connect(self, answer: str) -> bool:
        """Apply the gateway's answer, wait for the outcome and say whether it is connected."""
        try:
            await self._whole.step(
                self._connection.setRemoteDescription(
                    RTCSessionDescription(sdp=answer, type="answer")
                )
            )
        except Exception as error:
            # aiortc's parser raises whatever the lines run into.
            log.debug("answer not understood", extra={"cause": type(error).__name__})
            return False
        await self._settled.wait()
        if self.is_lost or self._connection.sctp is None:
            return False
        # RFC 8832, section 6: the DTLS client takes even numbers, the server odd ones.
        first = 1 if self._connection.sctp.is_server else 0
        self._numbers = itertools.cycle(range(first, KEEPER_ID, 2))
        return True

    def open_channel(self, port: int) -> Pump:
        """Open a channel to a port of the sandbox; bytes may be sent before it is connected there.

        Each channel has a number that was not used lately: aiortc 1.16 ends the whole association
        when a number is used again before the peer has seen the end of its last use.
        """
        number = next(number for number in self._numbers if number not in self._in_use)
        self._in_use.add(number)
        channel = self._connection.createDataChannel(label_of(port), protocol=PROTOCOL, id=number)
        channel.on("close", lambda: self._in_use.discard(number))
        return Pump(port=DataChannelPort(channel=channel, listen=channel.on), side=Side.OPENER)

    async def close(self) -> None:
        """Free everything, in a bounded time."""
        self._take_loss()
        try:
            await self._whole.close()
        except NotClosed:
            log.warning("connection not closed in time")
        except Exception as error:
            log.debug("connection closed badly", extra={"cause": type(error).__name__})

    async def _gather(self) -> str:
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    def _take_state(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._take_loss()

    def _take_loss(self) -> None:
        self._lost.set()
        self._settled.set()
