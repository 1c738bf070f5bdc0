"""The ways to a gateway: which of them go is found out before a ticket is shown on any."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby
from typing import Final, Protocol, TypeVar

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver, OrderedCarrier
from fairlead_tunnel.endpoints import Health, Outcome
from fairlead_tunnel.handshake import HandshakeInvalid
from fairlead_tunnel.records import RecordInvalid

CONNECT_SECONDS: Final = 5.0
"""For the name, the connection and what is answered before a hello; and then for the hello."""
HEAD_START: Final = 0.25
"""So much earlier the better ways are tried, as addresses are by RFC 8305, section 5."""
AGAIN_SECONDS: Final = 1.0
"""So often ways that have failed are tried again while a slow one has not."""


class Kind(IntEnum):
    """What a way's carrier is, best first."""

    TCP = 1
    WEBSOCKET = 2
    REQUESTS = 3
    POLLS = 4
    DATA_CHANNEL = 5

    @property
    def carrier(self) -> str:
        """The carrier's name for a user, as docs/protocol.md has it."""
        return _CARRIERS[self]


_CARRIERS: Final = {
    Kind.TCP: "tcp",
    Kind.WEBSOCKET: "websocket",
    Kind.REQUESTS: "stream",
    Kind.POLLS: "poll",
    Kind.DATA_CHANNEL: "webrtc",
}


class AttachedCarrier(Protocol):
    """A carrier that the driver uses, such as a `ClientCarrier`."""

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done once it has ended, for whatever reason."""
        ...

    @property
    def stream(self) -> OrderedCarrier:
        """What it sends through."""
        ...

    def look(self) -> tuple[int, int] | None:
        """Return how many bytes have come, and how many have not left; None: it watches its path
        itself.
        """
        ...

    def retire(self) -> None:
        """Send nothing more, and end once what was under way has had time to come."""
        ...


class GreetedCarrier(AttachedCarrier, Protocol):
    """A carrier that has said hello."""

    @property
    def ready(self) -> asyncio.Future[bytes]:
        """Done with the secret of the answer, which may be empty."""
        ...


class Reached(Protocol):
    """A way that goes; nothing was said over it."""

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> AttachedCarrier:
        """Attach a carrier to a tunnel; once.

        Raises AttachRefused where the gateway says why not, OSError, HandshakeInvalid and
        RecordInvalid where the way goes no more.
        """
        ...

    def drop(self) -> None:
        """Leave it unused."""
        ...


class Way(Protocol):
    """One way to a gateway."""

    @property
    def kind(self) -> Kind:
        """What its carriers are."""
        ...

    @property
    def name(self) -> str:
        """The way in an error's sentence."""
        ...

    async def reach(self) -> Reached:
        """Find out that it goes; OSError: it does not go now.

        AttachRefused: no way to this tunnel will ever go.
        """
        ...


class WaysFailed(ConnectionError):
    """No way goes now."""


WAY_FAULTS: Final = (OSError, HandshakeInvalid, RecordInvalid)
"""What is raised where a way does not go."""

Carrier = TypeVar("Carrier", bound=GreetedCarrier)


async def greeted(
    carrier: Carrier, ticket: TunnelTicket, *, health: Health, seconds: float
) -> Carrier:
    """Wait until a carrier that has said hello is attached; drops it when it is not.

    A way on which a ticket was lost is left alone for a while: the next one takes another.
    """
    was_ticket = not ticket.has_secret
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            ticket.keep(await carrier.ready)
    except BaseException as error:
        carrier.stream.abort()
        if was_ticket and isinstance(error, WAY_FAULTS):
            health.note(Outcome.FAILED, loop.time())
        raise
    health.note(Outcome.ANSWERED, loop.time())
    return carrier


def raise_if_left_alone(*healths: Health) -> None:
    """Raise OSError while one of them says that nothing is to be asked of an address."""
    left = max(each.blocked_until for each in healths) - asyncio.get_running_loop().time()
    if left > 0:
        raise ConnectionError(f"it failed, and is left alone for {left:.0f} s")


def fault_of(way: Way, error: Exception) -> str:
    """Return what a user is told of a way that does not go."""
    return f"{way.name}: {error or type(error).__name__}"


async def reach_first(
    ways: Sequence[Way], *, head_start: float = HEAD_START
) -> tuple[Way, Reached]:
    """Return the first way that goes; those of one kind are tried together, a worse kind after
    `head_start` seconds or once all that were tried have failed. Those that have failed are tried
    again, until all have.

    Raises WaysFailed, and what `Way.reach` refuses.
    """
    faults: list[tuple[Way, str]] = []
    trying: dict[asyncio.Task[Reached], Way] = {}
    kinds = [[*same] for _, same in groupby(sorted(ways, key=_kind_of), key=_kind_of)]
    try:
        while kinds or trying:
            if kinds:
                trying.update((asyncio.ensure_future(way.reach()), way) for way in kinds.pop(0))
            done = await _some_result(trying, head_start if kinds else AGAIN_SECONDS, faults)
            if done is not None:
                return trying.pop(done), done.result()
            if trying and faults and not kinds:
                kinds = [[way for way, _ in faults]]
                faults.clear()
    finally:
        for task in trying:
            task.cancel()
        if trying:
            await asyncio.wait(trying)
        for task in trying:
            if not task.cancelled() and task.exception() is None:
                task.result().drop()
    raise WaysFailed(
        "; ".join(fault for _, fault in faults) or "there is no way to it that is known here"
    )


async def _some_result(
    trying: dict[asyncio.Task[Reached], Way], seconds: float, faults: list[tuple[Way, str]]
) -> asyncio.Task[Reached] | None:
    """Return one that goes, the first in order if there are several; None after `seconds`, or once
    all have failed, which are left out then.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while trying:
        left = max(until - loop.time(), 0.0)
        done, _ = await asyncio.wait(trying, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in [each for each in trying if each in done]:
            try:
                task.result()
            except OSError as error:
                way = trying.pop(task)
                faults.append((way, fault_of(way, error)))
            else:
                return task
        if not done:
            return None
    return None


def _kind_of(way: Way) -> Kind:
    return way.kind
