"""Channels to neighbours: one per address, kept while it is used, and the stubs on them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import grpc

_MOST_CHANNELS = 256
_Stub = TypeVar("_Stub")


class ChannelCache:
    """Channels by address; where there are many, the longest unused are closed."""

    def __init__(self, *, open_channel: Callable[[str], grpc.aio.Channel]) -> None:
        self._open = open_channel
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> ChannelCache:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def to(self, address: str) -> grpc.aio.Channel:
        """Return the channel to an address."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
        self._channels.move_to_end(address)
        while len(self._channels) > _MOST_CHANNELS:
            _, oldest = self._channels.popitem(last=False)
            closed = asyncio.ensure_future(oldest.close())
            self._closing.add(closed)
            closed.add_done_callback(self._closing.discard)
        return channel


class Stubs(Generic[_Stub]):
    """One stub per channel: making one takes as long as a call."""

    def __init__(
        self, *, channels: ChannelCache, make: Callable[[grpc.aio.Channel], _Stub]
    ) -> None:
        self._channels = channels
        self._make = make
        self._made: dict[str, tuple[grpc.aio.Channel, _Stub]] = {}

    def to(self, address: str) -> _Stub:
        """Return the stub for an address."""
        channel = self._channels.to(address)
        made = self._made.get(address)
        if made is None or made[0] is not channel:
            made = self._made[address] = (channel, self._make(channel))
        return made[1]
