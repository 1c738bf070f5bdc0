"""Connects channels to hosts beside the gateway: resolves once, judges, dials what was judged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from chassis.allow_list import Host, parse_host
from chassis.errors import FairleadError
from chassis.public_addresses import Address
from fairlead_tunnel.framed_port import keep_alive
from fairlead_tunnel.silence import notice_silence
from relay_gateway.ports import Stream
from relay_gateway.session import ChannelUnknown, WantedSession
from relay_gateway.target_rules import (
    DialRefused,
    DialTimeout,
    HostUnknown,
    HostUnreachable,
    TargetRules,
)

DIAL_SECONDS = 10.0
"""For the name and the connection together."""
_MOST_ADDRESSES = 4
_MOST_LISTED = 1024

Connected = TypeVar("Connected")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a name; raises OSError and UnicodeError."""


class Dialler:
    """The use case behind each channel that leads to a host."""

    def __init__(
        self, *, rules: TargetRules, resolve: Resolve, dial_seconds: float = DIAL_SECONDS
    ) -> None:
        self._rules = rules
        self._resolve = resolve
        self.dial_seconds = dial_seconds
        """How long the name and the connection together may take."""
        # The list stays as it is, and a tunnel may ask for one address thousands of times a second.
        self._listed = lru_cache(maxsize=_MOST_LISTED)(self._find_listed)

    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        """Connect to a host.

        Raises ChannelUnknown, TargetDenied, HostUnknown, DialRefused, DialTimeout and
        HostUnreachable.
        """
        stream = await self._dialled(host, port, asyncio.open_connection)
        keep_alive(stream[1])
        return stream

    async def connect(
        self,
        session: WantedSession,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Connect what `make` returns to a host; raises what `dial` does."""

        async def made(address: str, port: int) -> asyncio.BaseTransport:
            transport, _ = await asyncio.get_running_loop().create_connection(make, address, port)
            return transport

        transport = await self._dialled(host, port, made)
        notice_silence(transport.get_extra_info("socket"))

    def judge(self, session: WantedSession, host: str, port: int) -> str | None:
        """Return the address that a host is, once it may be dialled; None: it is a name, which may
        be resolved. Raises ChannelUnknown and TargetDenied.
        """
        if listed := self._listed(host, port):
            return listed
        wanted = self._allowed(host, port)
        if isinstance(wanted, str):
            return None
        (address,) = self._rules.judged(wanted, (str(wanted),), port)
        return str(address)

    async def resolve(self, session: WantedSession, host: str, port: int) -> Sequence[str]:
        """Return those addresses of a host that may be dialled, in their order, at most four.

        Raises ChannelUnknown, TargetDenied, HostUnknown and DialTimeout.
        """
        wanted = self._allowed(host, port)
        try:
            async with asyncio.timeout(self.dial_seconds):
                return [str(each) for each in await self._judged(wanted, port)]
        except TimeoutError as error:
            raise _failure(error, host, port) from None

    def dialled(
        self, session: WantedSession, host: str, port: int, error: int, seconds: float
    ) -> FairleadError | None:
        """Return what an errno says of a connection to a host; None for 0."""
        return _failure(OSError(error, os.strerror(error)), host, port) if error else None

    def _find_listed(self, host: str, port: int) -> str:
        """Return the address that a host is if the operator has listed it, and else nothing."""
        try:
            wanted = parse_host(host)
        except ValueError:
            return ""
        is_listed = not isinstance(wanted, str) and self._rules.lists(wanted, port)
        return str(wanted) if is_listed else ""

    async def _dialled(
        self, host: str, port: int, connect: Callable[[str, int], Awaitable[Connected]]
    ) -> Connected:
        wanted = self._allowed(host, port)
        try:
            async with asyncio.timeout(self.dial_seconds):
                return await self._connect(await self._judged(wanted, port), port, connect)
        except OSError as error:
            raise _failure(error, host, port) from None

    def _allowed(self, host: str, port: int) -> Host:
        """Read a host; raises ChannelUnknown, and TargetDenied for what is not even resolved."""
        try:
            wanted = parse_host(host)
        except ValueError:
            raise ChannelUnknown from None
        self._rules.check(wanted, port)
        return wanted

    async def _judged(self, wanted: Host, port: int) -> Sequence[Address]:
        found = await self._addresses(wanted, port)
        return self._rules.judged(wanted, found, port)[:_MOST_ADDRESSES]

    async def _addresses(self, host: Host, port: int) -> Sequence[str]:
        if not isinstance(host, str):
            return (str(host),)
        try:
            found = await self._resolve(host, port)
        except TimeoutError:
            raise
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise HostUnknown(host)
        return found

    async def _connect(
        self,
        addresses: Sequence[Address],
        port: int,
        connect: Callable[[str, int], Awaitable[Connected]],
    ) -> Connected:
        """Try one address after the other, each for its share of the time; raises OSError."""
        fault = OSError()
        for each in addresses:
            try:
                async with asyncio.timeout(self.dial_seconds / len(addresses)):
                    # An address is not resolved again; asyncio sets TCP_NODELAY.
                    return await connect(str(each), port)
            except OSError as error:
                fault = error
        raise fault


def _failure(error: OSError, host: str, port: int) -> FairleadError:
    match error:
        case ConnectionRefusedError():
            return DialRefused(host, port)
        case TimeoutError():
            return DialTimeout(host, port)
        case _:
            return HostUnreachable(host, port)
