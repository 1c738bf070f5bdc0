"""Tunnels that are opened at one replica, for a gateway at another: what is told, and what comes
while it is being told.
"""

from __future__ import annotations

import pytest

from signalling.association import Unwant, Want
from signalling.close_reason import CloseReason
from signalling.session import Session
from signalling.session_event import SessionState
from tests.fakes.session_house import GATEWAY, HELD, House, until
from tests.fakes.sessions import TERMS
from tests.unit.signalling.test_session_replicas import next_order, replicas

pytestmark = pytest.mark.asyncio


async def opened(client: House) -> Session:
    session = await client.broker.open("default", HELD.launch_id, "tunnel", None)
    assert await client.broker.tunnel(session) is not None
    return session


async def test_the_gateway_is_told_and_its_word_comes_back() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(tunnel=TERMS)
        session = await opened(client)
        assert await next_order(association) == Want(session)
        watching = client.watch(session.session_id)
        await anext(watching)
        await gateway.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        assert (await until(watching, "state")).event.state is SessionState.CONNECTED
        await client.broker.close_as_admin("operators", session.session_id, "Upkeep.")
        assert await next_order(association) == Unwant(session.session_id)
        assert (await until(watching, "closed")).session.close_detail == "Upkeep."


async def test_one_that_is_opened_while_the_gateway_connects_is_in_its_welcome_or_told() -> None:
    async with replicas() as (client, gateway):
        first, _ = await gateway.connect(tunnel=TERMS)
        await client.switchboard.patrol()
        attached = await opened(client)
        assert await next_order(first) == Want(attached)
        await gateway.desk.take_change(GATEWAY, attached.session_id, connected=True, reason="")
        made: list[Session] = []

        async def opening(session: Session) -> None:
            """Between the look at what is stored and the welcome."""
            gateway.store.before_save = None
            made.append(await opened(client))

        gateway.store.before_save = opening  # runs as the one that is not held any more is closed
        association, wanted = await gateway.connect(tunnel=TERMS)
        if made[0].session_id not in wanted:
            assert await next_order(association) == Want(made[0])


async def test_notices_that_were_lost_are_made_up_for() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(tunnel=TERMS)
        gateway.store.is_deaf = True
        session = await opened(client)
        gateway.store.hear_again()
        assert await next_order(association) == Want(session)


async def test_one_that_is_closed_before_its_gateway_heard_of_it_is_closed_by_its_word() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(tunnel=TERMS)
        gateway.store.is_deaf = True
        session = await opened(client)
        await client.broker.close("default", session.session_id)
        # Its client was faster, and shows the ticket now.
        await gateway.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        assert await next_order(association) == Unwant(session.session_id)


async def test_a_word_that_comes_before_the_notice_is_taken() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(tunnel=TERMS)
        gateway.store.is_deaf = True
        session = await opened(client)
        await gateway.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        order = await next_order(association)
        assert isinstance(order, Want)  # the gateway has it already, and takes that for no news
        assert order.session.state is SessionState.CONNECTED
        gateway.store.hear_again()
        await client.broker.close("default", session.session_id)
        assert await next_order(association) == Unwant(session.session_id)


async def test_two_who_open_it_by_one_name_get_one_tunnel() -> None:
    async with replicas() as (client, gateway):
        await gateway.connect(tunnel=TERMS)
        await client.switchboard.patrol()
        name = "-_" + "A" * 20
        others: list[Session] = []

        async def overtaking(session: Session) -> None:
            client.store.before_save = None
            gateway.clock.advance(1)
            others.append(
                await gateway.broker.open(
                    "default", HELD.launch_id, "tunnel", None, conversation_id=name
                )
            )

        client.store.before_save = overtaking
        session = await client.broker.open(
            "default", HELD.launch_id, "tunnel", None, conversation_id=name
        )
        assert session == others[0]
        assert await client.broker.tunnel(session) == await gateway.broker.tunnel(others[0])


async def test_a_gateway_that_comes_to_another_replica_without_it_has_lost_it() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(tunnel=TERMS)
        session = await opened(client)
        await gateway.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
        await gateway.switchboard.disconnect(association)
        _, wanted = await client.connect(tunnel=TERMS)
        assert wanted == []
        assert (await client.state(session))[1] is CloseReason.GATEWAY_LOST
