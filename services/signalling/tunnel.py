"""Tunnels: what tickets of a gateway are made with, and what a client attaches to it with. Pure."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from chassis.errors import InvalidArgument
from fairlead_tunnel.ticket import PSK_BYTES, SECRET_BYTES, Grant, TicketKey
from signalling.session import Session

KEY_BYTES: Final = 32
MOST_URLS: Final = 16
_LONGEST_URL = 2048
_SCHEMES = frozenset({"tcp", "http", "https"})
_LABEL = "fairlead tunnel 1"
_ID_BYTES = 16
_NONCE_BYTES = 12


class TunnelTermsInvalid(InvalidArgument):
    """A gateway's terms are none that a ticket could be made with."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway's terms of tunnels cannot be used.",
            reason="tunnel_terms_invalid",
            remedy=f"Send two keys of 32 bytes, and 1 to {MOST_URLS} URLs: tcp, http or https.",
        )


@dataclass(frozen=True, slots=True)
class TunnelTerms:
    """What a gateway says for its tunnels, good until it ends: its static key (X25519), the secret
    of its tickets, and where clients reach its carriers, best first.

    Raises TunnelTermsInvalid.
    """

    public_key: bytes
    ticket_secret: bytes = field(repr=False)
    urls: tuple[str, ...]

    def __post_init__(self) -> None:
        if (
            len(self.public_key) != KEY_BYTES
            or len(self.ticket_secret) != SECRET_BYTES
            or not 1 <= len(self.urls) <= MOST_URLS
            or not all(_is_carrier(url) for url in self.urls)
        ):
            raise TunnelTermsInvalid


@dataclass(frozen=True, slots=True)
class Tunnel:
    """What a client attaches to a gateway with. Ticket and secret (psk) do not show when it is
    printed; the ticket is good until `expires_at` (UTC).
    """

    tunnel_id: str
    ticket: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    gateway_key: bytes
    urls: tuple[str, ...]
    expires_at: datetime


def tunnel_of(session: Session, terms: TunnelTerms, *, expires_at: datetime) -> Tunnel:
    """Return how the client of a session attaches to its gateway until `expires_at`.

    The same session, terms and time give the same, at every replica and without anything being
    stored: id, secret and nonce are HMAC-SHA512, under the gateway's secret, of all that is
    granted. So a nonce is never used for two grants.
    """
    expires = expires_at.timestamp()
    granted = (session.session_id, session.tenant, session.launch_id, repr(expires))
    made = hmac.digest(terms.ticket_secret, "\0".join((_LABEL, *granted)).encode(), "sha512")
    tunnel_id, rest = made[:_ID_BYTES].hex(), made[_ID_BYTES:]
    secret, nonce = rest[:PSK_BYTES], rest[PSK_BYTES : PSK_BYTES + _NONCE_BYTES]
    grant = Grant(
        tunnel=tunnel_id,
        tenant=session.tenant,
        session=session.session_id,
        launch=session.launch_id,
        psk=secret,
        expires=expires,
    )
    key = TicketKey(secret=terms.ticket_secret, gateway_id=session.gateway_id)
    return Tunnel(
        tunnel_id=tunnel_id,
        ticket=key.seal(grant, random=lambda _: nonce),
        secret=secret,
        gateway_key=terms.public_key,
        urls=terms.urls,
        expires_at=expires_at,
    )


def _is_carrier(url: str) -> bool:
    """Say whether a URL leads to a carrier: a scheme of ours, a host, and for TCP a port."""
    if not url.isascii() or len(url) > _LONGEST_URL or any(sign <= " " for sign in url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in _SCHEMES or not parts.hostname:
        return False
    return parts.scheme != "tcp" or (bool(port) and not (parts.path or parts.query))
