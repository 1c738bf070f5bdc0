"""The way over WebRTC: a data channel of a session with the gateway of a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from fairlead_tunnel.channel_pipe import (
    MOST_BATCH_BYTES,
    TUNNEL_LABEL,
    TUNNEL_PROTOCOL,
    ChannelPipe,
)
from fairlead_tunnel.endpoints import Health
from fairlead_tunnel.http_ways import ReachedPipe
from fairlead_tunnel.peer_connection import PeerChannel
from fairlead_tunnel.ways import CONNECT_SECONDS, Kind, raise_if_left_alone


class MetGateway(Protocol):
    """A WebRTC session that is connected."""

    def open_port(self, label: str, protocol: str) -> PeerChannel:
        """Open an ordered and reliable channel."""
        ...

    async def wait_down(self) -> None:
        """Wait until channels do not carry, for now or for good."""
        ...


Meet: TypeAlias = Callable[[str], AbstractAsyncContextManager[MetGateway]]
"""Meets the gateway of a session to the end of the block.

OSError: it cannot be met now; AttachRefused: never again, since the session is closed.
"""


class ChannelWays:
    """The ways of one client's tunnels over data channels, and the sessions that carry them."""

    def __init__(self, meet: Meet) -> None:
        self._meet = meet
        self._health = Health()
        self._held: set[asyncio.Task[None]] = set()

    def to(self, session_id: str) -> ChannelWay:
        """Return the way to the gateway of a session."""
        return ChannelWay(self._meet, session_id, health=self._health, held=self._held)

    async def close(self) -> None:
        """End the sessions."""
        held = [*self._held]
        for each in held:
            each.cancel()
        if held:
            await asyncio.wait(held)


class ChannelWay:
    """Opens a session for each carrier, which ends with that; a path that is down for a while ends
    the carrier too.
    """

    kind = Kind.DATA_CHANNEL
    name = "a WebRTC data channel"

    def __init__(
        self, meet: Meet, session_id: str, *, health: Health, held: set[asyncio.Task[None]]
    ) -> None:
        self._meet = meet
        self._session_id = session_id
        self._health = health
        self._held = held

    async def reach(self) -> ReachedPipe:
        """Meet the gateway, which may last; see `Way.reach`."""
        raise_if_left_alone(self._health)
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[ChannelPipe] = loop.create_future()
        holding = loop.create_task(self._hold(ready))
        self._held.add(holding)
        holding.add_done_callback(self._forget)
        try:
            await asyncio.wait((ready, holding), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            holding.cancel()
            raise
        if not ready.done():
            holding.result()
            raise ConnectionError("the gateway ended the session")
        return ReachedPipe(
            ready.result(), self._health, CONNECT_SECONDS, most_bytes=MOST_BATCH_BYTES
        )

    async def _hold(self, ready: asyncio.Future[ChannelPipe]) -> None:
        """Keep a session for as long as its channel."""
        async with self._meet(self._session_id) as met:
            pipe = ChannelPipe(met.open_port(TUNNEL_LABEL, TUNNEL_PROTOCOL))
            down = asyncio.ensure_future(met.wait_down())
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await pipe.wait_open()
                ready.set_result(pipe)
                await asyncio.wait((pipe.ended, down), return_when=asyncio.FIRST_COMPLETED)
            finally:
                down.cancel()
                pipe.abort()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._held.discard(task)
        if not task.cancelled():
            task.exception()  # who waited for it was told
