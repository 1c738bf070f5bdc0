"""A connection to a host that is kept: pinged, and made again when it breaks, never in a hurry.

A host that is stopping must not be hammered: there is one attempt at a time, whoever waits for it,
and after each that failed, and each connection that did not live for 15 seconds, none for 1, 2, 4,
7, then 10 seconds, a fifth more or less.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from types import TracebackType

from fairlead_sdk.errors import FairleadError, Unavailable
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_connection import SshConnection, connected
from fairlead_sdk.ssh_errors import ConnectionLost, HostUnusable

DELAYS = (1.0, 2.0, 4.0, 7.0, 10.0)
JITTER = 0.2
HEALTHY_SECONDS = 15.0
PING_SECONDS = 15.0
PING_LIMIT_SECONDS = 10.0

Connect = Callable[[SshAddress], AbstractAsyncContextManager[SshConnection]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time and chance come from."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class KeptSsh:
    """Keeps one connection to a host. Use as `async with`; it connects when it is first asked."""

    def __init__(
        self, *, address: SshAddress, connect: Connect = connected, timing: Timing | None = None
    ) -> None:
        self.address = address
        self._connect = connect
        self._timing = timing or Timing()
        self._keeping: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[SshConnection] | None = None
        self._open: SshConnection | None = None
        self._failures = 0
        self._not_before = 0.0
        self._error: FairleadError | None = None

    async def __aenter__(self) -> KeptSsh:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))

    @property
    def is_open(self) -> bool:
        """Say whether there is a connection now."""
        return self._open is not None and not self._open.channel.lost.is_set()

    def begin(self) -> None:
        """Connect in the background, unless that is under way, done, or too soon."""
        if self._is_keeping or self._wait() > 0:
            return
        self._attempt = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.get_running_loop().create_task(
            self._keep(), name=f"connection to {self.address.destination}"
        )

    async def channel(self, *, patience: float = 0.0) -> HostChannel:
        """Give the open connection's channel, and wait for it up to `patience` seconds of failures.

        Without patience the first failure is raised, and in the time after one that very error;
        after a connection that broke, the next attempt is waited for. What no waiting changes (a
        key, a host without Python) is raised at once.
        """
        end = self._timing.now() + patience
        while True:
            if self._open is not None and self.is_open:
                return self._open.channel
            wait = self._wait()
            if self._error is not None and wait > max(0.0, end - self._timing.now()):
                raise self._error
            if not self._is_keeping and wait > 0:
                await self._timing.sleep(wait)
            self.begin()
            if self._attempt is None:
                continue
            try:
                connection = await asyncio.shield(self._attempt)
            except FairleadError as error:
                if not _may_pass(error) or self._timing.now() >= end:
                    raise
            else:
                if not connection.channel.lost.is_set():
                    return connection.channel
                await asyncio.sleep(0)  # the keeper has still to see that it is lost

    @property
    def _is_keeping(self) -> bool:
        return self._keeping is not None and not self._keeping.done()

    def _wait(self) -> float:
        return self._not_before - self._timing.now()

    async def _keep(self) -> None:
        """Connect, hold, and connect again, until there is no sense in it or five have failed."""
        while True:
            if (wait := self._wait()) > 0:
                await self._timing.sleep(wait)
            error = await self._once()
            self._next_attempt()
            if error is not None and (not _may_pass(error) or self._failures >= len(DELAYS)):
                return

    async def _once(self) -> FairleadError | None:
        """Hold one connection to its end; gives the error when none came about."""
        attempt = self._attempt or asyncio.get_running_loop().create_future()
        began: float | None = None
        failure: FairleadError | None = None
        try:
            async with self._connect(self.address) as connection:
                began = self._timing.now()
                self._open = connection
                attempt.set_result(connection)
                await self._until_lost(connection.channel)
        except FairleadError as error:
            failure = error
        finally:
            self._open = None
            if not attempt.done():
                attempt.set_exception(failure or ConnectionLost(self.address.destination))
                attempt.exception()  # seen here, when nobody waits
        now = self._timing.now()
        if began is not None and now - began >= HEALTHY_SECONDS:
            self._failures, self._not_before = 0, now
        else:
            delay = DELAYS[min(self._failures, len(DELAYS) - 1)]
            spread = 1 - JITTER + 2 * JITTER * self._timing.chance()
            self._failures, self._not_before = self._failures + 1, now + delay * spread
        self._error = None if began is not None else failure
        return self._error

    def _next_attempt(self) -> None:
        self._attempt = asyncio.get_running_loop().create_future()

    async def _until_lost(self, channel: HostChannel) -> None:
        """Ping every 15 seconds; returns when the connection is lost or does not answer."""
        while await self._quiet(channel):
            try:
                async with asyncio.timeout(PING_LIMIT_SECONDS):
                    await channel.ping()
            except (TimeoutError, ConnectionLost):
                return
            except FairleadError:
                continue  # that the host has too many calls is an answer too

    async def _quiet(self, channel: HostChannel) -> bool:
        """Wait for the next ping; false when the connection is lost before."""
        pause = asyncio.ensure_future(self._timing.sleep(PING_SECONDS))
        losing = asyncio.ensure_future(channel.lost.wait())
        try:
            await asyncio.wait((pause, losing), return_when=asyncio.FIRST_COMPLETED)
            return not channel.lost.is_set()
        finally:
            for waiting in (pause, losing):
                waiting.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(pause, losing, return_exceptions=True)


def _may_pass(error: FairleadError) -> bool:
    """Say whether waiting may help."""
    return isinstance(error, Unavailable) and not isinstance(error, HostUnusable)
