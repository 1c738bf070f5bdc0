"""A WebRTC core in memory: peers meet when each knows the other's description and a candidate."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    ChannelOpened,
    CoreLacks,
    DescriptionInvalid,
    GatheringDone,
    IceServer,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)

_ENDS = (PeerState.FAILED, PeerState.CLOSED)


@dataclass
class Network:
    """Where fake peers find each other; `is_blocked` lets no path come up."""

    peers: dict[str, PeerConnectionFake] = field(default_factory=dict)
    is_blocked: bool = False
    names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class PeerCoreFake:
    """Makes fake connections on one network; keeps them in `made`."""

    name = "fake"

    def __init__(self, *, network: Network | None = None, can_trickle: bool = True) -> None:
        self.network = network or Network()
        self.can_trickle = can_trickle
        self.made: list[PeerConnectionFake] = []

    async def load(self) -> None:
        await asyncio.sleep(0)

    def connect(self, plan: PeerPlan) -> PeerConnectionFake:
        if plan.trickles and not self.can_trickle:
            raise CoreLacks(self.name, "send candidates one by one")
        self.made.append(PeerConnectionFake(core=self, plan=plan))
        return self.made[-1]


class PeerConnectionFake:
    """One connection; a test may `lose_path`, `vanish`, or tell `found` candidates."""

    def __init__(self, *, core: PeerCoreFake, plan: PeerPlan) -> None:
        self.plan = plan
        self.closes = 0
        self.applied: list[str] = []
        self.has_all = False
        self.candidates_at_once = 2
        self._core = core
        self._network = core.network
        self._take: Callable[[PeerEvent], None] | None = None
        self._name = ""
        self._remote = ""
        self._reachable = False
        self._state: PeerState | None = None
        self._ports: list[ChannelFake] = []

    @property
    def state(self) -> PeerState | None:
        return self._state

    def listen(self, take: Callable[[PeerEvent], None]) -> None:
        self._take = take

    def use_servers(self, servers: tuple[IceServer, ...]) -> None:
        self.plan = replace(self.plan, servers=servers)

    async def offer(self) -> str:
        return await self._described()

    async def restart(self) -> str:
        if not self._core.can_trickle:
            raise CoreLacks(self._core.name, "restart a connection")
        return await self._described()

    async def answer(self, offer: str) -> str:
        if self._remote and not self._core.can_trickle:
            raise CoreLacks(self._core.name, "restart a connection")
        self._read(offer)
        return await self._described()

    async def accept(self, answer: str) -> None:
        if not self._name:
            raise DescriptionInvalid
        self._read(answer)
        self._meet()

    async def add_candidate(self, candidate: str) -> None:
        if not self.plan.trickles:
            raise CoreLacks(self._core.name, "take candidates one by one")
        self.applied.append(candidate)
        if candidate.endswith(f"ufrag {self._remote}"):
            self._reachable = True
            self._meet()

    async def end_candidates(self) -> None:
        if not self.plan.trickles:
            raise CoreLacks(self._core.name, "take candidates one by one")
        self.has_all = True

    def open_channel(self, label: str, protocol: str) -> ChannelFake:
        near, far = ChannelFake(), ChannelFake()
        near.peer, far.peer = far, near
        other = self._network.peers[self._remote]
        self._ports.append(near)
        other._ports.append(far)
        asyncio.get_running_loop().call_soon(other._tell, ChannelOpened(label, protocol, True, far))
        return near

    async def close(self) -> None:
        if self.closes:
            return
        self.closes += 1
        self._take = None
        other = self._network.peers.get(self._remote)
        self._end(PeerState.CLOSED)
        if other is not None and other._remote == self._name:
            asyncio.get_running_loop().call_soon(other._end, PeerState.CLOSED)

    def found(self, candidate: str = "") -> None:
        """Tell a local candidate."""
        self._tell(CandidateFound(candidate or self._candidate(next(self._network.names))))

    def gathered(self) -> None:
        """Tell that there are no more."""
        self._tell(GatheringDone())

    def lose_path(self) -> None:
        """Let both ends hear nothing of each other."""
        for end in (self, self._network.peers.get(self._remote)):
            if end is not None and end._state is PeerState.CONNECTED:
                end._tell_state(PeerState.DISCONNECTED)
                end._reachable = False

    def vanish(self) -> None:
        """Be gone without a word: the other end gives up."""
        other = self._network.peers.get(self._remote)
        if other is not None:
            other._end(PeerState.FAILED)

    def _candidate(self, number: int) -> str:
        return f"candidate:{number} 1 udp 1 192.0.2.{number % 250} 4242 typ host ufrag {self._name}"

    async def _described(self) -> str:
        self._name = f"u{next(self._network.names)}"
        self._network.peers[self._name] = self
        candidates = [self._candidate(number + 1) for number in range(self.candidates_at_once)]
        lines = [
            "v=0",
            "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
            f"a=ice-ufrag:{self._name}",
            f"a=ice-pwd:{'p' * 22}",
            "a=fingerprint:sha-256 AA",
        ]
        if self.plan.trickles:
            loop = asyncio.get_running_loop()
            for candidate in candidates:
                loop.call_soon(self._tell, CandidateFound(candidate))
            if candidates:
                loop.call_soon(self._tell, GatheringDone())
        else:
            lines += [f"a={candidate}" for candidate in candidates]
        await asyncio.sleep(0)
        return "\r\n".join((*lines, ""))

    def _read(self, description: str) -> None:
        names = [
            line.removeprefix("a=ice-ufrag:")
            for line in description.split("\r\n")
            if line.startswith("a=ice-ufrag:")
        ]
        if len(names) != 1 or names[0] not in self._network.peers:
            raise DescriptionInvalid
        self._remote = names[0]
        self._reachable = "a=candidate:" in description

    def _meet(self) -> None:
        other = self._network.peers.get(self._remote)
        if other is None or other._remote != self._name or self._network.is_blocked:
            return
        if self._reachable or other._reachable:
            self._tell_state(PeerState.CONNECTED)
            asyncio.get_running_loop().call_soon(other._tell_state, PeerState.CONNECTED)

    def _tell(self, event: PeerEvent) -> None:
        if self._take is not None:
            self._take(event)

    def _tell_state(self, state: PeerState) -> None:
        if state is not self._state and self._state not in _ENDS:
            self._state = state
            self._tell(StateChanged(state))

    def _end(self, state: PeerState) -> None:
        self._tell_state(state)
        for port in self._ports:
            port.lose()
        self._ports.clear()


class ChannelFake:
    """One end of a channel; what is sent arrives in a later turn of the loop."""

    def __init__(self) -> None:
        self.peer: ChannelFake | None = None
        self._is_closed = False
        self._on_message: Callable[[Message], None] | None = None
        self._on_closed: Callable[[], None] | None = None

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed

    def send(self, message: Message) -> None:
        if not self._is_closed and self.peer is not None:
            asyncio.get_running_loop().call_soon(self.peer._give, message)

    @property
    def queued(self) -> int:
        return 0

    @property
    def has_room(self) -> bool:
        return True

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self.peer is not None:
                asyncio.get_running_loop().call_soon(self.peer.lose)

    def lose(self) -> None:
        """Be closed from outside."""
        if not self._is_closed:
            self._is_closed = True
            if self._on_closed is not None:
                self._on_closed()

    def _give(self, message: Message) -> None:
        if self._on_message is not None and not self._is_closed:
            self._on_message(message)
