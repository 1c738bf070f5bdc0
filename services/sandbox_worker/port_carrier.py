"""Brings connections to ports and terminals in sandboxes to the gateways that want them."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Protocol

from fairlead_tunnel.conversation import Conversation, own_connection
from fairlead_tunnel.framed_port import FramedPort, accept
from sandbox_worker.errors import (
    ArgumentInvalid,
    ConnectionsExhausted,
    GatewayUnreachable,
    PortRefused,
    SandboxNotFound,
)
from sandbox_worker.owned_tasks import OwnedTasks
from sandbox_worker.sandboxes import Sandboxes

TICKET_BYTES = 32
_HIGHEST_PORT = 65535
_RELEASED = ("sandbox_released", "The sandbox was released.")
_STOPPING = ("host_lost", "The host of the sandbox is about to stop.")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

log = logging.getLogger(__name__)


class Talks(Protocol):
    """What talks to whoever a channel to a terminal brings."""

    def check(self, *, tenant: str, sandbox_id: str, execution_id: str) -> None:
        """Raise ExecutionNotFound for an execution that is not in the sandbox."""
        ...

    async def hold(self, talk: Conversation, *, tenant: str, execution_id: str) -> None:
        """Attach whoever is on the other side, until either side ends it."""
        ...


class PortCarrier:
    """Carries each connection until it ends or its sandbox is released."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        terminals: Talks,
        most: int = 4096,
        dial_seconds: float = 5.0,
    ) -> None:
        self._sandboxes = sandboxes
        self._terminals = terminals
        self._most = most
        self._dial_seconds = dial_seconds
        self._tasks = OwnedTasks()
        self._count = 0

    async def open(
        self,
        *,
        tenant: str,
        sandbox_id: str,
        port: int,
        address: str,
        ticket: bytes,
        execution_id: str = "",
    ) -> None:
        """Connect to a port, or to the terminal of an execution, then dial the gateway; returns
        once it has been sent the ticket.

        Raises SandboxNotFound, ExecutionNotFound, PortRefused, GatewayUnreachable and
        ConnectionsExhausted. A caller that leaves before has nothing opened.
        """
        if execution_id:
            self._terminals.check(tenant=tenant, sandbox_id=sandbox_id, execution_id=execution_id)
        elif not 1 <= port <= _HIGHEST_PORT:
            raise ArgumentInvalid("port", f"is from 1 to {_HIGHEST_PORT}")
        if len(ticket) != TICKET_BYTES:
            raise ArgumentInvalid("ticket", f"has {TICKET_BYTES} bytes")
        if self._count >= self._most:
            raise ConnectionsExhausted(self._most)
        opened = asyncio.Event()
        carry = (
            self._carry_terminal(tenant, execution_id, address, ticket, opened)
            if execution_id
            else self._carry(tenant, sandbox_id, port, address, ticket, opened)
        )
        carrying = self._tasks.start(carry, name="port")
        self._count += 1
        carrying.add_done_callback(self._uncount)
        opening = asyncio.ensure_future(opened.wait())
        try:
            await asyncio.wait((carrying, opening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opening.cancel()
            if not opened.is_set():
                carrying.cancel()
        if not opened.is_set():
            if carrying.cancelled():
                raise SandboxNotFound(sandbox_id)
            await carrying

    async def close(self) -> None:
        """End all connections."""
        await self._tasks.cancel()

    async def _carry(
        self,
        tenant: str,
        sandbox_id: str,
        port: int,
        address: str,
        ticket: bytes,
        opened: asyncio.Event,
    ) -> None:
        with self._sandboxes.visit(tenant, sandbox_id) as enclosure:
            connection = await enclosure.connect(port)
            if connection is None:
                raise PortRefused(sandbox_id, port)
            inner = await _streams(connection)
            try:
                outer = await self._dial(address, ticket)
                opened.set()
                framed = FramedPort(reader=outer[0], writer=outer[1])
                ending = await accept(framed, *inner, if_cancelled=_RELEASED)
                if ending.reason:
                    log.debug("connection broke", extra={"reason": ending.reason})
            finally:
                inner[1].transport.abort()

    async def _carry_terminal(
        self, tenant: str, execution_id: str, address: str, ticket: bytes, opened: asyncio.Event
    ) -> None:
        """Attach the channel to a terminal, over a connection of this process to itself.

        The end of its sandbox is an exit like any other, which the terminal shows.
        """
        outer = await self._dial(address, ticket)
        opened.set()
        framed = FramedPort(reader=outer[0], writer=outer[1])
        try:
            inner, talk = await own_connection()
        except BaseException:
            framed.abort()
            raise
        talking = asyncio.ensure_future(
            self._terminals.hold(talk, tenant=tenant, execution_id=execution_id)
        )
        try:
            await accept(framed, *inner, if_cancelled=_STOPPING)
        finally:
            inner[1].transport.abort()
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    def _uncount(self, _: asyncio.Task[None]) -> None:
        self._count -= 1

    async def _dial(self, address: str, ticket: bytes) -> Stream:
        try:
            async with asyncio.timeout(self._dial_seconds):
                if address.startswith("unix:"):
                    stream = await asyncio.open_unix_connection(address.removeprefix("unix:"))
                else:
                    host, _, port = address.rpartition(":")
                    stream = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError, OverflowError, TimeoutError) as error:
            raise GatewayUnreachable from error
        stream[1].write(ticket)
        return stream


async def _streams(connection: socket.socket) -> Stream:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return await asyncio.open_connection(sock=connection)
    except BaseException:
        connection.close()
        raise
