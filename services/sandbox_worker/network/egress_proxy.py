"""The filtering proxies of all sandboxes, in this process.

The worker accepts on a socket that listens inside one sandbox's network, so that it knows for
certain who speaks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial

from chassis.allow_list import AllowList, Host
from chassis.clock import Clock
from chassis.public_addresses import Address
from sandbox_worker.network.address_rules import AddressRules
from sandbox_worker.network.decision import Decision, LastDecisions, Reason, Refused
from sandbox_worker.network.dialling import Dialler
from sandbox_worker.network.egress_ports import Count, Resolve
from sandbox_worker.network.exchange import Exchange
from sandbox_worker.network.request_target import Target
from sandbox_worker.owned_tasks import OwnedTasks

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1
"""How long nothing is accepted when this process has no descriptor left."""


class EgressProxy:
    """Opens, changes and closes the doors of sandboxes.

    A sandbox has at most `most_each` connections at a time, all have `most_in_all`.
    """

    def __init__(
        self,
        *,
        rules: AddressRules,
        resolve: Resolve,
        clock: Clock,
        count: Count,
        most_each: int,
        most_in_all: int,
    ) -> None:
        self._rules = rules
        self._resolve = resolve
        self._clock = clock
        self._count = count
        self._most_each = most_each
        self._room = _Room(most=most_in_all)
        self._lookups = OwnedTasks()
        self._doors: dict[str, _Door] = {}

    def open(self, sandbox_id: str, listener: socket.socket, allowed: AllowList) -> None:
        self._doors[sandbox_id] = _Door(
            sandbox_id=sandbox_id,
            listener=listener,
            allowed=allowed,
            dialler=Dialler(rules=self._rules, resolve=self._resolve, lookups=self._lookups),
            clock=self._clock,
            count=self._count,
            most=self._most_each,
            room=self._room,
        )

    def change(self, sandbox_id: str, allowed: AllowList | None) -> None:
        self._doors[sandbox_id].change(allowed)

    async def close(self, sandbox_id: str) -> None:
        door = self._doors.pop(sandbox_id, None)
        if door is not None:
            await door.close()

    def decisions(self, sandbox_id: str) -> Sequence[Decision]:
        door = self._doors.get(sandbox_id)
        return door.decisions if door is not None else ()


class _Room:
    """How many connections there may be in all."""

    def __init__(self, *, most: int) -> None:
        self.left = most


class _Door:
    """One sandbox's proxy."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        listener: socket.socket,
        allowed: AllowList,
        dialler: Dialler,
        clock: Clock,
        count: Count,
        most: int,
        room: _Room,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._listener = listener
        self._allowed: AllowList | None = allowed
        self._dialler = dialler
        self._clock = clock
        self._count = count
        self._turns = asyncio.Semaphore(most)
        self._room = room
        self._last = LastDecisions()
        self._tasks = OwnedTasks()
        self._admitted: dict[asyncio.Task[object], Target] = {}
        listener.setblocking(False)
        self._tasks.start(self._accept(), name=f"egress of {sandbox_id}")

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._last.all()

    def change(self, allowed: AllowList | None) -> None:
        self._allowed = allowed
        for task, target in list(self._admitted.items()):
            if allowed is None or not allowed.allows(target.host, target.port):
                del self._admitted[task]
                task.cancel()
                self.decide(str(target.host), target.port, "", Reason.REVOKED)

    async def close(self) -> None:
        await self._tasks.cancel()
        self._listener.close()

    async def dial(self, host: Host, port: int) -> tuple[socket.socket, Address]:
        return await self._dialler.dial(host, port)

    def admit(self, target: Target) -> None:
        if self._allowed is None:
            raise Refused(Reason.NETWORK_NONE)
        if not self._allowed.allows(target.host, target.port):
            known = self._allowed.knows(target.host)
            raise Refused(Reason.PORT_NOT_LISTED if known else Reason.NOT_LISTED)
        task = asyncio.current_task()
        if task is not None:
            self._admitted[task] = target

    def decide(self, host: str, port: int, address: str, reason: Reason) -> None:
        decision = Decision(
            at=self._clock.now(), host=host, port=port, address=address, reason=reason
        )
        self._last.add(decision)
        self._count(reason)
        log.info(
            "egress decided",
            extra={
                "sandbox_id": self._sandbox_id,
                "pii_host": host,
                "pii_address": address,
                "port": port,
                "reason": reason.value,
            },
        )

    async def _accept(self) -> None:
        """Take one connection after the other; more than may be wait in the kernel's queue."""
        loop = asyncio.get_running_loop()
        while True:
            await self._turns.acquire()
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                # It was reset before it was taken, or no descriptor is left.
                self._turns.release()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if self._room.left == 0:
                connection.close()
                self._turns.release()
                self.decide("", 0, "", Reason.BUSY)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._room.left -= 1
            exchange = Exchange(connection=connection, guard=self)
            task = self._tasks.start(exchange.run(), name="egress exchange")
            task.add_done_callback(partial(self._on_end, exchange))

    def _on_end(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        exchange.close()
        self._admitted.pop(task, None)
        self._room.left += 1
        self._turns.release()
