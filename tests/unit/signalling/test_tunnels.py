"""Sessions of mode tunnel: the record, the ticket, and what gateway and client are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chassis.errors import Unavailable
from fairlead_tunnel.ticket import TicketInvalid, TicketKey
from signalling.association import Association, Unwant, Want
from signalling.close_reason import CloseReason
from signalling.gateway import Gateway, GatewayUnavailable
from signalling.session import Session, SessionMode
from signalling.session_errors import (
    GatewayNotReady,
    ModeUnsupported,
    SessionClosed,
    SessionKeyConflict,
    SessionStateInvalid,
    TunnelConflict,
)
from signalling.session_event import EventKind, SessionState
from signalling.session_json import session_json
from signalling.session_rules import Phase
from signalling.tunnel import Tunnel, TunnelTerms, TunnelTermsInvalid, tunnel_of
from tests.fakes.clock import START
from tests.fakes.session_house import (
    BARE,
    GATEWAY,
    HELD,
    TRACEPARENT,
    House,
    make_house,
    until,
)
from tests.fakes.sessions import MEETING, OFFER, TERMS, candidate

pytestmark = pytest.mark.asyncio

OTHER = "gtw_" + "b" * 26
LATER = START + timedelta(seconds=60)
EXPIRED = (SessionState.CLOSED, CloseReason.EXPIRED)
LOST = (SessionState.CLOSED, CloseReason.GATEWAY_LOST)


def waiting() -> Session:
    return Session(
        session_id="ses_" + "a" * 26,
        tenant="default",
        launch_id=HELD.launch_id,
        gateway_id=GATEWAY,
        created_at=START,
        expires_at=LATER,
        mode=SessionMode.TUNNEL,
    )


async def tunnelled(house: House) -> tuple[Association, Session]:
    """Connect a gateway that takes tunnels, and open one that it is told of."""
    association, _ = await house.connect(tunnel=TERMS)
    session = await opened(house)
    assert await association.next_order() == Want(session)
    return association, session


async def opened(house: House, key: str | None = None) -> Session:
    return await house.broker.open("default", HELD.launch_id, "tunnel", key)


async def tunnel(house: House, session: Session) -> Tunnel:
    found = await house.broker.tunnel(session)
    assert found is not None
    return found


class TestRecord:
    async def test_it_waits_for_its_client_and_is_attached_by_the_gateways_word(self) -> None:
        session = waiting()
        assert (session.phase, session.is_negotiated) == (Phase.WAITING, False)
        attached = session.connected(expires_at=LATER)
        assert (attached.state, attached.phase) == (SessionState.CONNECTED, Phase.ATTACHED)
        again = attached.connected(expires_at=LATER, round_number=1)
        assert (again.events, again.phase) == (attached.events, Phase.ATTACHED)
        closed = again.closed(CloseReason.PEER_CLOSED)
        assert closed.phase is Phase.CLOSED
        kinds = [event.kind for event in closed.events]
        assert kinds == [EventKind.STATE, EventKind.CLOSED]
        with pytest.raises(SessionClosed):
            closed.connected(expires_at=LATER)

    @pytest.mark.parametrize("attached", [False, True])
    async def test_nothing_of_a_negotiation_has_a_place_in_it(self, attached: bool) -> None:
        session = waiting().connected(expires_at=LATER) if attached else waiting()
        with pytest.raises(TunnelConflict) as caught:
            session.with_offer(OFFER, expires_at=LATER)
        assert caught.value.reason == "mode_conflict"
        with pytest.raises(TunnelConflict):
            session.with_candidates(0, [candidate(1)], ended=True)
        with pytest.raises(TunnelConflict):
            session.restarted(OFFER, expires_at=LATER)
        with pytest.raises(SessionStateInvalid):
            session.with_answer("v=0")
        with pytest.raises(SessionStateInvalid):
            session.with_found(1, 0, [candidate(1)], ended=True)
        assert session.restart_wanted(1) is session

    async def test_a_gateway_may_refuse_one_until_its_client_has_come(self) -> None:
        refused = waiting().refused("No room.", reason=CloseReason.GATEWAY_BUSY)
        assert (refused.close_reason, refused.close_detail) == (
            CloseReason.GATEWAY_BUSY,
            "No room.",
        )
        attached = waiting().connected(expires_at=LATER)
        assert attached.refused("No room.") is attached


class TestTicket:
    async def test_only_its_gateway_opens_it(self) -> None:
        made = tunnel_of(waiting(), TERMS, expires_at=LATER)
        key = TicketKey(secret=TERMS.ticket_secret, gateway_id=GATEWAY)
        grant = key.open(made.ticket, now=START.timestamp())
        assert (grant.tunnel, grant.psk) == (made.tunnel_id, made.secret)
        assert (grant.session, grant.launch) == (waiting().session_id, HELD.launch_id)
        assert (grant.tenant, grant.expires) == ("default", LATER.timestamp())
        assert (len(bytes.fromhex(made.tunnel_id)), len(made.secret)) == (16, 32)
        assert (made.gateway_key, made.urls) == (TERMS.public_key, TERMS.urls)
        with pytest.raises(TicketInvalid, match="expired"):
            key.open(made.ticket, now=LATER.timestamp())
        with pytest.raises(TicketInvalid):
            TicketKey(secret=TERMS.ticket_secret, gateway_id=OTHER).open(made.ticket, now=0)

    async def test_what_is_granted_twice_is_the_same_and_nothing_else_is(self) -> None:
        made = tunnel_of(waiting(), TERMS, expires_at=LATER)
        assert tunnel_of(waiting(), TERMS, expires_at=LATER) == made
        changed = (
            (replace(waiting(), session_id="ses_" + "b" * 26), TERMS, LATER),
            (replace(waiting(), tenant="other"), TERMS, LATER),
            (replace(waiting(), launch_id=BARE.launch_id), TERMS, LATER),
            (waiting(), replace(TERMS, ticket_secret=bytes(32)), LATER),
            (waiting(), TERMS, LATER + timedelta(microseconds=1)),
        )
        others = [made, *(tunnel_of(of, by, expires_at=at) for of, by, at in changed)]
        assert len({other.tunnel_id for other in others}) == len(others)
        assert len({other.secret for other in others}) == len(others)
        assert len({other.ticket[:12] for other in others}) == len(others)

    async def test_what_is_printed_shows_no_secret(self) -> None:
        made = tunnel_of(waiting(), TERMS, expires_at=LATER)
        for text in (repr(made), repr(TERMS), repr(Gateway(GATEWAY, START, tunnel=TERMS))):
            assert "secret" not in text
            assert "ticket" not in text
        assert "tunnel" not in session_json(waiting())

    @pytest.mark.parametrize(
        ("public_key", "secret", "urls"),
        [
            (bytes(31), bytes(32), TERMS.urls),
            (bytes(32), bytes(33), TERMS.urls),
            (bytes(32), bytes(32), ()),
            (bytes(32), bytes(32), TERMS.urls * 9),
            (bytes(32), bytes(32), ("udp://host:7311",)),
            (bytes(32), bytes(32), ("tcp://host",)),
            (bytes(32), bytes(32), ("tcp://host:0",)),
            (bytes(32), bytes(32), ("tcp://host:7311/path",)),
            (bytes(32), bytes(32), ("http://host:99999",)),
            (bytes(32), bytes(32), ("http://",)),
            (bytes(32), bytes(32), ("http://a b",)),
            (bytes(32), bytes(32), ("https://" + "a" * 2048,)),
        ],
    )
    async def test_terms_that_cannot_be_used(
        self, public_key: bytes, secret: bytes, urls: tuple[str, ...]
    ) -> None:
        with pytest.raises(TunnelTermsInvalid):
            TunnelTerms(public_key=public_key, ticket_secret=secret, urls=urls)

    async def test_terms_with_an_address_of_ipv6_and_a_path(self) -> None:
        replace(TERMS, urls=("tcp://[::1]:7311", "https://door.example/gateways/1"))


class TestOpening:
    async def test_only_gateways_that_take_tunnels_are_chosen(self) -> None:
        house = make_house()
        with pytest.raises(GatewayUnavailable):
            await opened(house)
        await house.connect(OTHER, can_trickle=True)
        with pytest.raises(ModeUnsupported):
            await opened(house)
        association, _ = await house.connect(tunnel=TERMS)
        house.switchboard.heard(association, sessions=500, channels=0, draining=False)
        assert (await opened(house)).gateway_id == GATEWAY
        house.switchboard.heard(association, sessions=0, channels=0, draining=True)
        with pytest.raises(GatewayUnavailable):
            await opened(house)

    async def test_the_gateway_is_told_at_once_and_once(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        await house.broker.close("default", session.session_id)
        assert await association.next_order() == Unwant(session.session_id)

    async def test_the_gateways_work_belongs_to_the_call_that_opened_it(self) -> None:
        house = make_house()
        house.launches.trace = "00-" + "3" * 32 + "-" + "4" * 16 + "-01"
        _, session = await tunnelled(house)
        assert session.traceparent == TRACEPARENT
        other = await house.broker.open("default", HELD.launch_id, "complete", None)
        assert other.traceparent == house.launches.trace

    async def test_a_key_gives_the_same_answer_at_every_replica(self) -> None:
        here = make_house()
        there = make_house(here)
        await here.connect(tunnel=TERMS)
        session = await opened(there, "key")
        first = await tunnel(there, session)
        here.clock.advance(30)
        again = await opened(here, "key")
        assert (again.session_id, await tunnel(here, again)) == (session.session_id, first)
        await here.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        assert await tunnel(there, await opened(there, "key")) == first
        with pytest.raises(SessionKeyConflict):
            await there.broker.open("default", HELD.launch_id, "complete", "key")
        await there.broker.close("default", session.session_id)
        assert await there.broker.tunnel(await opened(there, "key")) is None

    async def test_other_modes_have_no_tunnel_and_a_tunnel_no_policy(self) -> None:
        house = make_house()
        await house.connect(tunnel=TERMS)
        session = await house.broker.open("default", HELD.launch_id, "complete", None)
        assert await house.broker.tunnel(session) is None
        with pytest.raises(TunnelConflict):
            await house.broker.open("default", HELD.launch_id, "tunnel", None, policy="relay")

    async def test_a_gateway_that_goes_while_one_is_opened_is_waited_for(self) -> None:
        house = make_house()
        association, _ = await house.connect(tunnel=TERMS)

        async def losing(session: Session) -> None:
            house.store.before_save = None
            await house.switchboard.disconnect(association)

        house.store.before_save = losing
        session = await opened(house, "key")
        with pytest.raises(GatewayNotReady):
            await house.broker.tunnel(session)
        _, wanted = await house.connect(tunnel=TERMS)
        assert wanted == [session.session_id]
        assert (await tunnel(house, await opened(house, "key"))).urls == TERMS.urls

    async def test_a_launch_that_ends_takes_it_along(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.broker.close_launch(HELD.launch_id)
        assert await association.next_order() == Unwant(session.session_id)
        assert (await house.state(session))[1] is CloseReason.LAUNCH_ENDED

    async def test_a_restart_without_an_offer_is_refused_too(self) -> None:
        house = make_house()
        _, session = await tunnelled(house)
        with pytest.raises(TunnelConflict):
            await house.broker.restart("default", session.session_id, "")


class TestLife:
    async def test_one_that_nobody_attaches_to_expires_some_time_after_its_ticket(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        made = await tunnel(house, session)
        assert made.expires_at == session.created_at + timedelta(seconds=60)
        house.clock.advance(60 + 23)  # the word of who came at the last moment may take a while
        house.switchboard.heard(association, sessions=0, channels=0, draining=False)
        await house.switchboard.patrol()
        assert (await house.state(session))[0] is SessionState.OPENED
        house.clock.advance(1)
        house.switchboard.heard(association, sessions=0, channels=0, draining=False)
        await house.switchboard.patrol()
        assert await house.state(session) == EXPIRED
        assert await association.next_order() == Unwant(session.session_id)
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        assert await association.next_order() == Unwant(session.session_id)

    async def test_an_attached_one_lives_by_its_gateways_word(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        watching = house.watch(session.session_id)
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        told = await until(watching, "state")
        assert told.event.state is SessionState.CONNECTED
        for _ in range(4):
            house.clock.advance(40)
            house.switchboard.heard(association, sessions=1, channels=1, draining=False)
            await house.desk.keep_connected(GATEWAY)
            await house.switchboard.patrol()
        assert (await house.state(session))[0] is SessionState.CONNECTED
        await house.desk.take_change(
            GATEWAY, session.session_id, connected=False, reason="peer_closed"
        )
        ended = await until(watching, "closed")
        assert ended.session.close_reason is CloseReason.PEER_CLOSED

    async def test_who_attached_while_the_store_was_away_is_not_cut_off(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        house.clock.advance(50)
        house.store.raising = Unavailable("Away.", reason="redis_unavailable")
        with pytest.raises(Unavailable):
            await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        house.clock.advance(40)
        house.switchboard.heard(association, sessions=1, channels=0, draining=False)
        house.store.raising = None
        await house.switchboard.patrol()
        await house.connect(held=(session.session_id,), tunnel=TERMS)
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        assert (await house.state(session))[0] is SessionState.CONNECTED

    async def test_a_gateway_that_comes_back_is_told_of_it_again(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.switchboard.disconnect(association)
        _, wanted = await house.connect(tunnel=TERMS)  # nobody has come yet: nothing is lost
        assert wanted == [session.session_id]
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        ended = {session.session_id: CloseReason.TIMEOUT}
        _, wanted = await house.connect(tunnel=TERMS, ended=ended)
        assert wanted == []
        assert (await house.state(session))[1] is CloseReason.TIMEOUT

    async def test_a_gateway_that_stays_away_loses_it(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.switchboard.disconnect(association)
        house.clock.advance(14)
        await house.switchboard.patrol()
        assert (await house.state(session))[0] is SessionState.OPENED
        house.clock.advance(1)
        await house.switchboard.patrol()
        assert await house.state(session) == LOST

    async def test_a_refusal_of_the_gateway_closes_it(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.desk.take_refusal(
            GATEWAY, session.session_id, "It stops.", reason="gateway_draining"
        )
        assert (await house.state(session))[1] is CloseReason.DRAINED
        assert (await opened(house)).gateway_id == GATEWAY
        order = await association.next_order()
        assert isinstance(order, Want)  # and not the end of one that it refused itself

    async def test_an_answer_to_a_tunnel_is_no_word_that_a_gateway_has(self) -> None:
        house = make_house()
        association, session = await tunnelled(house)
        await house.desk.take_answer(GATEWAY, session.session_id, "v=0")
        assert await association.next_order() == Unwant(session.session_id)

    async def test_a_channel_may_want_a_port_before_the_word_of_the_carrier_is_taken(self) -> None:
        house = make_house()
        _, session = await tunnelled(house)
        await house.desk.open_port(GATEWAY, session.session_id, 8080, MEETING)
        assert house.launches.opened == [(HELD.launch_id, 8080, MEETING)]
