"""Keeps zygotes: the generations of tenants, a spare one for the next tenant, and ready inits in
their pools, all off the path of calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from chassis.clock import Clock
from sandbox_worker.errors import IsolationFailed
from sandbox_worker.isolation.generation import Generation
from sandbox_worker.isolation.walled_init import WalledInit

log = logging.getLogger(__name__)

_IDLE_SECONDS = 60.0
"""A tenant who has taken nothing for so long has no inits ready any more."""

_CALM_SECONDS = 0.02
"""Time for who has just got a sandbox to start something in it, before another one is prepared."""

_LOOK_SECONDS = 5.0
_PAUSE_SECONDS = 0.2

Start = Callable[[Callable[[], None]], Generation]
"""Starts a zygote, which tells of its changes; raises OSError."""


class Zygotes:
    """The generations of one worker, with `pool_size` inits ready in each; an async context
    manager.
    """

    def __init__(self, *, start: Start, pool_size: int, clock: Clock) -> None:
        self._start = start
        self._pool_size = pool_size
        self._clock = clock
        self._spare: Generation | None = None
        self._current: dict[str, Generation] = {}
        self._all: set[Generation] = set()
        self._starting: set[Generation] = set()
        self._claiming = asyncio.Lock()
        self._callers = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._wanted = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def generations(self) -> frozenset[Generation]:
        """All that live, those included whose inits end."""
        return frozenset(self._all)

    async def __aenter__(self) -> Self:
        self._wanted.set()
        self._keeper = asyncio.create_task(self._keep(), name="zygotes")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for generation in self._all:
            generation.close()
        for generation in self._all:
            await generation.wait()

    async def take(self, tenant: str, *, own_network: bool = True) -> WalledInit:
        """Return an init of the tenant's generation: one that is ready, else one that is being
        forked, as all are that are on the host's network. Raises IsolationFailed.
        """
        with self._calling():
            while True:
                generation = await self._of(tenant)
                generation.used_at = self._clock.monotonic()
                try:
                    ready = generation.take_ready() if own_network else None
                    return ready or await generation.fork(own_network=own_network)
                except IsolationFailed:
                    # Of a zygote that has just died: the next one may do it.
                    if generation.can_fork:
                        raise

    def on_changed(self) -> None:
        """Look soon whether something is to be done."""
        self._wanted.set()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Let nothing be prepared while a call waits."""
        self._callers += 1
        self._calm.clear()
        try:
            yield
        finally:
            self._callers -= 1
            if not self._callers:
                self._calm.set()
            self._wanted.set()

    async def _of(self, tenant: str) -> Generation:
        generation = self._current.get(tenant)
        if generation is not None and generation.can_fork:
            return generation
        async with self._claiming:
            generation = self._current.get(tenant)
            if generation is not None and generation.can_fork:
                return generation
            spare, self._spare = self._spare, None
            if spare is None or not spare.can_fork:
                spare = await self._started()
            spare.tenant = tenant
            self._current[tenant] = spare
            return spare

    async def _started(self) -> Generation:
        try:
            generation = self._start(self.on_changed)
        except OSError as error:
            raise IsolationFailed(error.strerror or "no zygote can be started") from error
        self._all.add(generation)
        self._starting.add(generation)
        try:
            await generation.started()
        finally:
            self._starting.discard(generation)
        return generation

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._tend()
            except IsolationFailed as error:
                log.warning("no sandbox is kept ready", extra={"cause": error.message})
                await asyncio.sleep(_PAUSE_SECONDS)
            except Exception:
                log.exception("a round of the zygotes' keeper failed")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _tend(self) -> None:
        self._retire()
        await asyncio.sleep(_CALM_SECONDS)
        await self._calm.wait()
        if self._spare is None or not self._spare.can_fork:
            async with self._claiming:
                self._spare = await self._started()
        for generation in (self._spare, *list(self._current.values())):
            while generation.can_fork and generation.depth < self._pool_size:
                await self._calm.wait()
                await generation.add_ready()

    def _retire(self) -> None:
        """Let go of generations that nobody uses, or that cannot fork any more."""
        now = self._clock.monotonic()
        for tenant, generation in list(self._current.items()):
            if not generation.can_fork or now - generation.used_at > _IDLE_SECONDS:
                del self._current[tenant]
        kept = {self._spare, *self._starting, *self._current.values()}
        for generation in list(self._all - kept):
            generation.drop_pool()
            if generation.is_empty:
                generation.close()
                if generation.is_over:
                    self._all.discard(generation)
