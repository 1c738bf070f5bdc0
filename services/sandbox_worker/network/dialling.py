"""Resolves a name once, judges every address, and connects to one of those very addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from chassis.allow_list import Host
from chassis.public_addresses import Address
from sandbox_worker.network.address_rules import AddressRules
from sandbox_worker.network.decision import Reason, Refused
from sandbox_worker.network.egress_ports import Resolve
from sandbox_worker.owned_tasks import OwnedTasks

MOST_LOOKUPS = 8
"""Names of one sandbox that are being resolved at a time: a silent name server holds a thread."""

_MOST_ADDRESSES = 4
_RESOLVE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0


class Dialler:
    """Connects one sandbox to hosts."""

    def __init__(self, *, rules: AddressRules, resolve: Resolve, lookups: OwnedTasks) -> None:
        self._rules = rules
        self._resolve = resolve
        self._lookups = lookups
        self._turns = asyncio.Semaphore(MOST_LOOKUPS)

    async def dial(self, host: Host, port: int) -> tuple[socket.socket, Address]:
        """Return a connection and the address that it goes to; raises Refused."""
        found = await self._addresses(host, port)
        is_named = isinstance(host, str)
        faults = {each: self._rules.fault(each, port, is_named=is_named) for each in found}
        allowed = [each for each in found if faults[each] is None]
        if not allowed:
            worst = found[0]
            raise Refused(faults[worst] or Reason.ADDRESS_PRIVATE, address=str(worst))
        for each in allowed[:_MOST_ADDRESSES]:
            connection = await _connect(each, port)
            if connection is not None:
                return connection, each
        raise Refused(Reason.UNREACHABLE, address=str(allowed[0]))

    async def _addresses(self, host: Host, port: int) -> Sequence[Address]:
        if not isinstance(host, str):
            return (host,)
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await self._turns.acquire()
                # It goes on when this caller leaves, and keeps its turn until it has ended.
                lookup = self._lookups.start(self._look_up(host, port), name="look up")
                texts = await asyncio.shield(lookup)
        except TimeoutError:
            raise Refused(Reason.TIMED_OUT) from None
        addresses = [ip_address(each) for each in texts]
        if not addresses:
            raise Refused(Reason.UNRESOLVED)
        return addresses

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        try:
            return await self._resolve(host, port)
        except (OSError, UnicodeError):
            return ()
        finally:
            self._turns.release()


async def _connect(address: Address, port: int) -> socket.socket | None:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(_CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
    except OSError:  # a TimeoutError is one
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection
