"""The worker's side of the spawner: starts it, starts it again when it dies, and hears which inits
are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Self

from chassis.packet_link import close_all
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.isolation.forker_process import ForkerProcess

log = logging.getLogger(__name__)

_RESTART_SECONDS = 0.2

Gone = Callable[[str], None]
"""Told the id of a sandbox whose init has ended, or could not be made."""


class SpawnerProcess:
    """One spawner at a time; `lost` is called when it has died under its inits."""

    def __init__(self, *, gone: Gone, lost: Callable[[], None]) -> None:
        self._gone = gone
        self._lost = lost
        self._process: ForkerProcess | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._running = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id of the present spawner."""
        return self._process.pid if self._process is not None else 0

    async def __aenter__(self) -> Self:
        process = self._start()
        self._keeper = asyncio.create_task(self._keep(process), name="spawner")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def create(
        self, sandbox_id: str, descriptors: Sequence[int], *unprivileged: bytes
    ) -> None:
        """Ask for an init: on the far end of its link, and with the doors of its cgroups; one that
        gives up root with its user, cover and private directory. Raises IsolationFailed.
        """
        await self._running.wait()
        await self._send(b"create", sandbox_id.encode(), *unprivileged, descriptors=descriptors)

    async def kill(self, sandbox_id: str) -> None:
        """Kill an init that does not answer; what is below it falls to the spawner."""
        with contextlib.suppress(IsolationFailed):
            await self._send(b"kill", sandbox_id.encode())

    async def _send(self, *fields: bytes, descriptors: Sequence[int] = ()) -> None:
        if self._process is None:
            raise IsolationFailed("its spawner is being restarted")
        await self._process.send(*fields, descriptors=descriptors)

    def _start(self) -> ForkerProcess:
        self._ended = asyncio.Event()
        process = ForkerProcess(module="spawner", arrived=self._on_packet, ended=self._ended.set)
        self._process = process
        self._running.set()
        return process

    async def _keep(self, process: ForkerProcess) -> None:
        try:
            while True:
                await self._ended.wait()
                self._running.clear()
                process.kill()
                await process.wait()
                log.error("the spawner died and is started again")
                self._lost()
                process = await self._start_again()
        finally:
            process.close()
            process.wait_now()

    async def _start_again(self) -> ForkerProcess:
        while True:
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                return self._start()
            except OSError as error:
                log.error("the spawner cannot be started", extra={"cause": error.strerror})

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        close_all(descriptors)
        self._gone(fields[1].decode())
