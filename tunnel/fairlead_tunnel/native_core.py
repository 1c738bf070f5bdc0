"""The native core, `fairlead_native`: trickles and restarts, asks STUN and TURN servers over UDP.

It is looked up at run time, because it is built where a compiler is and may be missing.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol, cast

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    ChannelOpened,
    DescriptionInvalid,
    GatheringDone,
    IcePolicy,
    IceServer,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.resolved_servers import resolved

HIGH_WATER: Final = 256 * 1024
"""Most bytes that one channel queues; the core says that there is room at half of that."""
SILENCE_SECONDS: Final = 30.0
"""How long consent lasts (RFC 7675, section 5.1)."""
CLOSE_SECONDS: Final = 5.0
GATHER_SECONDS: Final = 10.0
"""More than the four seconds after which the core asks servers no longer."""

log = logging.getLogger(__name__)


class NativeChannel(Protocol):
    """What is used of `fairlead_native.Channel`."""

    label: str
    protocol: str
    ordered: bool
    reliable: bool

    @property
    def is_open(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def queued(self) -> int: ...

    def attach(
        self,
        *,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None: ...

    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...


class StunServer(Protocol):
    """`fairlead_native.StunServer`, made with an address and a port."""


class TurnServer(Protocol):
    """`fairlead_native.TurnServer`, made with an address, a port, a name and a password."""


class NativeLink(Protocol):
    """What is used of `fairlead_native.Connection`."""

    on_candidate: Callable[[str], None]
    on_gathered: Callable[[], None]
    on_state: Callable[[], None]
    on_channel: Callable[[NativeChannel], None]

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def use_servers(self, *, stun: Iterable[StunServer], turn: Iterable[TurnServer]) -> None: ...

    def offer(self) -> str: ...

    def answer(self, offer: str) -> str: ...

    def accept_answer(self, answer: str) -> bool: ...

    def restart(self) -> str: ...

    def description(self) -> str: ...

    def add_candidate(self, line: str) -> None: ...

    def end_of_candidates(self) -> None: ...

    def open_channel(self, label: str, *, protocol: str) -> NativeChannel: ...

    async def wait_gathered(self) -> None: ...

    def close(self) -> None: ...


class NativeEngine(Protocol):
    """What is used of `fairlead_native.Engine`."""

    def connect(self, *, relay_only: bool) -> NativeLink: ...

    def close(self) -> None: ...


class NativeLibrary(Protocol):
    """What is used of `fairlead_native`."""

    DescriptionInvalid: type[Exception]
    NegotiationRefused: type[Exception]
    ConnectionOver: type[Exception]

    def StunServer(self, host: str, port: int) -> StunServer: ...

    def TurnServer(self, host: str, port: int, username: str, credential: str) -> TurnServer: ...

    def Engine(self, *, silence: float) -> NativeEngine: ...


class NativeCore:
    """Makes connections, on one I/O thread that lives while there are any."""

    name = "native"
    can_trickle = True

    def __init__(self, *, silence: float = SILENCE_SECONDS) -> None:
        """Make it; a peer that is not heard for half of `silence` seconds is disconnected, one that
        is not heard for all of them has failed.
        """
        self._silence = silence
        self._library: NativeLibrary | None = None
        self._engine: NativeEngine | None = None
        self._connections = 0

    async def load(self) -> None:
        """Import the library; raises ImportError."""
        if self._library is None:
            found = await asyncio.to_thread(importlib.import_module, "fairlead_native")
            self._library = cast(NativeLibrary, found)

    def connect(self, plan: PeerPlan) -> NativeConnection:
        """Make a connection, in the running loop, once loaded."""
        if self._library is None:
            raise RuntimeError("load comes first")
        if self._engine is None:
            self._engine = self._library.Engine(silence=self._silence)
        self._connections += 1
        return NativeConnection(
            library=self._library,
            link=self._engine.connect(relay_only=plan.policy is IcePolicy.RELAY),
            plan=plan,
            release=self._release,
        )

    def _release(self) -> None:
        self._connections -= 1
        if not self._connections and self._engine is not None:
            self._engine.close()
            self._engine = None


class NativeConnection:
    """One connection of the native core."""

    def __init__(
        self,
        *,
        library: NativeLibrary,
        link: NativeLink,
        plan: PeerPlan,
        release: Callable[[], None],
    ) -> None:
        self._refusals = (
            library.DescriptionInvalid,
            library.NegotiationRefused,
            library.ConnectionOver,
        )
        self._library = library
        self._link = link
        self._trickles = plan.trickles
        self._plan = plan
        self._servers = plan.usable_servers
        self._is_resolving = False
        self._release = release
        self._take: Callable[[PeerEvent], None] | None = None
        self._told: PeerState | None = None
        self._closed = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        link.on_candidate = self._take_candidate
        link.on_gathered = self._take_gathered
        link.on_state = self._take_state
        link.on_channel = self._take_channel

    def listen(self, take: Callable[[PeerEvent], None]) -> None:
        """Tell events from now on."""
        self._take = take

    def use_servers(self, servers: tuple[IceServer, ...]) -> None:
        """Ask these servers from the next round on; a relay that works stays."""
        self._servers = replace(self._plan, servers=servers).usable_servers

    async def offer(self) -> str:
        """Return the SDP offer of the first round; raises DescriptionInvalid out of turn."""
        return await self._described(self._link.offer)

    async def restart(self) -> str:
        """Return the offer of one more round; raises DescriptionInvalid out of turn."""
        return await self._described(self._link.restart)

    async def answer(self, offer: str) -> str:
        """Return the SDP answer; raises DescriptionInvalid."""
        return await self._described(lambda: self._link.answer(offer))

    async def accept(self, answer: str) -> None:
        """Take the answer to the last offer; raises DescriptionInvalid."""
        try:
            is_taken = self._link.accept_answer(answer)
        except self._refusals as error:
            raise DescriptionInvalid from error
        if not is_taken:
            raise DescriptionInvalid

    async def add_candidate(self, candidate: str) -> None:
        """Take a candidate of the peer; one that is of no use changes nothing."""
        self._link.add_candidate(candidate)

    async def end_candidates(self) -> None:
        """Note that the peer has no more candidates in this round."""
        self._link.end_of_candidates()

    def open_channel(self, label: str, protocol: str) -> NativePort:
        """Open an ordered and reliable channel."""
        return NativePort(channel=self._link.open_channel(label, protocol=protocol))

    async def close(self) -> None:
        """Say goodbye and free everything, in a bounded time; again changes nothing."""
        if self._closing is None:
            self._take = None
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._link.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._closed.wait()
        except TimeoutError:
            log.error("connection not closed")
        finally:
            self._release()

    async def _described(self, make: Callable[[], str]) -> str:
        await self._resolve()
        try:
            description = make()
            if self._trickles:
                return description
            async with asyncio.timeout(GATHER_SECONDS):
                await self._link.wait_gathered()
            return self._link.description()
        except (*self._refusals, TimeoutError) as error:
            log.info("description refused", extra={"cause": type(error).__name__})
            raise DescriptionInvalid from error

    async def _resolve(self) -> None:
        """Tell the core where the servers are, before it gathers with them first."""
        if not self._servers:
            return
        servers, self._servers = self._servers, ()
        self._is_resolving = True  # what is told meanwhile is of the round before
        try:
            found = await resolved(servers)
        finally:
            self._is_resolving = False
        make_stun, make_turn = self._library.StunServer, self._library.TurnServer
        self._link.use_servers(
            stun=[make_stun(each.host, each.port) for each in found if not each.is_relay],
            turn=[
                make_turn(each.host, each.port, each.username, each.credential)
                for each in found
                if each.is_relay
            ],
        )

    def _take_candidate(self, candidate: str) -> None:
        if self._trickles and not self._is_resolving:
            self._tell(CandidateFound(candidate))

    def _take_gathered(self) -> None:
        if self._trickles and not self._is_resolving:
            self._tell(GatheringDone())

    def _take_channel(self, channel: NativeChannel) -> None:
        if self._take is None:
            channel.close()
            return
        port = NativePort(channel=channel)
        is_reliable = channel.ordered and channel.reliable
        self._tell(ChannelOpened(channel.label, channel.protocol, is_reliable, port))

    def _take_state(self) -> None:
        """Tell a state once. A path that failed because of silence may still be restarted, so that
        who restarts decides when it is over; whatever else failed is.
        """
        state: PeerState | None = None
        match self._link.state, self._link.reason:
            case "connected", _:
                state = PeerState.CONNECTED
            case "disconnected", _:
                state = PeerState.DISCONNECTED
            case "failed", "silent" if self._trickles:
                state = PeerState.DISCONNECTED
            case "failed", _:
                state = PeerState.FAILED
            case "closed", reason:
                self._closed.set()
                state = PeerState.CLOSED if reason in ("peer", "local") else PeerState.FAILED
        if state is not None and state is not self._told:
            self._told = state
            self._tell(StateChanged(state))

    def _tell(self, event: PeerEvent) -> None:
        if self._take is not None:
            self._take(event)


class NativePort:
    """A channel as a `fairlead_tunnel.pump.MessagePort`."""

    def __init__(self, *, channel: NativeChannel) -> None:
        self._channel = channel
        self._room = asyncio.Event()

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """Deliver messages and the close; wakes whoever waits in `drain`."""

        def closed() -> None:
            self._room.set()
            on_closed()

        self._channel.attach(on_message=on_message, on_closed=closed, on_room=self._room.set)

    def send(self, message: Message) -> None:
        """Queue a message; dropped when the channel is closed.

        One that is empty or too long, which the protocol forbids and the core cannot send, ends
        the channel.
        """
        if self._channel.is_closed:
            return
        try:
            self._channel.send(message)
        except ValueError:
            self._channel.close()

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        return self._channel.queued

    @property
    def has_room(self) -> bool:
        """Say whether `drain` would not wait."""
        return not self._is_busy()

    async def drain(self) -> None:
        """Wait until the channel is open with less than HIGH_WATER queued, or is closed."""
        while self._is_busy():
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Close the channel once what is queued has been sent."""
        self._channel.close()

    def _is_busy(self) -> bool:
        channel = self._channel
        return not channel.is_closed and (not channel.is_open or channel.queued > HIGH_WATER)
