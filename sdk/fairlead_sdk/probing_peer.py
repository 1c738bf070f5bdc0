"""A client's peer that goes as far as an open connection, and tells how far it has come."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Sequence

from aiortc import (
    RTCConfiguration,
    RTCIceServer,
    RTCIceTransportPolicy,
    RTCPeerConnection,
    RTCSessionDescription,
)

from fairlead_sdk.diagnosis import IcePath
from fairlead_sdk.diagnosis_faults import answer_senseless
from fairlead_sdk.ice_servers import IceServer
from fairlead_tunnel.aiortc_core import KEEPER_ID
from fairlead_tunnel.loopback_candidates import offer_loopback_when_alone
from fairlead_tunnel.whole_connection import NotClosed, WholeConnection

log = logging.getLogger(__name__)


class ProbingPeer:
    """One association that carries nothing."""

    def __init__(self, *, servers: Sequence[IceServer], path: IcePath) -> None:
        offer_loopback_when_alone(importlib.import_module("aioice.ice"))
        is_relayed = path is IcePath.RELAY
        self._connection = RTCPeerConnection(
            RTCConfiguration(
                iceServers=[
                    RTCIceServer(
                        urls=list(server.urls),
                        username=server.username or None,
                        credential=server.credential or None,
                    )
                    for server in servers
                ],
                iceTransportPolicy=(
                    RTCIceTransportPolicy.RELAY if is_relayed else RTCIceTransportPolicy.ALL
                ),
            )
        )
        self._whole = WholeConnection(connection=self._connection)
        self._path = asyncio.Event()
        self._open = asyncio.Event()
        self._ended = asyncio.Event()
        self._has_path = self._is_open = False
        keeper = self._connection.createDataChannel("keeper", negotiated=True, id=KEEPER_ID)
        keeper.on("open", self._take_open)
        keeper.on("close", self._take_end)
        self._connection.on("iceconnectionstatechange", self._take_path)
        self._connection.on("connectionstatechange", self._take_state)

    async def offer(self) -> str:
        """Return the offer with all candidates."""
        return await self._whole.step(self._gather())

    async def accept(self, answer: str) -> None:
        """Take the gateway's answer and begin to connect; raises `Unavailable` when it is none."""
        description = RTCSessionDescription(sdp=answer, type="answer")
        try:
            await self._whole.step(self._connection.setRemoteDescription(description))
        except Exception as error:
            # aiortc's parser raises whatever the lines run into.
            raise answer_senseless() from error

    async def path_found(self) -> bool:
        """Wait until a path to the gateway is found, or none will be."""
        await self._path.wait()
        return self._has_path

    async def opened(self) -> bool:
        """Wait until channels can be opened, or never can."""
        await self._open.wait()
        return self._is_open

    async def ended(self) -> None:
        """Wait until the association has failed or ended."""
        await self._ended.wait()

    async def close(self) -> None:
        """Free everything, in a bounded time."""
        self._take_end()
        try:
            await self._whole.close()
        except NotClosed:
            log.warning("connection not closed in time")
        except Exception as error:
            log.debug("connection closed badly", extra={"cause": type(error).__name__})

    async def _gather(self) -> str:
        await self._connection.setLocalDescription(await self._connection.createOffer())
        return self._connection.localDescription.sdp

    def _take_path(self) -> None:
        if self._connection.iceConnectionState == "completed":
            self._has_path = True
            self._path.set()

    def _take_open(self) -> None:
        self._is_open = True
        self._open.set()

    def _take_state(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self._take_end()

    def _take_end(self) -> None:
        for event in (self._path, self._open, self._ended):
            event.set()
