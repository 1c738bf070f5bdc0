"""The client's end of a tunnel over carriers that are no connections: when it tries again, and when
it gives up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.client_carriers import TunnelEnd
from fairlead_tunnel.driver_sides import OPEN_UNSENT, CarrierDriver
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.records import MAX_BATCH_BYTES, Suite
from fairlead_tunnel.tunnel import TunnelFull
from fairlead_tunnel.tunnel_client import MakeDriver, TunnelClient, TunnelGone, on_event_loop
from fairlead_tunnel.ways import Kind
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio


class Carrier:
    """One that lasts until it is lost, and takes nothing."""

    can_send = False
    takes_last = False
    most_bytes = 0

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.is_retired = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stream = self

    def send(self, batch: Batch) -> None:
        """Never asked to."""
        raise AssertionError

    def close(self) -> None:
        """Be lost."""
        if not self.gone.done():
            self.gone.set_result(None)

    def abort(self) -> None:
        """Be lost."""
        self.close()

    def look(self) -> tuple[int, int] | None:
        """Let nobody watch it."""
        return None

    def retire(self) -> None:
        """Note it."""
        self.is_retired = True


@dataclass
class Ways:
    """What goes: `faults` are met first, an OSError on the way, others at the gateway."""

    faults: list[Exception] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    away: set[Kind] = field(default_factory=set)
    make: Callable[[Kind], Carrier] = Carrier


@dataclass
class OneWay:
    """A way, and what was reached over it."""

    ways: Ways
    kind: Kind

    @property
    def name(self) -> str:
        """Its name."""
        return self.kind.name

    async def reach(self) -> OneWay:
        """Go there, unless there is a fault."""
        self.ways.names.append(self.name)
        if self.ways.faults and isinstance(self.ways.faults[0], OSError):
            raise self.ways.faults.pop(0)
        if self.kind in self.ways.away:
            raise OSError("away")
        return self

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> Carrier:
        """Attach, unless there is a fault."""
        if self.ways.faults:
            raise self.ways.faults.pop(0)
        self.ways.carriers.append(self.ways.make(self.kind))
        return self.ways.carriers[-1]

    def drop(self) -> None:
        """Hold nothing."""


@dataclass
class User:
    """Keeps how its channels ended."""

    endings: list[str] = field(default_factory=list)

    def accepted(self) -> None:
        """Never comes here."""

    def ended(self, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append(reason)

    def given_back(
        self, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Never comes here."""


@dataclass
class Room:
    """A client, its ways, and the pauses that it made; each is as long as it may be."""

    kinds: Sequence[Kind] = (Kind.TCP,)
    ways: Ways = field(default_factory=Ways)
    pauses: list[float] = field(default_factory=list)
    changes: list[bool] = field(default_factory=list)
    held_seconds: float = 60.0

    def client(self, make_driver: MakeDriver = on_event_loop) -> TunnelClient:
        """Make one."""
        return TunnelClient(
            ticket=TunnelTicket(
                tunnel_id=bytes(16),
                ticket=b"ticket",
                psk=bytes(32),
                gateway_key=bytes(32),
                suite=Suite.AES_256_GCM,
            ),
            ways=[OneWay(self.ways, each) for each in self.kinds],
            make_driver=make_driver,
            uniform=self._longest,
            sleep=self._pause,
            changed=self.changes.append,
            held_seconds=self.held_seconds,
        )

    def _longest(self, least: float, most: float) -> float:
        assert least == 0.0
        self.pauses.append(most)
        return most

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(0)


async def test_it_takes_the_first_way_that_goes() -> None:
    room = Room(kinds=(Kind.POLLS, Kind.TCP), ways=Ways(faults=[ConnectionRefusedError()]))
    await room.client().attach(5)
    assert room.ways.names == ["TCP", "POLLS"]
    assert room.pauses == []


async def test_pauses_are_random_up_to_a_bound_that_doubles() -> None:
    room = Room(ways=Ways(faults=[OSError("away") for _ in range(9)]))
    await room.client().attach(60)
    assert room.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])


async def test_it_gives_up_when_its_time_is_over() -> None:
    room = Room(ways=Ways(faults=[OSError("away") for _ in range(2)]))
    with pytest.raises(TunnelGone) as gone:
        await room.client().attach(0.15)
    assert gone.value.end.reason == "gateway_unreachable"
    assert "away" in gone.value.end.message
    assert room.pauses == pytest.approx([0.1, 0.2])


async def test_without_a_way_that_it_knows_it_gives_up_at_once() -> None:
    room = Room(kinds=())
    with pytest.raises(TunnelGone) as gone:
        await room.client().attach(60)
    assert gone.value.end.reason == "gateway_unreachable"


@pytest.mark.parametrize("reason", ["ticket_invalid", "tunnel_unknown", "gateway_draining"])
async def test_a_refusal_is_taken_at_its_word(reason: str) -> None:
    room = Room(ways=Ways(faults=[AttachRefused(reason, "No.")]))
    with pytest.raises(TunnelGone) as gone:
        await room.client().attach(60)
    assert gone.value.end == TunnelEnd(reason, "No.")
    assert room.ways.names == ["TCP"]


async def test_an_attempt_that_was_overtaken_is_made_again() -> None:
    room = Room(ways=Ways(faults=[AttachRefused("attach_replayed", "A newer one is there.")]))
    await room.client().attach(60)
    assert len(room.ways.carriers) == 1


async def test_a_way_that_goes_and_then_fails_is_left_for_the_next() -> None:
    room = Room(kinds=(Kind.TCP, Kind.WEBSOCKET), ways=Ways(faults=[HandshakeInvalid("no")]))
    await room.client().attach(5)
    assert room.ways.names == ["TCP", "WEBSOCKET"]
    assert room.pauses == []


async def test_it_moves_to_a_better_way_once_one_goes_and_back_when_that_is_lost() -> None:
    room = Room(kinds=(*Kind,), ways=Ways(away={Kind.TCP, Kind.WEBSOCKET, Kind.REQUESTS}))
    client = room.client()
    await client.attach(5)
    keeping = asyncio.ensure_future(client.keep())
    carriers = room.ways.carriers

    async def newest() -> Kind:
        return carriers[-1].kind

    async def probes() -> int:
        return len(room.pauses)

    await eventually(probes, lambda count: count >= 8)
    assert room.pauses[:8] == pytest.approx([2, 4, 8, 16, 32, 64, 120, 120])
    for kind in (Kind.WEBSOCKET, Kind.TCP):
        room.ways.away.discard(kind)
        assert await eventually(newest, kind.__eq__) is kind
    assert [each.is_retired for each in carriers] == [True, True, False]
    assert room.changes == []
    room.ways.away.add(Kind.TCP)
    carriers[-1].close()
    assert await eventually(newest, Kind.WEBSOCKET.__eq__) is Kind.WEBSOCKET
    assert room.changes == [False, True]
    await client.close("normal", "Done.")
    await keeping


async def test_a_carrier_that_is_lost_as_a_better_one_is_attached_counts_as_left() -> None:
    room = Room(kinds=(Kind.TCP, Kind.POLLS), ways=Ways(away={Kind.TCP}))
    client = room.client()
    await client.attach(5)
    keeping = asyncio.ensure_future(client.keep())
    attach = OneWay.attach

    async def lose_and_attach(
        self: OneWay, *, ticket: TunnelTicket, driver: CarrierDriver
    ) -> Carrier:
        carriers[0].close()
        return await attach(self, ticket=ticket, driver=driver)

    carriers = room.ways.carriers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneWay, "attach", lose_and_attach)
        room.ways.away.clear()

        async def newest() -> Kind:
            return carriers[-1].kind

        assert await eventually(newest, Kind.TCP.__eq__) is Kind.TCP
    await client.close("normal", "Done.")
    await keeping
    assert len(carriers) == 2
    assert room.changes == []


async def test_a_carrier_that_is_lost_is_replaced_and_channels_stay() -> None:
    room, user = Room(), User()
    client = room.client()
    await client.attach(5)
    client.open("tcp:80", user)
    assert client.driver.answer_batch(1, MAX_BATCH_BYTES)  # its OPEN leaves
    unsent = User()
    client.open("tcp:81", unsent)
    keeping = asyncio.ensure_future(client.keep())

    async def carriers() -> int:
        return len(room.ways.carriers)

    async def changes() -> list[bool]:
        return room.changes

    for attached in (1, 2, 3):
        await eventually(carriers, attached.__eq__)
        room.ways.carriers[-1].close()
    assert await eventually(changes, lambda found: len(found) >= 6) == [False, True] * 3
    assert (user.endings, unsent.endings) == ([], [OPEN_UNSENT])
    await client.close("normal", "Done.")
    assert await keeping == TunnelEnd("normal", "Done.")
    assert user.endings == ["normal"]


async def test_a_gateway_that_stays_away_ends_the_tunnel_and_its_channels() -> None:
    room, user = Room(held_seconds=0.0), User()
    client = room.client()
    await client.attach(5)
    client.open("tcp:80", user)
    room.ways.faults = [OSError("away")]
    room.ways.carriers[0].close()
    end = await client.keep()
    assert (end.reason, user.endings) == ("gateway_unreachable", [OPEN_UNSENT])
    assert client.is_over
    with pytest.raises(TunnelGone):
        client.open("tcp:80", user)


async def test_a_gateway_that_knows_the_tunnel_no_more_ends_it() -> None:
    room, user = Room(), User()
    client = room.client()
    await client.attach(5)
    client.open("tcp:80", user)
    room.ways.faults = [AttachRefused("tunnel_unknown", "It has started anew.")]
    room.ways.carriers[0].close()
    assert await client.keep() == TunnelEnd("tunnel_unknown", "It has started anew.")
    assert user.endings == [OPEN_UNSENT]


async def test_a_cancelled_attempt_leaves_the_tunnel_to_be_closed() -> None:
    room = Room()
    client = room.client()
    await client.attach(5)
    keeping = asyncio.ensure_future(client.keep())
    await asyncio.sleep(0)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    await client.close("normal", "Done.")
    assert client.is_over


async def test_a_tunnel_has_so_many_channels() -> None:
    room, user = Room(), User()
    client = room.client()
    await client.attach(5)
    for _ in range(4096):
        client.open("tcp:80", user)
    with pytest.raises(TunnelFull):
        client.open("tcp:80", user)
    await client.close("normal", "Done.")
    assert user.endings == [OPEN_UNSENT] * 4096
