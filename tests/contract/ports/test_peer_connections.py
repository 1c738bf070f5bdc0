"""The port of a peer connection over every core; trickle and restart where they can."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.cores import cores
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    ChannelOpened,
    CoreLacks,
    DescriptionInvalid,
    GatheringDone,
    PeerConnection,
    PeerCore,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.pump import MessagePort
from tests.eventually import SECONDS
from tests.fakes.peer_core import PeerCoreFake

pytestmark = pytest.mark.asyncio

COMPLETE, TRICKLE = PeerPlan(), PeerPlan(trickles=True)


def _maker(name: str) -> Callable[[], PeerCore]:
    return lambda: next(core for core in cores() if core.name == name)


CORES: dict[str, Callable[[], PeerCore]] = {
    "fake": PeerCoreFake,
    "fake-complete": lambda: PeerCoreFake(can_trickle=False),
    **{core.name: _maker(core.name) for core in cores()},
}
TRICKLERS = [name for name, make in CORES.items() if make().can_trickle]
OTHERS = [name for name in CORES if name not in TRICKLERS]


@dataclass
class Port:
    """What arrived on a channel."""

    port: MessagePort
    messages: list[Message] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.port.attach(on_message=self.messages.append, on_closed=self._close)

    def _close(self) -> None:
        self.is_closed = True


@dataclass
class Peer:
    """A connection, and what it told."""

    connection: PeerConnection
    events: list[PeerEvent] = field(default_factory=list)
    opened: list[Port] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection.listen(self._take)

    def _take(self, event: PeerEvent) -> None:
        self.events.append(event)
        if isinstance(event, ChannelOpened):
            self.opened.append(Port(event.port))

    @property
    def candidates(self) -> list[str]:
        return [event.candidate for event in self.events if isinstance(event, CandidateFound)]

    @property
    def states(self) -> list[PeerState]:
        return [event.state for event in self.events if isinstance(event, StateChanged)]


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not fact():  # noqa: ASYNC110 - cores tell of this in callbacks
            await asyncio.sleep(0.01)


@asynccontextmanager
async def peers(name: str, plan: PeerPlan) -> AsyncIterator[tuple[Peer, Peer]]:
    core = CORES[name]()
    await core.load()
    near, far = Peer(core.connect(plan)), Peer(core.connect(plan))
    try:
        yield near, far
    finally:
        await near.connection.close()
        await far.connection.close()


async def give(source: Peer, sink: Peer) -> None:
    """Give every candidate and the end to the other peer."""
    await until(lambda: any(isinstance(event, GatheringDone) for event in source.events))
    for candidate in source.candidates:
        await sink.connection.add_candidate(candidate)
    await sink.connection.end_candidates()


async def negotiate(near: Peer, far: Peer, offer: str, *, trickles: bool) -> None:
    await near.connection.accept(await far.connection.answer(offer))
    if trickles:
        await give(near, far)
        await give(far, near)


async def connect(near: Peer, far: Peer, plan: PeerPlan) -> None:
    await negotiate(near, far, await near.connection.offer(), trickles=plan.trickles)
    await until(lambda: PeerState.CONNECTED in near.states and PeerState.CONNECTED in far.states)


async def echoed(near: Peer, far: Peer, content: bytes) -> bytes:
    """Send bytes there on a channel of their own, and what arrived back."""
    before = len(far.opened)
    port = Port(near.connection.open_channel("tcp:80", "fairlead.bytes.v1"))
    for start in range(0, len(content), 16_000):
        await port.port.drain()
        port.port.send(content[start : start + 16_000])
    await until(lambda: len(far.opened) > before)
    there = far.opened[-1]
    await until(lambda: sum(map(len, there.messages)) == len(content))
    for message in there.messages:
        await there.port.drain()
        there.port.send(message)
    await until(lambda: sum(map(len, port.messages)) == len(content))
    return b"".join(each for each in port.messages if isinstance(each, bytes))


MODES = [(name, COMPLETE) for name in CORES] + [(name, TRICKLE) for name in TRICKLERS]
NAMES = [f"{name}-{'trickle' if plan.trickles else 'complete'}" for name, plan in MODES]


@pytest.mark.parametrize(("name", "plan"), MODES, ids=NAMES)
async def test_peers_connect_and_bytes_arrive_unharmed(name: str, plan: PeerPlan) -> None:
    content = os.urandom(300_000)
    async with peers(name, plan) as (near, far):
        await connect(near, far, plan)
        answer = await echoed(near, far, content)
        assert hashlib.sha256(answer).digest() == hashlib.sha256(content).digest()
        opened = next(event for event in far.events if isinstance(event, ChannelOpened))
        assert (opened.label, opened.protocol) == ("tcp:80", "fairlead.bytes.v1")
        assert opened.is_reliable


@pytest.mark.parametrize("name", list(CORES))
async def test_texts_and_bytes_stay_what_they_are(name: str) -> None:
    async with peers(name, COMPLETE) as (near, far):
        await connect(near, far, COMPLETE)
        port = Port(near.connection.open_channel("x", "p"))
        await port.port.drain()
        for message in ("ready", b"\x00\xff", "credit 7"):
            port.port.send(message)
        await until(lambda: bool(far.opened) and len(far.opened[0].messages) == 3)
        assert far.opened[0].messages == ["ready", b"\x00\xff", "credit 7"]


@pytest.mark.parametrize("name", list(CORES))
async def test_a_channel_that_one_side_closes_ends_on_the_other_after_its_messages(
    name: str,
) -> None:
    async with peers(name, COMPLETE) as (near, far):
        await connect(near, far, COMPLETE)
        port = Port(near.connection.open_channel("x", "p"))
        await port.port.drain()
        port.port.send(b"last")
        port.port.close()
        port.port.close()
        await until(lambda: bool(far.opened) and far.opened[0].is_closed)
        assert far.opened[0].messages == [b"last"]
        port.port.send(b"dropped")


@pytest.mark.parametrize("name", list(CORES))
async def test_a_peer_that_closes_is_noticed_and_its_channels_end(name: str) -> None:
    async with peers(name, COMPLETE) as (near, far):
        await connect(near, far, COMPLETE)
        port = Port(far.connection.open_channel("x", "p"))
        await port.port.drain()
        await near.connection.close()
        await until(lambda: far.states[-1] in (PeerState.CLOSED, PeerState.FAILED))
        await until(lambda: port.is_closed)
        assert far.states[-1] is PeerState.CLOSED
        told = len(near.events)
        await near.connection.close()
        assert len(near.events) == told


@pytest.mark.parametrize("name", list(CORES))
async def test_a_complete_description_carries_every_candidate_and_none_is_told(name: str) -> None:
    async with peers(name, COMPLETE) as (near, far):
        offer = await near.connection.offer()
        answer = await far.connection.answer(offer)
        assert "a=candidate:" in offer
        assert "a=candidate:" in answer
        assert near.candidates == far.candidates == []


@pytest.mark.parametrize("name", list(CORES))
@pytest.mark.parametrize("text", ["", "v=0", "nonsense\r\nm=audio 9 X 0\r\n"])
async def test_what_is_no_description_is_refused(name: str, text: str) -> None:
    async with peers(name, COMPLETE) as (near, far):
        with pytest.raises(DescriptionInvalid):
            await far.connection.answer(text)
        await near.connection.offer()
        with pytest.raises(DescriptionInvalid):
            await near.connection.accept(text)


@pytest.mark.parametrize("name", OTHERS)
async def test_what_a_core_lacks_is_said(name: str) -> None:
    core = CORES[name]()
    await core.load()
    with pytest.raises(CoreLacks) as caught:
        core.connect(TRICKLE)
    assert caught.value.reason == "unsupported"
    async with peers(name, COMPLETE) as (near, far):
        await connect(near, far, COMPLETE)
        for step in (
            near.connection.restart(),
            far.connection.answer("v=0"),
            far.connection.add_candidate("candidate:1 1 udp 1 192.0.2.1 9 typ host"),
            far.connection.end_candidates(),
        ):
            with pytest.raises(CoreLacks):
                await step


@pytest.mark.parametrize("name", TRICKLERS)
async def test_descriptions_of_one_that_trickles_carry_no_candidates(name: str) -> None:
    async with peers(name, TRICKLE) as (near, far):
        offer = await near.connection.offer()
        assert "a=candidate:" not in offer
        assert "a=candidate:" not in await far.connection.answer(offer)
        await until(lambda: bool(near.candidates and far.candidates))
        assert all(each.startswith("candidate:") for each in near.candidates)


@pytest.mark.parametrize("name", TRICKLERS)
async def test_a_candidate_that_is_none_changes_nothing(name: str) -> None:
    async with peers(name, TRICKLE) as (near, far):
        offer = await near.connection.offer()
        await near.connection.accept(await far.connection.answer(offer))
        for candidate in ("", "candidate:", "candidate:1 1 udp 1 host.local 9 typ host"):
            await far.connection.add_candidate(candidate)
        await give(near, far)
        await give(far, near)
        await until(lambda: PeerState.CONNECTED in near.states)


@pytest.mark.parametrize("name", TRICKLERS)
async def test_channels_live_through_a_restart_and_bytes_arrive_unharmed(name: str) -> None:
    content = os.urandom(60_000)
    async with peers(name, TRICKLE) as (near, far):
        await connect(near, far, TRICKLE)
        port = Port(near.connection.open_channel("x", "p"))
        await port.port.drain()
        port.port.send(content)
        seen = len(near.candidates), len(far.candidates)
        offer = await near.connection.restart()
        await near.connection.accept(await far.connection.answer(offer))
        for source, sink, before in ((near, far, seen[0]), (far, near, seen[1])):
            for candidate in source.candidates[before:]:
                await sink.connection.add_candidate(candidate)
        port.port.send(content)
        await until(lambda: bool(far.opened))
        await until(lambda: sum(map(len, far.opened[0].messages)) == 2 * len(content))
        got = b"".join(each for each in far.opened[0].messages if isinstance(each, bytes))
        assert hashlib.sha256(got).digest() == hashlib.sha256(content * 2).digest()
        assert await echoed(near, far, b"after") == b"after"
