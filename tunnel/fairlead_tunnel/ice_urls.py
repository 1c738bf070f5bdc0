"""Addresses of STUN and TURN servers as URLs (RFC 7064, RFC 7065)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

MAX_URL: Final = 300

_URL = re.compile(
    r"(?P<scheme>stuns?|turns?):(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?(?:\?transport=(?P<transport>[a-z]+))?",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)


class IceTransport(StrEnum):
    """How a server is reached."""

    UDP = "udp"
    TCP = "tcp"


class IceUrlInvalid(ValueError):
    """A text is not the URL of a STUN or TURN server."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text[:MAX_URL]!r} is not the URL of a STUN or TURN server: {why}.")


@dataclass(frozen=True, slots=True)
class IceUrl:
    """Where a STUN or TURN server is; `host` is a lower-case name or an address without brackets.

    With `is_secure` it is spoken to over TLS on TCP, or over DTLS on UDP.
    """

    is_relay: bool
    is_secure: bool
    host: str
    port: int
    transport: IceTransport

    def __str__(self) -> str:
        scheme = ("turn" if self.is_relay else "stun") + ("s" if self.is_secure else "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = f"?transport={self.transport}" if self.is_relay else ""
        return f"{scheme}:{host}:{self.port}{query}"


def ice_url(text: str) -> IceUrl:
    """Read one URL; the port is 3478 or, with `s`, 5349 where none is named, and the transport UDP
    or, with `s`, TCP (RFC 7065, section 3.2).

    Raises IceUrlInvalid. What the RFCs leave to extensions (other transports) is invalid here.
    """
    found = _URL.fullmatch(text) if len(text) <= MAX_URL else None
    if found is None:
        raise IceUrlInvalid(text, "expected stun:host:port or turn:host:port?transport=udp")
    scheme = found["scheme"].lower()
    is_relay, is_secure = scheme.startswith("turn"), scheme.endswith("s")
    if found["transport"] and not is_relay:
        raise IceUrlInvalid(text, "only turn and turns have a transport")
    try:
        transport = IceTransport((found["transport"] or ("tcp" if is_secure else "udp")).lower())
    except ValueError:
        raise IceUrlInvalid(text, "the transport is udp or tcp") from None
    port = int(found["port"] or (5349 if is_secure else 3478))
    if not 1 <= port <= 65535:
        raise IceUrlInvalid(text, "ports are 1 to 65535")
    if is_secure and not is_relay:
        transport = IceTransport.TCP
    return IceUrl(is_relay, is_secure, _host(text, found["host"].lower()), port, transport)


def _host(text: str, host: str) -> str:
    try:
        if host.startswith("["):
            return str(IPv6Address(host[1:-1]))
        # A name whose last label is a number can only be meant as an address (RFC 1123, 2.1).
        if host.rpartition(".")[2].isdigit():
            return str(IPv4Address(host))
    except AddressValueError:
        raise IceUrlInvalid(text, "the host is no address") from None
    name = host.removesuffix(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise IceUrlInvalid(text, "the host is no name")
    return host
