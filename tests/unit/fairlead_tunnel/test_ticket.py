"""Tickets: for one start of one gateway, for a while, and once."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from fairlead_tunnel.ticket import Grant, TicketInvalid, TicketKey, UsedTickets

SECRET = bytes(range(32))
GRANT = Grant(
    tunnel="00" * 16,
    tenant="default",
    session="ses_1",
    launch="lau_1",
    psk=bytes(range(32)),
    expires=1000.0,
)
OTHER = "01" * 16


def ticket_key(*, secret: bytes = SECRET, gateway_id: str = "gtw_1") -> TicketKey:
    return TicketKey(secret=secret, gateway_id=gateway_id)


def test_what_was_granted_is_read() -> None:
    ticket = ticket_key().seal(GRANT, random=secrets.token_bytes)
    assert ticket_key().open(ticket, now=999.0) == GRANT


@pytest.mark.parametrize(
    "other",
    [ticket_key(secret=bytes(32)), ticket_key(gateway_id="gtw_2")],
    ids=["secret", "gateway"],
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
    used.use(replace(GRANT, tunnel=OTHER, expires=2000.0), now=999.0)
    with pytest.raises(TicketInvalid, match="before"):
        used.use(GRANT, now=999.0)
    used.use(GRANT, now=1000.0)  # `open` refuses it by then; it takes no room any more
    with pytest.raises(TicketInvalid, match="before"):
        used.use(replace(GRANT, tunnel=OTHER), now=1000.0)


def test_a_secret_of_another_length() -> None:
    with pytest.raises(ValueError, match="32"):
        ticket_key(secret=b"short")


def test_a_grant_does_not_show_its_secret() -> None:
    assert "psk" not in repr(GRANT)


def test_a_known_ticket() -> None:
    """Kept here and not in `tests/vectors`: only signalling and gateways read tickets."""
    sealed = (
        "000000000000000000000000979c623a85ed3fc16bc2e314ddb95c4d5b1c960f67dd596eecb0ce43ccddbff9"
        "859bf88cf051f2a195d026be217d7b5790cbb2e8cf38ff62d2776235ae71d3335401d12e43ee03b4fb6856ee"
        "a74018d1fb1fcdbc09bf14978f1e5e377cf448034078d402af0a7fe657d71a047b38d53ddd6a660259561f7b"
        "ce0707ab8b287c2dcb69a690829dc0c9125384a7bc17059130f89282afdee1272d0ac9191fd2fe873c471b2b"
        "2983f2f13b733fa44d5055ae6da4d6e06cb009f2931381f2f1f03670f40ea1"
    )
    assert ticket_key().seal(GRANT, random=bytes).hex() == sealed
    assert ticket_key().open(bytes.fromhex(sealed), now=0.0) == GRANT
