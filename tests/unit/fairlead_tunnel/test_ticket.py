"""Tickets: for one start of one gateway, for a while, and once."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from fairlead_tunnel.ticket import Grant, TicketInvalid, TicketKey, UsedTickets

SECRET = bytes(range(32))
GRANT = Grant(tunnel="tun_1", tenant="default", session="ses_1", psk=bytes(32), expires=1000.0)


def ticket_key(*, secret: bytes = SECRET, gateway_id: str = "gw_1", epoch: str = "1") -> TicketKey:
    return TicketKey(secret=secret, gateway_id=gateway_id, epoch=epoch)


def test_what_was_granted_is_read() -> None:
    ticket = ticket_key().seal(GRANT, random=secrets.token_bytes)
    assert ticket_key().open(ticket, now=999.0) == GRANT


@pytest.mark.parametrize(
    "other",
    [ticket_key(secret=bytes(32)), ticket_key(gateway_id="gw_2"), ticket_key(epoch="2")],
    ids=["secret", "gateway", "start"],
)
def test_another_gateway_or_start_refuses_it(other: TicketKey) -> None:
    ticket = ticket_key().seal(GRANT, random=secrets.token_bytes)
    with pytest.raises(TicketInvalid, match="start"):
        other.open(ticket, now=0.0)


def test_a_changed_ticket_is_refused() -> None:
    ticket = ticket_key().seal(GRANT, random=secrets.token_bytes)
    for place in range(len(ticket)):
        changed = bytearray(ticket)
        changed[place] ^= 1
        with pytest.raises(TicketInvalid):
            ticket_key().open(bytes(changed), now=0.0)
    for length in (0, 12, 1025):
        with pytest.raises(TicketInvalid, match="length"):
            ticket_key().open(bytes(length), now=0.0)


def test_a_ticket_expires() -> None:
    ticket = ticket_key().seal(GRANT, random=secrets.token_bytes)
    with pytest.raises(TicketInvalid, match="expired"):
        ticket_key().open(ticket, now=1000.0)


def test_a_ticket_is_good_once_until_it_expires() -> None:
    used = UsedTickets()
    used.use(GRANT, now=0.0)
    used.use(replace(GRANT, tunnel="tun_2", expires=2000.0), now=999.0)
    with pytest.raises(TicketInvalid, match="before"):
        used.use(GRANT, now=999.0)
    used.use(GRANT, now=1000.0)  # `open` refuses it by then; it takes no room any more
    with pytest.raises(TicketInvalid, match="before"):
        used.use(replace(GRANT, tunnel="tun_2"), now=1000.0)


def test_a_secret_of_another_length() -> None:
    with pytest.raises(ValueError, match="32"):
        ticket_key(secret=b"short")
