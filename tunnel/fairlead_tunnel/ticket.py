"""Tickets: what lets a client attach to one gateway, once.

A gateway makes a secret and an id for each of its starts and tells them to signalling, with its
public key. Signalling seals what a client may do under it; only that start can open it:

    ticket = nonce, 12 random bytes ‖ AES-256-GCM(key, nonce, additional, grant)
    key    = HKDF-SHA256(secret, no salt, "fairlead ticket 1")                 RFC 5869
    additional = "fairlead ticket 1" 00 gateway id                             (UTF-8)
    grant  = the grant as JSON

The gateway remembers the tickets that were used until they expire, so that a first flight that is
sent again opens nothing a second time, and forgets its secret when it ends, so that neither does
one that is sent to its next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairlead_tunnel.base64url import base64url, from_base64url

MAX_TICKET_BYTES: Final = 1024
SECRET_BYTES: Final = 32
PSK_BYTES: Final = 32
_LABEL = b"fairlead ticket 1"
_NONCE_BYTES = 12


class TicketInvalid(ValueError):
    """A ticket of another gateway or another start, changed, expired or used before."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a ticket lets its holder do: attach to the tunnel of a session, which leads to a launch.

    `tunnel` has 32 hexadecimal digits, `psk` 32 bytes; `expires` is in Unix seconds.
    """

    tunnel: str
    tenant: str
    session: str
    launch: str
    psk: bytes = field(repr=False)
    expires: float


class TicketKey:
    """Makes and opens the tickets of one start of one gateway."""

    def __init__(self, *, secret: bytes, gateway_id: str) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError("a ticket secret has 32 bytes")
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_LABEL).derive(secret)
        self._cipher = AESGCM(key)
        self._additional = b"\0".join((_LABEL, gateway_id.encode()))

    def seal(self, grant: Grant, *, random: Callable[[int], bytes]) -> bytes:
        """Return the ticket of a grant; `random` gives secret bytes, as `secrets.token_bytes`."""
        text = json.dumps(
            {
                "tunnel": grant.tunnel,
                "tenant": grant.tenant,
                "session": grant.session,
                "launch": grant.launch,
                "psk": base64url(grant.psk),
                "expires": grant.expires,
            }
        )
        nonce = random(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text.encode(), self._additional)

    def open(self, ticket: bytes, *, now: float) -> Grant:
        """Return what a ticket grants; TicketInvalid when it is not of this start, or expired."""
        if not _NONCE_BYTES < len(ticket) <= MAX_TICKET_BYTES:
            raise TicketInvalid("the ticket has no length that a ticket has")
        nonce, sealed = ticket[:_NONCE_BYTES], ticket[_NONCE_BYTES:]
        try:
            said = json.loads(self._cipher.decrypt(nonce, sealed, self._additional))
        except InvalidTag:
            raise TicketInvalid("the ticket is not of this gateway's start") from None
        grant = Grant(
            tunnel=said["tunnel"],
            tenant=said["tenant"],
            session=said["session"],
            launch=said["launch"],
            psk=from_base64url(said["psk"]),
            expires=said["expires"],
        )
        if grant.expires <= now:
            raise TicketInvalid("the ticket has expired")
        return grant


class UsedTickets:
    """Which tickets were used, until they have expired; each is good once."""

    def __init__(self) -> None:
        self._expiries: dict[str, float] = {}

    def use(self, grant: Grant, *, now: float) -> None:
        """Note a use; TicketInvalid when it is not the first."""
        while self._expiries and next(iter(self._expiries.values())) <= now:
            del self._expiries[next(iter(self._expiries))]  # they live equally long: oldest first
        if grant.tunnel in self._expiries:
            raise TicketInvalid("the ticket was used before")
        self._expiries[grant.tunnel] = grant.expires
