"""What the use cases need of others; calls raise FairleadError for what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from chassis.errors import FairleadError
from relay_gateway.happening import Happening
from relay_gateway.message import Hello, Order, Report
from relay_gateway.session import WantedSession

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Association(Protocol):
    """One peer connection that has been answered."""

    @property
    def answer(self) -> str:
        """The SDP answer of the first round."""
        ...

    @property
    def channels(self) -> int:
        """How many channels are open."""
        ...

    @property
    def can_restart(self) -> bool:
        """Say whether the client may be asked for another round."""
        ...

    async def restart(self, wanted: WantedSession) -> str:
        """Answer the offer of another round, with the servers that came with it; raises SdpInvalid,
        RestartUnsupported, SealRefused.

        The path in use goes on until another one works, also when this fails.
        """
        ...

    async def add_candidate(self, candidate: str) -> None:
        """Take a candidate of the client; one that is of no use changes nothing."""
        ...

    async def end_candidates(self) -> None:
        """Note that the client has no more candidates in this round."""
        ...

    async def close(self) -> None:
        """Free everything; takes a bounded time, and closing again changes nothing."""
        ...


class Carrier(Protocol):
    """Makes peer connections."""

    async def answer(self, wanted: WantedSession, take: Callable[[Happening], None]) -> Association:
        """Answer an offer, and tell from then on what happens; raises SdpInvalid, ModeUnsupported.

        Cancelling leaves nothing behind.
        """
        ...

    async def restart(self, association: Association, wanted: WantedSession) -> str:
        """Answer the offer of another round; see `Association.restart`."""
        ...


class KeptTunnel(Protocol):
    """A tunnel that a client has attached to."""

    @property
    def channels(self) -> int:
        """How many channels are open or being opened."""
        ...

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        ...

    async def close(self) -> None:
        """End it with its channels, after telling the client; again changes nothing."""
        ...


class ChannelOpening(Protocol):
    """Opens the sandbox's end of a channel."""

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        """Connect to a port of the session's sandbox, or to the terminal of an execution in it; the
        FairleadError says why not.
        """
        ...


class Dialling(Protocol):
    """Connects channels to hosts beside the gateway."""

    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        """Connect to a port of a host: a name, an IPv4 address, or an IPv6 one in brackets.

        The FairleadError says why not.
        """
        ...


class Connecting(Protocol):
    """Connects channels of tunnels to hosts beside the gateway."""

    async def connect(
        self,
        session: WantedSession,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Connect what `make` returns to a port of a host; see `Dialling.dial`."""
        ...


class Judging(Protocol):
    """Says what the channels of tunnels may lead to, where another connects it."""

    @property
    def dial_seconds(self) -> float:
        """How long the name and the connection together may take."""
        ...

    def judge(self, session: WantedSession, host: str, port: int) -> str | None:
        """Return the address that a host is, or None for a name that may be resolved.

        The FairleadError says why it may not be dialled.
        """
        ...

    async def resolve(self, session: WantedSession, host: str, port: int) -> Sequence[str]:
        """Return those addresses of a host that may be dialled, in their order; see `judge`."""
        ...

    def dialled(
        self, session: WantedSession, host: str, port: int, error: int, seconds: float
    ) -> FairleadError | None:
        """Note a connection that failed or was slow; return what stands in the way, for an errno
        that is not 0.
        """
        ...


class Expected(Protocol):
    """A connection that a worker is to bring."""

    @property
    def ticket(self) -> bytes:
        """What the worker shows."""
        ...

    async def arrived(self) -> None:
        """Wait for it."""
        ...

    def take(self) -> Stream:
        """Return what has arrived; it belongs to the caller from now on."""
        ...


class Workers(Protocol):
    """Where workers dial in."""

    def expect(self) -> AbstractContextManager[Expected]:
        """Expect one connection in the block; raises OpeningsExceeded."""
        ...


class Conversation(Protocol):
    """One stream to signalling."""

    def tell(self, report: Report) -> None:
        """Queue a report; dropped when the stream is lost, because the next one states all anew."""
        ...

    def finish(self) -> None:
        """Say nothing more after what is queued; signalling then ends the stream."""
        ...

    def orders(self) -> AsyncIterator[Order]:
        """Give what signalling says until the stream ends; raises FairleadError when it breaks."""
        ...


class Signalling(Protocol):
    """The front door's internal address."""

    def converse(self, hello: Hello) -> AbstractAsyncContextManager[Conversation]:
        """Open a stream and say hello; leaving the block cancels it."""
        ...
