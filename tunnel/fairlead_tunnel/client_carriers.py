"""Keeps a carrier of a client's tunnel attached: the best that goes, and soon a better one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.path_watch import PathWatch, Step
from fairlead_tunnel.ways import (
    WAY_FAULTS,
    AttachedCarrier,
    Reached,
    Way,
    WaysFailed,
    fault_of,
    reach_first,
)

LEAST_PAUSE: Final = 0.1
MOST_PAUSE: Final = 5.0
LEAST_PROBE_PAUSE: Final = 2.0
MOST_PROBE_PAUSE: Final = 120.0
_STEADY_SECONDS: Final = 60.0
"""A carrier that has lasted for so long is worth a probe soon after it is lost."""

_TOLD_SECONDS: Final = 1.0

LOOK_SECONDS: Final = 0.5
"""So often it is looked whether bytes come, while there are channels."""
_OVERTAKEN: Final = "attach_replayed"


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """Why a tunnel is over; `reason` is lower snake case."""

    reason: str
    message: str


class ClientCarriers:
    """The carriers of one tunnel over `ways`, until `over` is done.

    Pauses are random, as `uniform` gives them between two numbers, up to bounds that double: 0.1
    to 5 s while there is no carrier, 2 s to 2 min between probes of better ways. `carried` is told
    the way of each carrier that is attached.
    """

    def __init__(
        self,
        *,
        ticket: TunnelTicket,
        driver: CarrierDriver,
        ways: Sequence[Way],
        over: asyncio.Future[TunnelEnd],
        uniform: Callable[[float, float], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        carried: Callable[[Way], None] = lambda way: None,
    ) -> None:
        self._carried = carried
        self._ticket = ticket
        self._driver = driver
        self._ways = ways
        self._over = over
        self._uniform = uniform
        self._sleep = sleep
        self._loop = asyncio.get_running_loop()
        self._carrier: AttachedCarrier | None = None
        self._way: Way | None = None
        self._attached_at = 0.0
        self._probe_pause = LEAST_PROBE_PAUSE
        self._path = PathWatch(self._loop.time())

    @property
    def is_attached(self) -> bool:
        """Say whether there is a carrier, as far as is known here."""
        return self._carrier is not None and not self._carrier.gone.done()

    @property
    def way(self) -> Way | None:
        """The way of the newest carrier."""
        return self._way

    async def attach(self, seconds: float) -> None:
        """Attach the first way that goes, in rounds, the last of which begins in `seconds`.

        Raises AttachRefused, and WaysFailed also when the tunnel is over.
        """
        deadline = self._loop.time() + seconds
        most = LEAST_PAUSE
        while True:
            try:
                return await self._attach_one()
            except WaysFailed:
                pause = self._uniform(0.0, most)
                is_late = self._loop.time() + pause >= deadline
                if not self._ways or is_late or self._over.done():
                    raise
            most = min(2 * most, MOST_PAUSE)
            await self._sleep(pause)

    async def keep(self, seconds: float, changed: Callable[[bool], None]) -> None:
        """Attach another one whenever one is lost, for so long, and move to better ones, until the
        tunnel is over; `changed` is told of a loss (False) and its end (True).

        Raises what `attach` does.
        """
        while self._carrier is not None and not self._over.done():
            if not await self._move_or_lose(self._carrier) or self._over.done():
                continue
            if self._loop.time() - self._attached_at >= _STEADY_SECONDS:
                self._probe_pause = LEAST_PROBE_PAUSE
            changed(False)
            await self.attach(seconds)
            changed(True)

    async def close(self, seconds: float) -> None:
        """End the carrier after what was sent; wait so long until it and the tunnel end."""
        if self._carrier is not None:
            self._carrier.stream.close()
            await asyncio.wait((self._carrier.gone, self._over), timeout=seconds)

    async def _move_or_lose(self, carrier: AttachedCarrier) -> bool:
        """Wait until a carrier is lost, which returns True, the tunnel is over, or a better carrier
        has taken its place.
        """
        better = [each for each in self._ways if self._way and each.kind < self._way.kind]
        moving = asyncio.ensure_future(self._move(better))
        watching = asyncio.ensure_future(self._watch(carrier))
        try:
            # The others outlast this wait, also when it is cancelled.
            await asyncio.wait(
                (carrier.gone, self._over, moving, watching), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (moving, watching):
                task.cancel()
            await asyncio.wait((moving, watching))
        for task in (moving, watching):
            if not task.cancelled():
                task.result()
        if self._carrier is carrier:
            return carrier.gone.done()
        carrier.retire()
        return False

    async def _watch(self, carrier: AttachedCarrier) -> None:
        """Attach another carrier beside one whose path has died in silence, and end that one; for
        ever where it does so itself.
        """
        driver, path = self._driver, self._path
        path.begin(self._loop.time())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            seen = carrier.look()
            while seen is None:
                await self._loop.create_future()
            if not driver.channels:
                path.begin(self._loop.time())
                continue
            step = path.look(self._loop.time(), received=seen[0], unsent=seen[1])
            if step is Step.ASK:
                driver.ping()
            elif step is Step.GIVE_UP:
                path.begin(self._loop.time())
                with contextlib.suppress(WaysFailed):  # it may be back meanwhile
                    with contextlib.suppress(AttachRefused):  # who attaches then is refused too
                        await self._attach_one()
                        path.begin(self._loop.time(), was_silent=True)
                    carrier.stream.abort()
                    return

    async def _move(self, better: Sequence[Way]) -> None:
        """Attach one of the better ways as soon as one goes; for ever where there is none."""
        while True:
            if not better:
                await self._loop.create_future()
            await self._sleep(self._uniform(0.0, self._probe_pause))
            self._probe_pause = min(2 * self._probe_pause, MOST_PROBE_PAUSE)
            try:
                await self._attach_by(*await reach_first(better))
            except (AttachRefused, *WAY_FAULTS):
                continue  # where the tunnel is known no more, that has ended it
            return

    async def _attach_by(self, way: Way, reached: Reached) -> None:
        self._carrier = await reached.attach(ticket=self._ticket, driver=self._driver)
        self._way = way
        self._attached_at = self._loop.time()
        self._carried(way)

    async def _attach_one(self) -> None:
        """Attach the first way that goes; one that goes and then fails is left out."""
        left = [*self._ways]
        faults: list[str] = []
        while left and not self._over.done():
            try:
                way, reached = await reach_first(left)
            except WaysFailed as failed:
                faults.append(str(failed))
                break
            try:
                await self._attach_by(way, reached)
            except AttachRefused as refused:
                if refused.reason != _OVERTAKEN:
                    raise
                faults.append(fault_of(way, refused))
            except WAY_FAULTS as error:
                faults.append(fault_of(way, error))
            else:
                return
            left.remove(way)
            if self._driver.is_over:  # a ticket was lost: why is told in a moment
                await asyncio.wait((self._over,), timeout=_TOLD_SECONDS)
                break
        raise WaysFailed("; ".join(faults) or "there is no way to it that is known here")
